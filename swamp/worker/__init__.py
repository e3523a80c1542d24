"""The worker: dials in, takes dispatches, executes them, and hands back what came of them.

It stays free of imports: the guard process loads this package without any library.
"""
