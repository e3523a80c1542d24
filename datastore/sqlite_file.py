"""What the journal and the index ask of SQLite alike."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pydantic_core

from datastore.regular_file import oddity
from datastore.room import (
    has_room,
    keep_shared_whole,
    refuse_cramped,
    shares_in_small_blocks,
)

ROWS_AT_ONCE = (64, 32, 16, 8, 4, 2, 1)
"""Rows of one statement. After each the thread waits for the interpreter: row by row, a transaction
of many took as long as the event loop had work."""
IsHere = Callable[[], bool]
"""Whether the repository's folder is at its path."""
Expect = Callable[[], None]
"""OSError where nothing may be written."""

_KEPT_BACK_BYTES = 64 << 20
"""More than any file system keeps back."""

FREE_BYTES = 16 << 20
"""So much may be free in a file for rows to come."""

_FRAME_HEADER = 24
"""Bytes before each page in a WAL."""
_BROKEN = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def is_broken(error: sqlite3.Error) -> bool:
    """Whether the file itself is of no use: corrupt, no database, or of another schema.

    A file that is locked, or on a full disk, is not.
    """
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF in _BROKEN


def connect(path: Path, timeout_s: float, *statements: str) -> sqlite3.Connection:
    """The database at `path`, made ready by these statements, or closed again; for any thread.

    OSError where the disk has no room for what SQLite keeps beside it.
    """
    refuse_cramped(path)
    db = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    try:
        for statement in statements:
            db.execute(statement)
        # A look into it, as before that there may be nothing beside it yet.
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
        keep_shared_whole(path)
    except BaseException:
        db.close()
        raise
    return db


def checkpoint(path: Path) -> int:
    """Move what the WAL of the database at `path` holds into it, as far as nobody has to wait.

    The answer is the size of what the WAL held, in bytes: its file may be larger.
    """
    db = sqlite3.connect(path, timeout=0)
    try:
        _, frames, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        (page_size,) = db.execute("PRAGMA page_size").fetchone()
    finally:
        db.close()
    # -1 where another checkpoint runs just now.
    return max(0, int(frames)) * (int(page_size) + _FRAME_HEADER)


def is_full(folder: Path) -> bool:
    """Whether this process could not write one block more to the disk of the folder.

    Of what is told to be free, a file system may keep some back (ext4, for its own needs, from
    everybody): so where little is left, it is tried. A quota shows only when it is met.
    """
    found = os.statvfs(folder)
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    if not found.f_blocks or free * found.f_frsize > _KEPT_BACK_BYTES:
        return False
    return free == 0 or not has_room(folder, found.f_frsize)


def make_room_in_wal(path: Path, size: int) -> None:
    """Have the WAL of the database at `path` be of that many bytes at least, all of them on disk.

    SQLite writes its frames over what is there, and takes what is none of them for the end. A sync
    of what lies inside a file waits for no other change of the file system; one of a file that
    grows waits for all of them, three to ten times as long beside somebody who makes files.

    Only for the one who writes to the database, between two transactions. OSError when the disk
    has no such room; the file is then as it was.
    """
    handle = os.open(wal_path(path), os.O_WRONLY | os.O_NONBLOCK)
    try:
        before = os.fstat(handle).st_size
        if before >= size:
            return
        try:
            rest, at = memoryview(bytes(size - before)), before
            while rest:
                # Short where the disk ends; what is asked for beyond that is an error.
                written = os.pwrite(handle, rest, at)
                rest, at = rest[written:], at + written
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, before)
            raise
    finally:
        os.close(handle)


