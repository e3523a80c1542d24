"""A full disk is told from all else that the disk may refuse, also where SQLite does not say so."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from pathlib import Path

import pytest

from datastore.engine import open_engine
from datastore.errors import DatastoreError, DiskFull
from datastore.index import Index
from datastore.kinds import KINDS
from datastore.layout import Layout
from datastore.room import has_room, is_for_want_of_room
from datastore.sqlite_file import is_full


def of_sqlite(code: int, text: str) -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def of_system(number: int) -> OSError:
    return OSError(number, os.strerror(number), "scratch")


def caused(cause: Exception) -> DatastoreError:
    try:
        raise DatastoreError("the index cannot be opened") from cause
    except DatastoreError as error:
        return error


FULL = of_sqlite(sqlite3.SQLITE_FULL, "database or disk is full")
IO_ERROR = of_sqlite(sqlite3.SQLITE_IOERR | 5 << 8, "disk I/O error")
BROKEN = of_sqlite(sqlite3.SQLITE_CORRUPT, "database disk image is malformed")


@pytest.mark.parametrize(
    ("error", "roomy", "cramped"),
    [
        (of_system(errno.ENOSPC), True, True),
        (of_system(errno.EDQUOT), True, True),
        (of_system(errno.EACCES), False, False),
        (FULL, True, True),
        (IO_ERROR, False, True),
        (of_sqlite(sqlite3.SQLITE_CANTOPEN, "unable to open database file"), False, True),
        (BROKEN, False, False),
        (DatastoreError("of our own"), False, False),
    ],
)
def test_what_is_for_want_of_room(
    error: Exception, roomy: bool, cramped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_for_want_of_room(error, tmp_path) is roomy
    assert is_for_want_of_room(caused(error), tmp_path) is roomy
    monkeypatch.setattr("datastore.room.has_room", lambda folder: False)
    assert is_for_want_of_room(caused(error), tmp_path) is cramped


def test_room_is_tried_and_leaves_nothing(tmp_path: Path) -> None:
    assert has_room(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert has_room(tmp_path / "not there"), "that is not for want of room"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("cause", [FULL, IO_ERROR])
def test_a_repository_on_a_full_disk_says_so_and_opens_later(
    cause: sqlite3.Error, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: "the journal cannot be read: disk I/O error" tempts to delete the journal."""
    open_engine(layout, KINDS.values()).abandon()
    before = open_files()

    def refuse(*_: object) -> None:
        raise cause

    with monkeypatch.context() as full:
        full.setattr("datastore.room.has_room", lambda folder: False)
        full.setattr(Index, "_open", refuse)
        with pytest.raises(DiskFull) as refused:
            open_engine(layout, KINDS.values())
    said = str(refused.value)
    assert said.startswith("the disk is full, make room on it and try again")
    assert "Nothing is damaged" in said
    assert said.endswith(f"index.db cannot be opened: {cause}")
    del refused
    assert open_files() == before, "it is tried again and again"
    engine = open_engine(layout, KINDS.values())
    engine.abandon()
    assert open_files() == before


def test_what_else_the_disk_refuses_stays_what_it_is(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise IO_ERROR

    monkeypatch.setattr(Index, "_open", refuse)
    with pytest.raises(DatastoreError, match="cannot be opened: disk I/O error") as refused:
        open_engine(layout, KINDS.values())
    assert not isinstance(refused.value, DiskFull)


@pytest.mark.parametrize("name", ["journal", "index"])
def test_where_the_memory_of_sqlite_finds_no_room_nothing_is_opened(
    name: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: on a disk with blocks of 1 KB, with 36 KB left, the server died by SIGBUS."""
    open_engine(layout, KINDS.values()).abandon()
    database: Path = getattr(layout, name)
    small = os.statvfs_result((1024, 1024, *os.statvfs(layout.root)[2:]))
    monkeypatch.setattr("datastore.room.os.statvfs", lambda folder: small)
    open_engine(layout, KINDS.values()).abandon()
    before = open_files()
    looks = iter([False] if name == "journal" else [True, False])
    with monkeypatch.context() as full:
        full.setattr("datastore.room.has_room", lambda *_: next(looks))
        with pytest.raises(DiskFull, match=f"{database.name}-shm: No space left on device|-shm'"):
            open_engine(layout, KINDS.values())
    open_engine(layout, KINDS.values()).abandon()
    assert open_files() == before


def test_the_memory_that_sqlite_shares_has_all_of_its_blocks_and_its_locks(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: they were missing where blocks are small, and taken on a full disk by SIGBUS."""
    small = os.statvfs_result((1024, 1024, *os.statvfs(layout.root)[2:]))
    monkeypatch.setattr("datastore.room.os.statvfs", lambda folder: small)
    engine = open_engine(layout, KINDS.values())
    try:
        for database in (layout.journal, layout.index):
            found = database.with_name(database.name + "-shm").stat()
            assert (found.st_size, found.st_blocks * 512 >= 1 << 17) == (1 << 17, True)
            held = Path("/proc/locks").read_text()
            assert f":{found.st_ino} " in held, "the lock of SQLite that it is in use"
    finally:
        engine.abandon()


@pytest.mark.parametrize(
    ("free", "takes", "full"),
    [(500, False, True), (500, True, False), (0, True, True), (1 << 20, False, False)],
)
def test_a_disk_may_be_full_of_which_some_is_told_to_be_free(
    free: int, takes: bool, full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: ext4 keeps blocks back that it counts as free, so that the journal went on where
    no file of a record could be written. Where much is free nothing is tried."""
    told = os.statvfs_result((1024, 1024, 1 << 24, free, free, *os.statvfs(tmp_path)[5:]))
    monkeypatch.setattr(os, "statvfs", lambda folder: told)
    if not takes:

        def refuse(*_: object, **__: object) -> None:
            raise of_system(errno.ENOSPC)

        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert is_full(tmp_path) is full
