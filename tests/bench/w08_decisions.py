"""W8: what a decision of the scheduler costs while very many dispatches wait, in this process.

Neither processes nor the disk: the store's journal is done at once, so that what is timed is the
scheduler and the store alone.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from figures import Bench, Curve, Figure, Goal

from controllers.scheduler import RENEW, Scheduler
from datastore.clock import SystemClock
from datastore.journal import Op
from datastore.kinds import (
    KINDS,
    LEASES,
    PENDING,
    WORKERS,
    Call,
    PendingSpec,
    PendingStatus,
    Placement,
    WorkerSpec,
    WorkerStatus,
)
from datastore.record import Record
from datastore.store import Store

AT = "2026-11-29T12:00:00.000Z"
REQUIREMENTS = 200
DECISIONS = 200


class AtOnce:
    """A journal whose commits are durable at once."""

    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            on_durable()


@dataclass
class Costs:
    """Microseconds: of a decision, of a dispatch that is queued; milliseconds: of the reasons."""

    decision_us: list[float]
    queued_us: float
    reasons_ms: float


def measure(bench: Bench) -> None:
    """Every other size against the smallest."""
    few, many = (1_000, 4_000) if bench.quick else (1_000, 100_000)
    small, big = (200, 400) if bench.quick else (200, 5_000)
    curve = bench.curve(Curve("decision", "Cost of a decision", "waiting dispatches", "µs"))
    costs: dict[tuple[int, int], Costs] = {}
    for waiting, workers in ((few, small), (few, big), (many, small), (many, big)):
        bench.say(f"W8 {waiting} waiting, {workers} workers")
        found = asyncio.run(_costs(waiting, workers, bench.rounds))
        costs[waiting, workers] = found
        curve.add(f"{workers} workers", waiting, statistics.median(found.decision_us))
        smallest, floor = costs[few, small], f"{few} waiting, {small} workers"
        where, goal = f"{waiting} waiting, {workers} workers", Goal(at_most=1.5)
        before = [statistics.median(smallest.decision_us)] * len(found.decision_us)
        decision = found.decision_us
        bench.add(Figure("W8", f"decision, {where}", "µs", decision, before, floor, goal))
        queued, before = [found.queued_us], [smallest.queued_us]
        bench.add(Figure("W8", f"to queue one, {where}", "µs", queued, before, floor, goal))
        # It runs in one piece once a second, and nothing else does meanwhile.
        reasons, goal = [found.reasons_ms], Goal(at_most=50)
        bench.add(Figure("W8", f"reasons renewed, {where}", "ms", reasons, goal=goal))


async def _costs(waiting: int, workers: int, rounds: int) -> Costs:
    store = Store(KINDS.values(), AtOnce())
    scheduler = Scheduler(store, SystemClock(), lambda: "uid", grace_s=60.0)
    for number in range(workers):
        store.commit([_worker(number)])
    # The first dispatches fill every worker; what comes after them waits.
    for number in range(workers):
        await _queue(store, scheduler, number)
    for number in range(workers, workers + waiting):
        await _queue(store, scheduler, number, _told())
    began = time.perf_counter()
    for number in range(workers + waiting, workers + waiting + DECISIONS):
        await _queue(store, scheduler, number)
    queued_us = (time.perf_counter() - began) / DECISIONS * 1e6
    assert len(store.live(LEASES)) == workers
    began = time.perf_counter()
    await scheduler.reconcile(RENEW)
    reasons_ms = (time.perf_counter() - began) * 1000
    await _decide(store, scheduler, 20)
    taken = [await _decide(store, scheduler, DECISIONS) for _ in range(rounds)]
    return Costs(taken, queued_us, reasons_ms)


async def _queue(
    store: Store, scheduler: Scheduler, number: int, status: PendingStatus | None = None
) -> None:
    store.commit([_pending(number, status)])
    await scheduler.reconcile(f"r{number}.j.s.1")


async def _decide(store: Store, scheduler: Scheduler, count: int) -> float:
    """Microseconds per decision: a lease ends, the slot goes to whoever waits for it."""
    leases = store.live(LEASES)
    taken = 0.0
    for lease in leases[:count]:
        assert lease.status is not None
        ended = lease.status.model_copy(update={"state": "expired", "ended_at": AT})
        store.commit([lease.with_status(ended)])
        before = time.perf_counter()
        await scheduler.reconcile("place")
        taken += time.perf_counter() - before
    assert len(store.live(LEASES)) == len(leases), "every freed slot is taken again"
    return taken / count * 1e6


def _told() -> PendingStatus:
    """Of a dispatch that has been told already why it waits: that work is timed apart."""
    return PendingStatus(state="waiting", queued_at=AT, reason="all slots are taken")


def _pending(number: int, status: PendingStatus | None) -> Record[Any, Any]:
    spec = PendingSpec(
        run=f"r{number}", workflow="w", job="j", step="s", episode=1, wait_limit_s=None,
        placement=Placement(labels={"pool": f"p{number % REQUIREMENTS}"}),
        call=Call(model_type="command/shell", model=f"m{number}", method="execute"),
    )  # fmt: skip
    name = f"r{number}.j.s.1"
    return Record(PENDING, name, name, AT, spec, status)


def _worker(number: int) -> Record[Any, Any]:
    name = f"w{number:05}"
    status = WorkerStatus(
        state="connected", instance="i", machine=name, token="t", platform="linux", arch="x",
        labels={"pool": f"p{number % REQUIREMENTS}", "host": name}, version="1", capacity=1,
        enrolled_at=AT, last_seen_at=AT,
    )  # fmt: skip
    return Record(WORKERS, name, name, AT, WorkerSpec(), status)