def open_to_read(path: Path, timeout_s: float = 1.0) -> sqlite3.Connection:
    """The database at `path` for reading alone, also on a disk that takes no writes at all."""
    for file in (path, wal_path(path)):
        # SQLite would open a pipe, and wait.
        odd = oddity(file)
        if odd is not None:
            error = sqlite3.DatabaseError(odd)
            error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
            raise error
    uri = f"{path.resolve().as_uri()}?mode=ro"
    if shares_in_small_blocks(path):
        with suppress(sqlite3.OperationalError):
            # It makes for itself what nobody else holds, and writes to no file.
            return _looked_into(f"{uri}&readonly_shm=1", timeout_s)
    try:
        _expect_room(path)
        return _looked_into(uri, timeout_s)
    except sqlite3.OperationalError as error:
        wal = wal_path(path)
        if not _needs_no_wal(error) or (wal.exists() and wal.stat().st_size):
            raise
        # A WAL database wants a file beside it even for reading; without a WAL nothing is missed.
        return sqlite3.connect(f"{uri}&immutable=1", uri=True, timeout=timeout_s)


def _expect_room(path: Path) -> None:
    try:
        refuse_cramped(path)
    except OSError as refused:
        error = sqlite3.OperationalError(f"the disk is full: {refused}")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error from refused


def _looked_into(uri: str, timeout_s: float) -> sqlite3.Connection:
    db = sqlite3.connect(uri, uri=True, timeout=timeout_s)
    try:
        db.execute("SELECT 1 FROM sqlite_master")
    except BaseException:
        db.close()
        raise
    return db


def _needs_no_wal(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    return code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL)


def wal_path(path: Path) -> Path:
    """Where SQLite keeps the WAL of the database at `path`."""
    return path.with_name(path.name + "-wal")


def inode_of(path: Path) -> int | None:
    """Which file is at `path`; None without one."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def was_removed(path: Path, inode: int | None, is_here: IsHere) -> bool:
    """Whether the file of that inode was removed from `path`.

    Not where the repository `is_here` no more: the file has gone along with it then.
    """
    return inode_of(path) != inode and is_here()


def always() -> bool:
    """For a file in a folder that nobody moves."""
    return True


def nothing_else() -> None:
    """For a file that nobody else writes."""


def clear_place(path: Path) -> None:
    """Have a folder for a new database at `path`, and nothing there that SQLite would replay."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    for part in (path, wal_path(path), path.with_name(path.name + "-shm")):
        part.unlink(missing_ok=True)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All that is written meanwhile, or none of it."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def put_rows(
    db: sqlite3.Connection, table: str, rows: Sequence[tuple[Any, ...]], over: bool = True
) -> None:
    """Insert rows of one length into the table, in the place of those with the same key.

    Not `over` these: sqlite3.IntegrityError where there are some.
    """
    at, verb = 0, "INSERT OR REPLACE" if over else "INSERT"
    for count in ROWS_AT_ONCE:
        while len(rows) - at >= count:
            one = f"({', '.join('?' * len(rows[at]))})"
            some = [value for row in rows[at : at + count] for value in row]
            values = ", ".join([one] * count)
            db.execute(f'{verb} INTO "{table}" VALUES {values}', some)
            at += count


def put_whole(
    db: sqlite3.Connection, table: str, rows: Sequence[tuple[Any, ...]], over: bool = True
) -> None:
    """As `put_rows`, in one transaction: all of them on disk, or none."""
    if len(rows) in ROWS_AT_ONCE:
        # One statement is a transaction by itself.
        put_rows(db, table, rows, over=over)
        return
    with transaction(db):
        put_rows(db, table, rows, over=over)


def used_bytes(db: sqlite3.Connection) -> tuple[int, int]:
    """How long the file is that the rows need, and how much of it is free for others; in bytes."""
    page, pages, free = (
        db.execute(f"PRAGMA {what}").fetchone()[0]
        for what in ("page_size", "page_count", "freelist_count")
    )
    return (pages - free) * page, free * page


def give_back(db: sqlite3.Connection) -> None:
    """Have the file no longer than its rows need, if most of a long one is free."""
    with suppress(sqlite3.Error):
        used, free = used_bytes(db)
        if free > max(used, FREE_BYTES):
            db.execute("VACUUM")


def to_json(document: Any) -> bytes:
    """A document, or a part of one, as compact JSON, keys in their order."""
    try:
        return pydantic_core.to_json(document)
    except ValueError:
        # A lone surrogate; this writes it as an escape, in four times the time.
        return json.dumps(document, separators=(",", ":")).encode("ascii")
