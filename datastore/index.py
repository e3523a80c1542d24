"""The index: for every file of `observed/`, and every definition, its stat and its content as JSON.

It spares a start the parsing of YAML, and it vouches: a file whose stat it knows is one that the
server wrote. It is disposable: whatever is wrong with it, it is deleted and begun anew, and only
what nobody vouches for any more is then looked at with care (`datastore/engine.py`).
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from datastore.errors import DatastoreError
from datastore.files import Edition, Stat
from datastore.sqlite_file import (
    Expect,
    IsHere,
    always,
    clear_place,
    connect,
    inode_of,
    is_broken,
    nothing_else,
    put_rows,
    transaction,
    wal_path,
    was_removed,
)

log = logging.getLogger(__name__)

VERSION = 1
_BUSY_TIMEOUT_S = 2.0
_NAMES = "name, mtime_ns, size, inode, finished, document"
_COLUMNS = """name TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL,
    inode INTEGER NOT NULL, finished INTEGER NOT NULL, document BLOB NOT NULL"""


DEFINITIONS = "definitions"
_DEFINITION_COLUMNS = """path TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL,
    inode INTEGER NOT NULL, digest BLOB NOT NULL, meaning TEXT NOT NULL, name TEXT NOT NULL,
    id TEXT NOT NULL, document BLOB NOT NULL"""
"""Its `mtime_ns` holds the ctime: the name is older, and another VERSION drops all tables."""


class DefinitionRow(NamedTuple):
    """One definition as it was parsed: its file, below the repository, and what that says."""

    path: str
    stat: Edition
    digest: bytes
    meaning: str
    """Of the code that parsed it: another version of it may understand the file otherwise."""
    name: str
    id: str
    document: bytes


class IndexRow(NamedTuple):
    """One file as it was written: its stat, whether its record is finished, its JSON."""

    name: str
    stat: Stat
    finished: bool
    document: bytes


class IndexTable(NamedTuple):
    """All rows of a kind by name: the stats of the files, and their JSON, apart by what it is."""

    stats: dict[str, Stat]
    finished: dict[str, bytes]
    live: dict[str, bytes]


def open_index(
    path: Path, kinds: Iterable[str], is_here: IsHere = always, expect: Expect = nothing_else
) -> Index:
    """The index at `path`, a new one if need be; DatastoreError where the disk refuses."""
    try:
        return Index(path, kinds, is_here, expect)
    except (OSError, sqlite3.Error) as error:
        raise DatastoreError(f"the index {path} cannot be opened: {error}") from error


class Index:
    """One table per kind, so that reading one kind costs nothing for the others.

    Methods raise sqlite3.Error when the disk refuses, DatabaseError when the file is broken; those
    that write raise what `expect` does. Not thread-safe: one thread at a time.
    """

    def __init__(
        self,
        path: Path,
        kinds: Iterable[str],
        is_here: IsHere = always,
        expect: Expect = nothing_else,
    ) -> None:
        """Open the index at `path`, or begin a new one if there is none or it is of no use."""
        self._path, self._is_here, self._expect = path, is_here, expect
        self._kinds = tuple(kinds)
        try:
            self._db, self._inode = self._open()
        except sqlite3.Error as error:
            if not is_broken(error):
                raise
            self._begin(str(error))

    def rows(self, kind: str) -> Iterator[IndexRow]:
        """Every row of a kind."""
        for name, mtime_ns, size, inode, finished, document in self._db.execute(
            f'SELECT {_NAMES} FROM "{kind}"'
        ):
            yield IndexRow(name, Stat(mtime_ns, size, _unsigned(inode)), bool(finished), document)

    def table(self, kind: str) -> IndexTable:
        """As `rows`, for a start: there may be some 100,000, and all are kept."""
        stats: dict[str, Stat] = {}
        finished: dict[str, bytes] = {}
        live: dict[str, bytes] = {}
        for name, mtime_ns, size, inode, is_finished, document in self._db.execute(
            f'SELECT {_NAMES} FROM "{kind}"'
        ):
            stats[name] = Stat(mtime_ns, size, inode if inode >= 0 else _unsigned(inode))
            (finished if is_finished else live)[name] = document
        return IndexTable(stats, finished, live)

    def document(self, kind: str, name: str) -> bytes | None:
        """The content of one file as JSON, None for one that is not known."""
        found = self._db.execute(f'SELECT document FROM "{kind}" WHERE name = ?', (name,))
        row = found.fetchone()
        return None if row is None else bytes(row[0])

    def finished(self, kind: str, names: Iterable[str]) -> dict[str, bytes]:
        """The documents, by name, of those of the records that are there and finished."""
        found: dict[str, bytes] = {}
        select = f'SELECT document FROM "{kind}" WHERE name = ? AND finished'
        for name in names:
            row = self._db.execute(select, (name,)).fetchone()
            if row is not None:
                found[name] = bytes(row[0])
        return found

    def update(
        self,
        puts: Iterable[tuple[str, IndexRow]] = (),
        removals: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Write rows and remove others, by kind, all in one transaction."""
        self._expect()
        if self.removed:
            self._move()
        _write(self._db, puts, removals)

    def definitions(self) -> Iterator[DefinitionRow]:
        """Every definition."""
        select = f"SELECT * FROM {DEFINITIONS}"
        intern, row = sys.intern, DefinitionRow._make
        for path, ctime_ns, size, inode, digest, meaning, name, id, document in self._db.execute(
            select
        ):
            stat = Edition(ctime_ns, size, inode if inode >= 0 else _unsigned(inode))
            # The same for almost all, and all rows are kept: one string does for them.
            yield row((path, stat, digest, intern(meaning), name, id, document))

    def update_definitions(
        self, puts: Iterable[DefinitionRow] = (), removals: Iterable[str] = ()
    ) -> None:
        """Write definitions and remove others, by path, all in one transaction."""
        self._expect()
        if self.removed:
            self._move()
        with transaction(self._db):
            _put_definitions(self._db, puts)
            delete = f"DELETE FROM {DEFINITIONS} WHERE path = ?"
            self._db.executemany(delete, ((path,) for path in removals))

    @property
    def removed(self) -> bool:
        """Whether the file is not at its path any more; any thread may ask."""
        return was_removed(self._path, self._inode, self._is_here)

    def rebuild(self, reason: str) -> None:
        """Throw the file away and begin an empty one."""
        self._db.close()
        self._begin(reason)

    def sync(self) -> None:
        """Return when every row written before is on disk."""
        if self.removed:
            self._move()
        # What is not in the WAL any more was synced by the checkpoint that moved it. Only this
        # file may be opened beside SQLite: closing the others would drop its locks.
        descriptor = os.open(wal_path(self._path), os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close the file; its last rows move from the WAL into it."""
        self._db.close()

    def _move(self) -> None:
        """Go on in a new file: this one was removed (`git clean -fdx`) and ends with the process.

        Its rows go along, as they can still be read.
        """
        log.warning("the index %s was removed while in use; it is written anew", self._path)
        rows = [(kind, row) for kind in self._kinds for row in self.rows(kind)]
        definitions = list(self.definitions())
        clear_place(self._path)
        db, inode = self._open()
        try:
            _write(db, rows, ())
            with transaction(db):
                _put_definitions(db, definitions)
        except BaseException:
            db.close()
            raise
        self._db.close()
        self._db, self._inode = db, inode

    def _begin(self, reason: str) -> None:
        log.warning("the index %s is begun anew: %s", self._path, reason)
        clear_place(self._path)
        self._db, self._inode = self._open()

    def _open(self) -> tuple[sqlite3.Connection, int | None]:
        db = connect(self._path, _BUSY_TIMEOUT_S, "PRAGMA journal_mode=WAL")
        try:
            db.execute("PRAGMA synchronous=NORMAL")
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, VERSION):
                self._drop_tables(db)
            for kind in self._kinds:
                db.execute(f'CREATE TABLE IF NOT EXISTS "{kind}" ({_COLUMNS})')
                db.execute(f'SELECT {_NAMES} FROM "{kind}" LIMIT 0')
            db.execute(f"CREATE TABLE IF NOT EXISTS {DEFINITIONS} ({_DEFINITION_COLUMNS})")
            db.execute(f"PRAGMA user_version={VERSION}")
        except BaseException:
            db.close()
            raise
        return db, inode_of(self._path)

    def _drop_tables(self, db: sqlite3.Connection) -> None:
        log.warning("the index %s is of another version and begun anew", self._path)
        tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            db.execute(f'DROP TABLE "{table}"')


def _write(
    db: sqlite3.Connection,
    puts: Iterable[tuple[str, IndexRow]],
    removals: Iterable[tuple[str, str]],
) -> None:
    with transaction(db):
        rows: dict[str, list[tuple[Any, ...]]] = {}
        for kind, row in puts:
            columns = (row.name, *_columns(row.stat), row.finished, row.document)
            rows.setdefault(kind, []).append(columns)
        for kind, of_kind in rows.items():
            put_rows(db, kind, of_kind)
        for kind, name in removals:
            db.execute(f'DELETE FROM "{kind}" WHERE name = ?', (name,))


def _put_definitions(db: sqlite3.Connection, puts: Iterable[DefinitionRow]) -> None:
    put_rows(db, DEFINITIONS, [(row.path, *_columns(row.stat), *row[2:]) for row in puts])


def _columns(stat: Stat | Edition) -> tuple[int, int, int]:
    changed_ns, size, inode = stat
    return changed_ns, size, _signed(inode)


def _signed(inode: int) -> int:
    """An inode number as SQLite can hold it: some file systems use all 64 bits."""
    return inode - (1 << 64) if inode >= 1 << 63 else inode


def _unsigned(inode: int) -> int:
    return inode + (1 << 64) if inode < 0 else inode
