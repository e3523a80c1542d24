"""The simulated journal: whole commits become durable in order, in groups, after drawn delays.

A disk can be slow for seconds, and refuse a transaction, which is then tried again unchanged. What
is not durable when the server is killed is gone; what is durable is there, even if nobody was told.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from datastore.journal import Op, Put, Remove
from datastore.store import Store
from sim.world import World

BATCH_MAX = 500

Commit = tuple[tuple[Op, ...], Callable[[], None] | None]


class SimJournal:
    """`datastore.journal.Journal` over the world's disk, for one life of the server."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[Commit] = []
        self._busy = False
        self._alive = True
        self.trouble: str | None = None
        self.before_write: Callable[[], None] = lambda: None
        self.after_write: Callable[[], None] = lambda: None

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        self._world.changed = True
        if not self._alive:
            return
        self._waiting.append((ops, on_durable))
        if not self._busy:
            self._busy = True
            self._world.loop.call_later(self._delay_s(), self._begin)

    def kill(self) -> None:
        """The process is gone, and with it everything that was not durable."""
        self._alive = False
        self._waiting.clear()

    def _delay_s(self) -> float:
        world = self._world
        if world.chance(world.rates.slow_disk):
            return world.rng.uniform(0.2, 6.0)
        return world.rng.uniform(0.0005, 0.004)

    def _begin(self) -> None:
        batch: list[Commit] = []
        size = 0
        while self._waiting and size < BATCH_MAX:
            batch.append(self._waiting.pop(0))
            size += len(batch[-1][0])
        self._try(batch)

    def _try(self, batch: list[Commit]) -> None:
        world = self._world
        if not self._alive:
            return
        if world.loop.now < world.full_until:
            self.trouble = "the disk is full"
            world.loop.call_later(1.0, self._try, batch)
            return
        if world.chance(world.rates.failing_disk) or (
            self.trouble is not None and world.chance(0.7 if world.rates.failing_disk else 0.0)
        ):
            self.trouble = "the disk refuses writes"
            world.loop.call_later(world.rng.uniform(0.05, 1.0), self._try, batch)
            return
        self.trouble = None
        self.before_write()
        if not self._alive:
            return
        for ops, _ in batch:
            for op in ops:
                self._apply(op)
        world.changed = True
        self.after_write()
        # From here on the transaction is durable, though nobody in the process knows it yet.
        world.loop.call_later(world.rng.uniform(0.0, 0.001), self._acknowledge, batch)

    def _acknowledge(self, batch: list[Commit]) -> None:
        if not self._alive:
            return
        for _, on_durable in batch:
            if on_durable is not None:
                on_durable()
        if self._waiting:
            self._world.loop.call_later(self._delay_s(), self._begin)
        else:
            self._busy = False

    def _apply(self, op: Op) -> None:
        world, disk = self._world, self._world.disk
        if isinstance(op, Put):
            self._put(op)
        elif isinstance(op, Remove):
            disk.records.pop((op.kind.folder, op.name), None)
        else:
            if op.run in disk.stories:
                world.fail(f"the story of run {op.run} was written twice")
            disk.stories[op.run] = op

    def _put(self, op: Put) -> None:
        record, world = op.record, self._world
        key = (record.kind.folder, record.name)
        old = world.disk.records.get(key)
        if op.status_only:
            if old is None:
                world.fail(f"a status without its spec in the journal: {key}")
                return
            record = replace(record, spec=old.spec)
        if old is not None:
            moves = record.kind.moves.get(old.state, frozenset())
            if not moves:
                world.fail(f"promise 8: {key} is {old.state} and was changed")
            elif old.state != record.state and record.state not in moves:
                world.fail(f"{key}: {old.state} -> {record.state} is not a move")
        world.disk.records[key] = record
        world.say(f"durable {key[0]}/{key[1]} {record.state}")


def load(store: Store, world: World) -> None:
    """Fill a new store from the disk, as the engine does: finished records stay bytes."""
    for record in world.disk.records.values():
        document = json.dumps(record.document())
        if record.live:
            store.load(record.kind.load(json.loads(document)))
        else:
            store.load_finished(record.kind, {record.name: document.encode()})
