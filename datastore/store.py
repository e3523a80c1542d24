"""The store: records in memory, swapped at once, durable by a journal behind a barrier.

Reads are plain calls on frozen records. A caller reads, decides and commits in one `def`; the
next reader already sees it, so there is nothing to reserve. Before anything leaves the process
there is a barrier: `await store.barrier()`, or `store.after_barrier(send)` where awaiting would
cost a task.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from datastore.desired import DesiredFile
from datastore.errors import AlreadyExists, Conflict, InvalidTransition, NotFound
from datastore.journal import Journal, Op, Put, Remove, Story
from datastore.listing import LOADED, Listing
from datastore.record import Kind, Model, Record

S = TypeVar("S", bound=Model)
T = TypeVar("T", bound=Model)
Wake = Callable[[str], None]


class _Table:
    """All records of one kind: finished ones as bytes until somebody reads them."""

    def __init__(self, kind: Kind[Any, Any]) -> None:
        self.kind = kind
        self.rows: dict[str, Record[Any, Any] | bytes] = {}
        self.live: dict[str, Record[Any, Any]] = {}
        self.live_indexes: dict[str, dict[str, dict[str, None]]] = {
            index: {} for index in kind.live_indexes
        }
        self.name_indexes: dict[str, dict[str, dict[str, None]]] = {
            index: {} for index in kind.name_indexes
        }
        self.watchers: list[Wake] = []
        self.packed = 0
        """How many rows are bytes."""

    def find(self, name: str) -> Record[Any, Any] | None:
        row = self.rows.get(name)
        if isinstance(row, bytes):
            return self.kind.load(json.loads(row), revision=LOADED)
        return row

    def put(self, record: Record[Any, Any]) -> None:
        name = record.name
        self._drop_live(name)
        self.packed -= type(self.rows.get(name)) is bytes
        self.rows[name] = record
        for index, value_of in self.kind.name_indexes.items():
            self.name_indexes[index].setdefault(value_of(name), {})[name] = None
        if record.live:
            self.live[name] = record
            for index, value_of_record in self.kind.live_indexes.items():
                value = value_of_record(record)
                if value is not None:
                    self.live_indexes[index].setdefault(value, {})[name] = None

    def put_bytes(self, documents: Mapping[str, bytes]) -> None:
        """Finished records as they were stored, parsed only when read."""
        self.packed += sum(type(self.rows.get(name)) is not bytes for name in documents)
        self.rows.update(documents)
        for index, value_of in self.kind.name_indexes.items():
            by_value = self.name_indexes[index]
            for name in documents:
                value = value_of(name)
                names = by_value.get(value)
                if names is None:
                    by_value[value] = {name: None}
                else:
                    names[name] = None

    def remove(self, name: str) -> None:
        self._drop_live(name)
        self.packed -= type(self.rows.pop(name, None)) is bytes
        for index, value_of in self.kind.name_indexes.items():
            self._drop(self.name_indexes[index], value_of(name), name)

    def _drop_live(self, name: str) -> None:
        old = self.live.pop(name, None)
        if old is None:
            return
        for index, value_of in self.kind.live_indexes.items():
            value = value_of(old)
            if value is not None:
                self._drop(self.live_indexes[index], value, name)

    @staticmethod
    def _drop(index: dict[str, dict[str, None]], value: str, name: str) -> None:
        names = index.get(value)
        if names is not None:
            names.pop(name, None)
            if not names:
                del index[value]


class Store:
    """Records of all kinds. Use it from one thread, the event loop's."""

    def __init__(
        self,
        kinds: Iterable[Kind[Any, Any]],
        journal: Journal,
        *,
        deliver: Callable[[Wake, str], None] | None = None,
    ) -> None:
        """`deliver` calls a watcher with a name; simulations delay or lose the call there."""
        self._tables = {kind.folder: _Table(kind) for kind in kinds}
        self._journal = journal
        self._deliver = deliver
        self._revision = LOADED
        self._committed = 0
        self._durable = 0
        self._after: deque[tuple[int, Callable[[], None]]] = deque()
        self._desired: dict[tuple[str, str], DesiredFile] = {}
        self._heeded: Callable[[], str | None] = lambda: None

    # -- loading ---------------------------------------------------------------------------------

    def load(self, record: Record[Any, Any]) -> None:
        """Take a record found on disk, before anything else happens; no journal, no watch."""
        self._tables[record.kind.folder].put(record.at(LOADED))

    def load_finished(self, kind: Kind[Any, Any], documents: Mapping[str, bytes]) -> None:
        """Take finished records found on disk, by name, as the JSON they were stored as."""
        self._tables[kind.folder].put_bytes(documents)

    # -- reading ---------------------------------------------------------------------------------

    def find(self, kind: Kind[S, T], name: str) -> Record[S, T] | None:
        """The record, or None."""
        # Without a detour by the table: dozens of times for every step.
        row: Any = self._tables[kind.folder].rows.get(name)
        return kind.load(json.loads(row), revision=LOADED) if type(row) is bytes else row

    def has(self, kind: Kind[Any, Any], name: str) -> bool:
        """Whether there is such a record; nothing parsed."""
        return name in self._tables[kind.folder].rows

    def get(self, kind: Kind[S, T], name: str) -> Record[S, T]:
        """The record; NotFound without it."""
        record = self.find(kind, name)
        if record is None:
            raise NotFound(f"no {kind.title} named '{name}'")
        return record

    def list(self, kind: Kind[S, T], names: Iterable[str] | None = None) -> Listing[S, T]:
        """Every record, or those of the names, as they are now: for people, not for loops.

        Finished ones are parsed one by one when their turn comes, in any thread.
        """
        rows = self._tables[kind.folder].rows
        if names is None:
            return Listing(kind, dict(rows))
        return Listing(kind, {name: rows[name] for name in names if name in rows})

    def live(self, kind: Kind[S, T]) -> tuple[Record[S, T], ...]:
        """The records to which something can still happen."""
        return tuple(self._tables[kind.folder].live.values())

    def live_count(self, kind: Kind[Any, Any]) -> int:
        """How many records something can still happen to."""
        return len(self._tables[kind.folder].live)

    def by(self, kind: Kind[S, T], index: str, value: str) -> tuple[Record[S, T], ...]:
        """Records found by an index of the kind: live ones only, or by name all of them."""
        table = self._tables[kind.folder]
        if index in table.live_indexes:
            names = table.live_indexes[index].get(value, {})
            return tuple(table.live[name] for name in names)
        found = (table.find(name) for name in tuple(table.name_indexes[index].get(value, {})))
        return tuple(record for record in found if record is not None)

    def names_by(self, kind: Kind[Any, Any], index: str, value: str) -> tuple[str, ...]:
        """Names found by an index, nothing parsed."""
        table = self._tables[kind.folder]
        source = table.live_indexes if index in table.live_indexes else table.name_indexes
        return tuple(source[index].get(value, {}))

    def unpacked_by(self, kind: Kind[Any, Any], index: str, value: str) -> tuple[str, ...]:
        """Those of `names_by` that `compact` has not put away, finished or not yet."""
        rows = self._tables[kind.folder].rows
        names = self.names_by(kind, index, value)
        return tuple(name for name in names if not isinstance(rows[name], bytes))

    def count_by(self, kind: Kind[Any, Any], index: str, value: str) -> int:
        """How many `by` would find: the size of a set of names, at no cost."""
        table = self._tables[kind.folder]
        source = table.live_indexes if index in table.live_indexes else table.name_indexes
        return len(source[index].get(value, ()))

    def names(self, kind: Kind[Any, Any]) -> tuple[str, ...]:
        """The names of all records of the kind, nothing parsed."""
        return tuple(self._tables[kind.folder].rows)

    def is_finished(self, kind: Kind[Any, Any], name: str) -> bool:
        """Whether there is such a record and nothing can happen to it any more; nothing parsed."""
        table = self._tables[kind.folder]
        return name in table.rows and name not in table.live

    @property
    def unpacked_count(self) -> int:
        """How many records of all kinds `compact` has not put away, finished or not yet."""
        return sum(len(table.rows) - table.packed for table in self._tables.values())

    def count(self, kind: Kind[Any, Any]) -> int:
        """How many records of the kind there are."""
        return len(self._tables[kind.folder].rows)

    def desired(self, kind: Kind[Any, Any], name: str) -> DesiredFile | None:
        """The last good desired file of that record, None without one."""
        return self._desired.get((kind.folder, name))

    def desired_names(self, kind: Kind[Any, Any]) -> tuple[str, ...]:
        """The names of all records of the kind that have a good desired file."""
        return tuple(name for folder, name in self._desired if folder == kind.folder)

    # -- changing --------------------------------------------------------------------------------

    def commit(
        self,
        puts: Iterable[Record[Any, Any]] = (),
        removals: Iterable[tuple[Kind[Any, Any], str]] = (),
        story: Story | None = None,
    ) -> None:
        """Swap memory at once, all or nothing, and queue the same for the disk.

        Raises Conflict (a record changed since it was read), AlreadyExists, or InvalidTransition (a
        move that the kind does not allow, any change of a finished record) before anything changed.
        """
        accepted = [self._checked(record) for record in puts]
        gone = [(kind, name) for kind, name in removals if name in self._tables[kind.folder].rows]
        ops: list[Op] = []
        for record, status_only in accepted:
            self._tables[record.kind.folder].put(record)
            ops.append(Put(record, status_only))
        for kind, name in gone:
            self._tables[kind.folder].remove(name)
            ops.append(Remove(kind, name))
        if story is not None:
            ops.append(story)
        if not ops:
            return
        self._committed += 1
        self._journal.append(tuple(ops), self._one_more_durable)
        for record, _ in accepted:
            self._tell(record.kind, record.name)
        for kind, name in gone:
            self._tell(kind, name)

    def _checked(self, record: Record[Any, Any]) -> tuple[Record[Any, Any], bool]:
        kind = record.kind
        current = self._tables[kind.folder].find(record.name)
        if current is None:
            if record.revision:
                raise Conflict(f"{kind.title} '{record.name}' was removed meanwhile")
            self._refuse_move(record, None)
        else:
            if not record.revision:
                raise AlreadyExists(f"{kind.title} '{record.name}' exists already")
            if current.revision != record.revision:
                raise Conflict(f"{kind.title} '{record.name}' changed since it was read")
            self._refuse_move(record, current)
        self._revision += 1
        stored = record.at(self._revision)
        return stored, current is not None and current.spec is record.spec

    @staticmethod
    def _refuse_move(record: Record[Any, Any], current: Record[Any, Any] | None) -> None:
        kind = record.kind
        old = None if current is None else current.state
        new = record.state
        if current is not None and not kind.moves.get(old):
            raise InvalidTransition(f"{kind.title} '{record.name}' is {old} and cannot change")
        if old != new and new not in kind.moves.get(old, frozenset()):
            raise InvalidTransition(f"{kind.title} '{record.name}': {old} -> {new} is not a move")

    def compact(self, kind: Kind[Any, Any], name: str, document: bytes) -> None:
        """Keep a finished record as the JSON it was stored as: an eighth of the memory.

        Nobody is told: it is the same record. Nothing happens if it is gone, or not finished.
        """
        table = self._tables[kind.folder]
        if name in table.rows and name not in table.live:
            table.packed += type(table.rows[name]) is not bytes
            table.rows[name] = document

    # -- the barrier -----------------------------------------------------------------------------

    async def barrier(self) -> None:
        """Return when everything that memory shows now is on disk."""
        if self._durable >= self._committed:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        self.after_barrier(finish)
        await done

    def after_barrier(self, action: Callable[[], Any]) -> None:
        """Call `action` once everything that memory shows now is on disk; at once if it is.

        Actions run in the order in which they were given.
        """
        if self._durable >= self._committed:
            action()
        else:
            self._after.append((self._committed, action))

    @property
    def behind(self) -> int:
        """How many commits are about to be on disk; none while it refuses writes."""
        return 0 if self._journal.trouble is not None else self._committed - self._durable

    def _one_more_durable(self) -> None:
        self._durable += 1
        self._run_due()

    def _run_due(self) -> None:
        try:
            while self._after and self._after[0][0] <= self._durable:
                self._after.popleft()[1]()
        finally:
            if self._after and self._after[0][0] <= self._durable:
                # One action raised: that is its own affair, those behind it still get their turn.
                asyncio.get_running_loop().call_soon(self._run_due)

    @property
    def trouble(self) -> str | None:
        """Why the disk refuses writes; None while it takes them."""
        return self._journal.trouble

    def heed(self, trouble: Callable[[], str | None]) -> None:
        """Ask this as well before anything new is begun."""
        self._heeded = trouble

    @property
    def hold(self) -> str | None:
        """Why nothing new may be begun: the disk refuses writes, or what follows from them."""
        return self._journal.trouble or self._heeded()

    # -- watching --------------------------------------------------------------------------------

    def watch(self, kind: Kind[Any, Any], wake: Wake) -> Callable[[], None]:
        """Have `wake` called with the name after each change; the answer ends it."""
        watchers = self._tables[kind.folder].watchers
        watchers.append(wake)
        return lambda: watchers.remove(wake)

    def set_desired(self, kind: Kind[Any, Any], name: str, file: DesiredFile | None) -> None:
        """The desired file of a record changed; its watchers are told.

        Absence changes nothing: the owner keeps the spec in force when it finds None.
        """
        if file is None:
            self._desired.pop((kind.folder, name), None)
        else:
            self._desired[kind.folder, name] = file
        self._tell(kind, name)

    def _tell(self, kind: Kind[Any, Any], name: str) -> None:
        for wake in self._tables[kind.folder].watchers:
            if self._deliver is None:
                wake(name)
            else:
                self._deliver(wake, name)
