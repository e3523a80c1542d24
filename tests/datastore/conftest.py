"""Has this folder on the path of imports: its tests share helpers."""
