"""What lies in `desired/` and is not read: each with the reason and the way out.

Nothing else shows that such a file asks for nothing. What editors and systems leave beside files
(a leading dot, a trailing `~`) and files of other types are in nobody's way. Blocking: it lists
folders, and stats only what is a stray.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePath

from datastore.courtesy import Pause, no_pause
from datastore.definitions.suggest import did_you_mean
from datastore.errors import NO_UTF8_NAME, InvalidFile
from datastore.kinds import KINDS
from datastore.layout import Layout
from datastore.unicode_text import is_unicode


def strays(layout: Layout, pause: Pause = no_pause) -> dict[Path, InvalidFile]:
    """Every stray, by path."""
    found: dict[Path, str] = {}
    for entry in _entries(layout.desired("")):
        reason = _outside(entry)
        if reason is not None:
            found[Path(entry.path)] = reason
    for kind in KINDS:
        for entry in _entries(layout.desired(kind)):
            pause()
            reason = _inside(entry)
            if reason is not None:
                found[Path(entry.path)] = reason
    return {path: InvalidFile(layout.shown(path), reason) for path, reason in found.items()}


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and not entry.name.endswith("~"):
                yield entry


def _outside(entry: os.DirEntry[str]) -> str | None:
    """Of what lies beside the folders of the kinds."""
    if entry.name in KINDS:
        return None
    if entry.is_dir():
        advice = did_you_mean(entry.name, KINDS) or f"kinds are {', '.join(KINDS)}"
        return f"is the folder of no kind, nothing in it is read: {advice}"
    if _is_yaml(entry.name):
        return f"is not read here: move it into the folder of its kind ({', '.join(KINDS)})"
    return None


def _inside(entry: os.DirEntry[str]) -> str | None:
    """Of what lies in the folder of a kind."""
    if not is_unicode(entry.name):
        return NO_UTF8_NAME
    if entry.is_dir(follow_symlinks=False):
        return "is a folder, and only files of the folder above are read: move its files there"
    if entry.is_symlink():
        if _is_yaml(entry.name) or entry.is_dir():
            return "is a link, and links are not read: put the file itself here"
        return None
    if not _is_yaml(entry.name):
        return None
    if not entry.is_file(follow_symlinks=False):
        return "is no regular file and not read: put a plain file here"
    if entry.name.endswith(".yaml"):
        return None
    right = PurePath(entry.name).with_suffix(".yaml").name
    if os.path.lexists(Path(entry.path).with_name(right)):
        return f"is not read, {right} beside it is: keep one of the two, under that name"
    return f"is not read, as its name does not end in .yaml: rename it to {right}"


def _is_yaml(name: str) -> bool:
    return name.lower().endswith((".yaml", ".yml"))
