"""Planted bugs, a few lines each. Some seed must catch every one of them, or the rig is blind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from controllers.controller import Wait
from controllers.lease import Comparison, LeaseController
from controllers.scheduler import Scheduler
from datastore.kinds import LEASES, PENDING
from swamp.protocol import Ack, ToWorker, encode
from swamp.serve.sessions import Session, Sessions


@contextmanager
def count_a_dispatch_twice() -> Iterator[None]:
    """Seed #3293: leases and reservations are added up, so a running dispatch takes two slots."""

    def load(self: Scheduler, worker: str) -> int:
        return 2 * self._store.count_by(LEASES, "worker", worker)

    with patch.object(Scheduler, "_load", load):
        yield


@contextmanager
def decide_across_an_await() -> Iterator[None]:
    """The scheduler chooses a worker, waits, and binds to what it chose."""
    real = Scheduler.reconcile

    async def reconcile(self: Scheduler, key: str) -> Wait | None:
        pending = self._store.find(PENDING, key)
        if pending is None or not pending.live or pending.spec.cancel or key not in self._room:
            return await real(self, key)
        requirement = self._room.add(pending)
        worker = self._best_worker(requirement)
        await asyncio.sleep(0)
        pending = self._store.find(PENDING, key)
        if worker is not None and pending is not None and pending.live:
            self._bind(pending, worker)
        return await real(self, key)

    with patch.object(Scheduler, "reconcile", reconcile):
        yield


@contextmanager
def acknowledge_before_the_barrier() -> Iterator[None]:
    """A result is acknowledged as soon as memory shows it."""
    real = Sessions.send

    def send(self: Sessions, session: Session, frame: ToWorker) -> None:
        if isinstance(frame, Ack):
            session.transport.send(encode(frame))
        else:
            real(self, session, frame)

    with patch.object(Sessions, "send", send):
        yield


@contextmanager
def keep_a_lease_that_the_worker_lacks() -> Iterator[None]:
    """A worker that comes back without a runner keeps its lease."""
    real = LeaseController.reconnected

    def reconnected(
        self: LeaseController, worker: str, instance: str, running: Any, finished: Any
    ) -> Comparison:
        held = [lease.name for lease in self._store.by(LEASES, "worker", worker)]
        return real(self, worker, instance, [*running, *held], finished)

    with patch.object(LeaseController, "reconnected", reconnected):
        yield


@contextmanager
def nothing() -> Iterator[None]:
    """No bug in the code: used where a setting is the bug."""
    yield


PLANTED: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "count a dispatch twice": (count_a_dispatch_twice, {}),
    "decide across an await": (decide_across_an_await, {}),
    "no resync": (nothing, {"resync_s": None}),
    "acknowledge before the barrier": (acknowledge_before_the_barrier, {}),
    "keep a lease that the worker lacks": (keep_a_lease_that_the_worker_lacks, {}),
}
"""By name: what patches the code, and the settings of the fleet."""
