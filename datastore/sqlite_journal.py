"""The journal on disk: a redo log in SQLite, written by one thread in group commits.

It promises that commits become durable whole and in order (WAL, `synchronous=FULL`: a transaction
is synced before anybody hears of it), and that whoever waits does so for two disk syncs at most:
each transaction takes everything that came meanwhile. A row lives until the YAML file and the
index that follow from it are on disk too (`delete_through`), so after a clean stop there is none.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datastore.errors import DatastoreError, Degraded
from datastore.hand_over import HandOver
from datastore.journal import Op, Put, Remove, Story
from datastore.journal_measures import JournalMeasures, Transaction
from datastore.sqlite_file import (
    Expect,
    IsHere,
    always,
    checkpoint,
    clear_place,
    connect,
    give_back,
    inode_of,
    is_broken,
    is_full,
    make_room_in_wal,
    nothing_else,
    put_whole,
    to_json,
    was_removed,
)
from datastore.trouble import Trouble

if TYPE_CHECKING:
    # Commands that only read (`datastore/reader.py`) start faster without it.
    import asyncio

log = logging.getLogger(__name__)

BATCH_MAX = 500
"""Records of one transaction; one commit of more goes alone."""
HISTORY = "history"
"""The `kind` of rows that hold the story of a finished run."""
LINGER_S = 0.001
"""How long a commit may wait for others, while each pass of the loop brings some."""
_DELETE_CHUNK, _BACKOFF_FIRST_S, _BACKOFF_MAX_S = 500, 0.05, 1.0
_BUSY_TIMEOUT_S, _LOOK_AT_DISK_S = 0.2, 0.1
_WAL_DUE_BYTES, _WAL_ROOM_BYTES = 4 * 1024 * 1024, 8 * 1024 * 1024
"""Of so much in it the WAL is begun again at its start; so much room it has from the beginning."""
_SCHEMA = """CREATE TABLE IF NOT EXISTS rows (
    seq INTEGER PRIMARY KEY, commit_no INTEGER NOT NULL,
    kind TEXT NOT NULL, name TEXT NOT NULL, body BLOB)"""

OnDurable = Callable[[], None]
OnBatch = Callable[[int, Sequence[Op]], None]
"""Told of each durable transaction: the seq of its first op, and its ops in order."""


@dataclass(frozen=True, slots=True)
class Row:
    """One change as it is stored; `body` is JSON, None for a removal."""

    seq: int
    commit_no: int
    kind: str
    name: str
    body: bytes | None


@dataclass(frozen=True, slots=True)
class _Commit:
    ops: tuple[Op, ...]
    on_durable: OnDurable | None
    queued_s: float = field(default_factory=time.monotonic)


class SqliteJournal:
    """See `datastore.journal.Journal`. `append` may be called before `start`."""

    def __init__(
        self,
        path: Path,
        with_room: bool = True,
        is_here: IsHere = always,
        expect: Expect = nothing_else,
    ) -> None:
        """Open or create the journal; DatastoreError when it cannot be read. `with_room`: its WAL
        gets all its room at once. `is_here`: see `was_removed`. `expect`: asked at each write."""
        self._path, self._with_room, self._is_here = path, with_room, is_here
        self._expect = expect
        self.measures = JournalMeasures()
        self._handed: HandOver[_Commit] = HandOver(LINGER_S)
        self._taken: deque[_Commit] = deque()
        self._acknowledged: deque[OnDurable] = deque()
        self._thread: threading.Thread | None = None
        self._trouble: str | None = None
        self._delete_through = 0
        self._wal_bytes = 0
        self._look_at_disk_s = 0.0
        self._give_up_at: float | None = None
        self._given_up = False
        self._no_checkpoint = Trouble("the journal's checkpoint failed", log)
        self._no_deletion = Trouble("rows of the journal stay for now", log)
        self._no_move = Trouble("the journal cannot be written anew", log)
        try:
            self._db = _connect(path, with_room)
            last = self._db.execute("SELECT min(seq), max(seq), max(commit_no) FROM rows")
            first_seq, last_seq, last_commit_no = last.fetchone()
        except sqlite3.Error as error:
            raise DatastoreError(_unreadable(path, error)) from error
        self._inode = inode_of(path)
        self._deleted_through = (first_seq or 1) - 1
        self._next_seq = (last_seq or 0) + 1
        self._next_commit_no = (last_commit_no or 0) + 1

    @property
    def trouble(self) -> str | None:
        """Why the disk refuses writes just now; None while all is well."""
        return self._trouble

    @property
    def last_seq(self) -> int:
        """The seq of the newest durable row ever, deleted or not; 0 before the first."""
        return self._next_seq - 1

    def rows(self) -> Iterator[Row]:
        """Every row in order, as an earlier process left them. Only before `start`."""
        try:
            for row in self._db.execute("SELECT * FROM rows ORDER BY seq"):
                yield Row(*row)
        except sqlite3.Error as error:
            raise DatastoreError(_unreadable(self._path, error)) from error

    def start(self, loop: asyncio.AbstractEventLoop, on_batch: OnBatch) -> None:
        """Begin to write. `on_batch` runs in the writer's thread, `on_durable` on `loop`."""
        self._loop = loop
        self._handed.bind(loop)
        self._on_batch = on_batch
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @property
    def removed(self) -> bool:
        """Whether the file is not at its path any more."""
        return was_removed(self._path, self._inode, self._is_here)

    def restore(self) -> None:
        """Have a file that was removed written again soon, also when nothing else is written."""
        self._handed.wake()

    def append(self, ops: tuple[Op, ...], on_durable: OnDurable | None = None) -> None:
        """Queue one commit; see `datastore.journal.Journal.append`."""
        self._handed.put(_Commit(ops, on_durable))

    def delete_through(self, seq: int) -> None:
        """Let go of the rows up to `seq`, soon and in small pieces. Call it from another thread.

        Most of the checkpoint of the WAL happens here, on a connection of its own, so that what
        is left for the writer's thread is short.
        """
        with self._no_checkpoint.caught():
            self._wal_bytes = checkpoint(self._path)
        self._delete_through = max(self._delete_through, seq)
        self._handed.wake()

    def stop(self, give_up_after_s: float = 30.0) -> None:
        """Write everything that was appended and end the thread. Blocks.

        Degraded when the disk refuses for longer than `give_up_after_s`; what was not written was
        not acknowledged either.
        """
        if self._thread is not None:
            self._give_up_at = time.monotonic() + give_up_after_s
            self._handed.flush()
            self._thread.join()
            self._thread = None
        if self._given_up:
            raise Degraded(f"stopped before the last changes were on disk: {self._trouble}")

    def close(self, delete_through: int = 0) -> None:
        """Close the file, after `stop`; first let go of the rows up to `delete_through`.

        OSError where they may be another process's by now: its numbers may have begun anew.
        """
        try:
            self._expect()
            self._db.execute("DELETE FROM rows WHERE seq <= ?", (delete_through,))
            give_back(self._db)
        finally:
            self._db.close()

    # -- the writer's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException:
            # Without a writer nothing may be taken on any more; the traceback goes to stderr.
            self._trouble = "the journal's writer ended by an error of ours; restart the server"
            raise

    def _serve(self) -> None:
        while True:
            batch = self._take()
            if batch and not self._write_until_done(batch):
                return
            if not batch:
                self._stay()
            self._delete_some()
            if not batch and self._give_up_at is not None:
                return

    def _take(self) -> list[_Commit]:
        """Everything that waits, within BATCH_MAX; nothing when only woken or told to stop."""
        if not self._taken and self._may_wait():
            self._taken.extend(self._handed.get())
        while (more := self._handed.get_nowait()) is not None:
            self._taken.extend(more)
        commits: list[_Commit] = []
        size = 0
        while self._taken and (not commits or size + len(self._taken[0].ops) <= BATCH_MAX):
            size += len(self._taken[0].ops)
            commits.append(self._taken.popleft())
        return commits

    def _may_wait(self) -> bool:
        """Whether there is nothing to do but to wait for commits."""
        return self._give_up_at is None and self._deleted_through >= self._delete_through

    def _write_until_done(self, batch: list[_Commit]) -> bool:
        """Write one transaction, the same one until it is through; False when told to give up."""
        backoff_s = _BACKOFF_FIRST_S
        rows: list[tuple[Any, ...]] = []
        began_s = time.monotonic()
        while True:
            try:
                again, rows = bool(rows), rows or self._encode(batch)
                self._write(rows, again)
                break
            except (sqlite3.Error, OSError, ValueError, TypeError) as error:
                self._say_trouble(error)
            if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
                self._given_up = True
                return False
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
        if self._trouble is not None:
            log.warning("the journal takes writes again")
            self._trouble = None
        queued_s, written = [one.queued_s for one in batch], Transaction(began_s, time.monotonic())
        self._acknowledged.append(self.measures.note(queued_s, len(rows), written))
        first_seq = self._next_seq
        self._next_seq += len(rows)
        self._next_commit_no += len(batch)
        self._on_batch(first_seq, [op for commit in batch for op in commit.ops])
        self._acknowledge(batch)
        return True

    def _encode(self, batch: list[_Commit]) -> list[tuple[Any, ...]]:
        commits = enumerate(batch, self._next_commit_no)
        ops = ((number, op) for number, commit in commits for op in commit.ops)
        return [(seq, number, *_row_of(op)) for seq, (number, op) in enumerate(ops, self._next_seq)]

    def _write(self, rows: list[tuple[Any, ...]], again: bool) -> None:
        if self.removed:
            self._expect()
            self._move()
        self._refuse_if_full()
        self._expect()
        # `again`: a COMMIT that failed may have left the very same rows behind. Whoever has taken
        # the lock meanwhile may write over these: then nobody is told of them.
        put_whole(self._db, "rows", rows, again)
        self._expect()

    def _refuse_if_full(self) -> None:
        """The room of the WAL is for speed. What is taken on has to get into its files as well."""
        now_s = time.monotonic()
        if self._trouble is None and now_s < self._look_at_disk_s:
            return
        self._look_at_disk_s = now_s + _LOOK_AT_DISK_S
        if self._is_here() and is_full(self._path.parent):
            raise OSError(errno.ENOSPC, "the disk is full")

    def _move(self) -> None:
        """Go on in a new file: this one was removed (`git clean -fdx`) and ends with the process.

        Its rows go along, as they can still be read.
        """
        log.warning("the journal %s was removed while in use; it is written anew", self._path)
        clear_place(self._path)
        db = _connect(self._path, self._with_room)
        try:
            put_whole(db, "rows", self._db.execute("SELECT * FROM rows").fetchall())
        except BaseException:
            db.close()
            raise
        self._db.close()
        self._db, self._inode = db, inode_of(self._path)

    def _stay(self) -> None:
        """Go on in a new file although nothing is to be written just now."""
        with self._no_move.caught():
            if self.removed:
                self._move()

    def _say_trouble(self, error: Exception) -> None:
        reason = f"the journal {self._path} cannot be written: {error}"
        if reason != self._trouble:
            log.error("%s; retrying until it can", reason)
        self._trouble = reason

    def _acknowledge(self, batch: list[_Commit]) -> None:
        self._acknowledged.extend(c.on_durable for c in batch if c.on_durable is not None)
        try:
            self._loop.call_soon_threadsafe(self._call_back)
        except RuntimeError:
            # The loop is closed: nobody is left who could be told.
            self._acknowledged.clear()

    def _call_back(self) -> None:
        """On the loop: call what waits, in order, the rest also when one of them raises."""
        try:
            while self._acknowledged:
                self._acknowledged.popleft()()
        finally:
            if self._acknowledged:
                self._loop.call_soon(self._call_back)

    def _delete_some(self) -> None:
        """Delete a chunk of rows that are not needed any more, between two transactions.

        Without a sync: a deletion that a crash undoes is only replayed once more.
        """
        through = min(self._delete_through, self._deleted_through + _DELETE_CHUNK)
        if through <= self._deleted_through:
            return
        try:
            self._expect()
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("DELETE FROM rows WHERE seq <= ?", (through,))
            if through == self._delete_through and self._wal_bytes > _WAL_DUE_BYTES:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (sqlite3.Error, OSError) as error:
            self._no_deletion.found(error)
            self._delete_through = self._deleted_through
        else:
            self._deleted_through = through
            self._no_deletion.over()
        finally:
            self._db.execute("PRAGMA synchronous=FULL")


def _row_of(op: Op) -> tuple[str, str, bytes | None]:
    match op:
        case Put(record, status_only):
            # A big spec is not written again each time a status changes.
            document = record.status_document() if status_only else record.document()
            return record.kind.folder, record.name, to_json(document)
        case Remove(kind, name):
            return kind.folder, name, None
        case Story(workflow, run, text):
            return HISTORY, run, to_json({"workflow": workflow, "text": text})


def _connect(path: Path, with_room: bool) -> sqlite3.Connection:
    db = connect(
        path,
        _BUSY_TIMEOUT_S,
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        # Checkpoints run beside the commits (`delete_through`), not inside an unlucky one of them.
        "PRAGMA wal_autocheckpoint=0",
        f"PRAGMA journal_size_limit={_WAL_ROOM_BYTES}",
        _SCHEMA,
    )
    with suppress(OSError):
        make_room_in_wal(path, _WAL_ROOM_BYTES if with_room else 0)
    return db


def _unreadable(path: Path, error: sqlite3.Error) -> str:
    found = f"the journal {path} cannot be read: {error}"
    if not is_broken(error):
        return found
    return (
        f"{found}. It may hold changes that are nowhere else: restore it, or move it away "
        "and start again with what the files of observed/ show"
    )
