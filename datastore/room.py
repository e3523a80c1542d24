"""Whether it was for want of room that the disk refused, whoever says so, and in whatever words.

SQLite calls a full disk by three names, and a file system keeps room back that `statvfs` counts as
free (ext4, for its own needs) or gives less than that (a quota): what can be written is tried.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))
ROOM_BYTES = 1 << 20
"""What opening a repository needs at the least: files beside both databases, and their pages."""
_SHM_PAGE_BYTES, _SHM_BYTES = 4096, 1 << 17
_kept: dict[Path, int] = {}
"""The descriptors of `keep_shared_whole`, by database."""
_SAYS_LITTLE = frozenset((sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN))
"""What SQLite says where the files beside a database find no room, and of a dozen other causes."""


def is_for_want_of_room(error: BaseException, folder: Path) -> bool:
    """Whether the error, or what caused it, is that the disk of `folder` is full. Blocks."""
    return any(_is_no_room(one, folder) for one in _causes(error))


def has_room(folder: Path, size: int = ROOM_BYTES) -> bool:
    """Whether so many bytes find room below `folder`; also where that cannot be told. Blocks."""
    import tempfile

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
    ext4 disks), the process would die by SIGBUS at the first write to another. What is there
    already says nothing: whoever opens it first begins it anew.
    """
    if _has_small_blocks(database.parent) and not has_room(database.parent, _SHM_BYTES):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(_shared(database)))


def keep_shared_whole(database: Path) -> None:
    """Take all blocks of the memory that SQLite shares, once `database` is open there; OSError.

    So it needs none later, on a disk that is full by then, for as long as the WAL has less than 64
    MB. Our descriptor stays open: to close it would drop the locks of this process on that file.
    """
    if not _has_small_blocks(database.parent):
        return
    shared, kept = _shared(database), _kept.get(database)
    if kept is None or not os.path.samestat(os.fstat(kept), os.stat(shared)):
        _kept[database] = os.open(shared, os.O_RDWR | os.O_CLOEXEC)
        if kept is not None:
            os.close(kept)
    os.posix_fallocate(_kept[database], 0, _SHM_BYTES)


def shares_in_small_blocks(database: Path) -> bool:
    """Whether what SQLite shares beside it is there, and may have holes."""
    return _has_small_blocks(database.parent) and _shared(database).exists()


def _has_small_blocks(folder: Path) -> bool:
    try:
        return os.statvfs(folder).f_bsize < _SHM_PAGE_BYTES
    except OSError:
        # There is no folder, say: SQLite tells it better.
        return False


def _shared(database: Path) -> Path:
    return database.with_name(database.name + "-shm")


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
