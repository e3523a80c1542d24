"""Removing what steps leave behind, also what they have closed to their own user.

Promises: nothing outside of the folder is touched. A link is removed, and not what it leads to;
what is mounted inside stays as it is, with the folders above it. It may be of any depth.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from uuid import uuid4

DEEP = 20
"""What is deeper than so many folders is moved up before it is removed: each costs an open file."""

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: str | os.PathLike[str]) -> None:
    """Remove the folder with all that is in it, as far as that can be done. Blocks.

    A folder in which nothing may be written or found is opened: Go keeps its modules in such ones.
    """
    with suppress(OSError):
        if _is_left(folder):
            top = _opened(folder)
            try:
                while _clear(top, top, 1):
                    pass
            finally:
                os.close(top)
            os.rmdir(folder)


def _clear(folder: int, top: int, depth: int) -> bool:
    """Remove all that is in the open folder; whether something of it was moved to `top`."""
    has_moved = False
    for entry in list(os.scandir(folder)):
        with suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=folder)
            elif not _is_left(entry.name, folder):
                continue
            elif depth < DEEP:
                has_moved |= _clear_inside(entry.name, folder, top, depth + 1)
                os.rmdir(entry.name, dir_fd=folder)
            else:
                # Of a folder that is closed, only its owner may change where it is.
                os.close(_opened(entry.name, folder))
                os.rename(entry.name, f"deep-{uuid4().hex}", src_dir_fd=folder, dst_dir_fd=top)
                has_moved = True
    return has_moved


def _clear_inside(name: str, parent: int, top: int, depth: int) -> bool:
    folder = _opened(name, parent)
    try:
        return _clear(folder, top, depth)
    finally:
        os.close(folder)


def _is_left(folder: str | os.PathLike[str], parent: int | None = None) -> bool:
    """Remove it if it is empty; True where something is in it, OSError where it is mounted, say."""
    try:
        os.rmdir(folder, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return True
    return False


def _opened(folder: str | os.PathLike[str], parent: int | None = None) -> int:
    """Its descriptor, with all rights for its owner. What is a link is not followed."""
    place = os.open(folder, os.O_PATH | _FOLDER, dir_fd=parent)
    try:
        if os.fstat(place).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            with suppress(OSError):
                os.chmod(f"/proc/self/fd/{place}", 0o700)
        return os.open(".", os.O_RDONLY | _FOLDER, dir_fd=place)
    finally:
        os.close(place)
