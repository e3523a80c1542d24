"""What lies in `desired/` and is not read: each with the reason and the way out.

Nothing else shows that such a file asks for nothing. What editors and systems leave beside files
(a leading dot, a trailing `~`) and files of other types are in nobody's way. Blocking: it lists
folders, and stats only what is a stray.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

from datastore.courtesy import Pause, no_pause
from datastore.definitions.suggest import did_you_mean
from datastore.errors import NO_UTF8_NAME, InvalidFile
from datastore.kinds import KINDS
from datastore.layout import Layout
from datastore.unicode_text import is_unicode

_Why = Callable[[os.DirEntry[str]], str | None]


def strays(layout: Layout, pause: Pause = no_pause) -> dict[Path, InvalidFile]:
    """Every stray, by path."""
    found = dict(_found_in(layout.desired(""), _outside, pause))
    for kind in KINDS:
        # Of a folder that is none, that is said rather than what it led to.
        found = dict(_found_in(layout.desired(kind), _inside, pause)) | found
    return {path: InvalidFile(layout.shown(path), reason) for path, reason in found.items()}


def _found_in(folder: Path, why: _Why, pause: Pause) -> Iterator[tuple[Path, str]]:
    """Each stray in a folder with its reason; the folder itself where it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            names = [one for one in entries if not one.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield folder, f"cannot be listed: {error.strerror}; what was asked for stays in force"
        return
    for entry in names:
        pause()
        if entry.name.endswith("~"):
            continue
        try:
            reason = why(entry)
        except OSError as error:
            reason = f"cannot be looked at: {error.strerror}; remove it"
        if reason is not None:
            yield Path(entry.path), reason


def _outside(entry: os.DirEntry[str]) -> str | None:
    """Of what lies beside the folders of the kinds."""
    if entry.name in KINDS:
        if os.path.isdir(entry.path):
            return None
        return "is no folder, and has to be one: move it away, the server makes the folder anew"
    if entry.is_symlink() and (nowhere := _leads_nowhere(entry)):
        return f"is a link, and links are not read ({nowhere}): remove it"
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
        if _is_yaml(entry.name) or _leads_nowhere(entry) or entry.is_dir():
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


def _leads_nowhere(link: os.DirEntry[str]) -> str | None:
    """Why nobody can follow the link; None where somebody can, and where nothing is there."""
    try:
        link.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror
    return None


def _is_yaml(name: str) -> bool:
    return name.lower().endswith((".yaml", ".yml"))
