"""Whether it was for want of room that the disk refused, whoever says so, and in whatever words.

SQLite calls a full disk by three names, and a file system keeps room back that `statvfs` counts as
free (ext4, for its own needs) or gives less than that (a quota): what can be written is tried.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))
ROOM_BYTES = 1 << 20
"""What opening a repository needs at the least: files beside both databases, and their pages."""
_SHM_PAGE_BYTES, _SHM_BYTES = 4096, 1 << 17
_SAYS_LITTLE = frozenset((sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN))
"""What SQLite says where the files beside a database find no room, and of a dozen other causes."""


def is_for_want_of_room(error: BaseException, folder: Path) -> bool:
    """Whether the error, or what caused it, is that the disk of `folder` is full. Blocks."""
    return any(_is_no_room(one, folder) for one in _causes(error))


def has_room(folder: Path, size: int = ROOM_BYTES) -> bool:
    """Whether so many bytes find room below `folder`; also where that cannot be told. Blocks."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            rest = memoryview(bytes(size))
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno not in NO_ROOM
    return True


def refuse_cramped(database: Path) -> None:
    """OSError where the memory that SQLite shares beside `database` finds no room. Blocks.

    SQLite sees to one block of each of its pages only: where blocks are smaller than these (small
    ext4 disks), the process would die by SIGBUS at the first write to another.
    """
    shared = database.with_name(database.name + "-shm")
    folder = database.parent
    if shared.exists() or os.statvfs(folder).f_bsize >= _SHM_PAGE_BYTES:
        return
    if not has_room(folder, _SHM_BYTES):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(shared))


def _is_no_room(error: BaseException, folder: Path) -> bool:
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    if not isinstance(error, sqlite3.Error):
        return False
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    return code == sqlite3.SQLITE_FULL or (code in _SAYS_LITTLE and not has_room(folder))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
