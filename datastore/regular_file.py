"""Reading what people can replace: a regular file, or an error at once.

To open a pipe waits until somebody opens its other end, to open a device may do whatever that does.
So nothing in the repository is opened to be read before it is known what it is.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

NO_FILE_MORE = (errno.EMFILE, errno.ENFILE)
"""This process, or the machine, has as many files open as it may: just now."""

_NO_FILE = "is no regular file"


def oddity(path: str | Path) -> str | None:
    """Why what is at a path cannot be read as a file; None for a file, and where nothing is."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "is a link to what is not there" if os.path.islink(path) else None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return odd_mode(mode)


def odd_mode(mode: int) -> str | None:
    """As `oddity`, by the mode that a stat has told."""
    if stat.S_ISDIR(mode):
        return "is a folder, expected a file"
    return None if stat.S_ISREG(mode) else _NO_FILE


def open_handle(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """As `os.open`, but it never waits, and what is opened is a regular file; OSError else."""
    try:
        _expect_file(os.stat(path), path)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    # Should it be a pipe by now, nobody waits for whoever has its other end.
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    try:
        _expect_file(os.fstat(handle), path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def open_to_read(path: str | Path) -> BinaryIO:
    """The bytes of a regular file; OSError for anything else."""
    return os.fdopen(open_handle(path, os.O_RDONLY), "rb")


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """All that a regular file holds; OSError for anything else.

    Of more than `most` bytes only one more than these, which tells that there are more.
    """
    with open_to_read(path) as file:
        if most is None:
            return file.read()
        return file.read(min(os.fstat(file.fileno()).st_size, most) + 1)


def _expect_file(found: os.stat_result, path: str | Path) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, _NO_FILE, os.fspath(path))
