"""Counted work: what can never be placed costs those that can nothing."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import controllers.free_slots
import controllers.placement
import controllers.pool
import controllers.renewal
from controllers.scheduler import Scheduler
from datastore.clock import SystemClock, stamp
from datastore.journal import Op
from datastore.kinds import (
    KINDS,
    LEASES,
    PENDING,
    WORKERS,
    Call,
    PendingSpec,
    Placement,
    WorkerSpec,
    WorkerStatus,
)
from datastore.record import Record
from datastore.store import Store

AT = "2026-11-29T12:00:00.000Z"


class Counting:
    """A journal that is always done, and counts commits."""

    trouble = None
    commits = 0

    def append(self, ops: tuple[Op, ...], on_durable: Any = None) -> None:
        self.commits += 1
        if on_durable is not None:
            on_durable()


def pending(number: int, placement: Placement) -> Record[Any, Any]:
    spec = PendingSpec(
        run=f"r{number}", workflow="w", job="j", step="s", episode=1, placement=placement,
        call=Call(model_type="command/shell", model=f"m{number}", method="execute"),
    )  # fmt: skip
    name = f"r{number}.j.s.1"
    return Record(kind=PENDING, name=name, uid=name, created_at=AT, spec=spec)


def worker() -> Record[Any, Any]:
    status = WorkerStatus(
        state="connected", instance="i", machine="m", token="w", labels={"pool": "a"},
        platform="linux", arch="x", version="1", capacity=1, enrolled_at=AT, last_seen_at=AT,
    )  # fmt: skip
    return Record(WORKERS, "w", "w", AT, WorkerSpec(), status)


async def work_of(impossible: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """Matches, commits and heads looked at by thirty placements behind `impossible` others."""
    count: Counter[str] = Counter()
    real = controllers.placement.matches

    def counted(placement: Placement, one: Any) -> bool:
        count["matches"] += 1
        return real(placement, one)

    for module in (controllers.pool, controllers.free_slots):
        monkeypatch.setattr(module, "matches", counted)
    journal = Counting()
    store = Store(KINDS.values(), journal)
    store.commit([worker()])
    scheduler = Scheduler(store, SystemClock(), lambda: "uid", grace_s=60.0)
    for number in range(impossible):
        # Each a requirement of its own, and each before the possible ones.
        store.commit([pending(number, Placement(labels={"pool": f"none-{number}"}))])
        await scheduler.reconcile(f"r{number}.j.s.1")
    first = impossible
    for number in range(first, first + 31):
        store.commit([pending(number, Placement(labels={"pool": "a"}))])
        await scheduler.reconcile(f"r{number}.j.s.1")
    head = scheduler._room.head

    def counted_head(key: str, now_s: float) -> Any:
        count["heads"] += 1
        return head(key, now_s)

    monkeypatch.setattr(scheduler._room, "head", counted_head)
    before, count["matches"] = journal.commits, 0
    for _ in range(30):
        (lease,) = store.live(LEASES)
        assert lease.status is not None
        ended = lease.status.model_copy(update={"state": "expired", "ended_at": AT})
        store.commit([lease.with_status(ended)])
        await scheduler.reconcile("place")
    monkeypatch.undo()
    return count["matches"], journal.commits - before, count["heads"]


async def test_five_hundred_impossible_ones_in_front_cost_the_possible_ones_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = await work_of(0, monkeypatch)
    behind = await work_of(500, monkeypatch)
    # The first freed slot of a worker asks every requirement once; that is remembered.
    assert behind[0] - alone[0] <= 500
    assert behind[1:] == alone[1:]
    await asyncio.sleep(0)


@pytest.mark.parametrize("ends", [False, True])
async def test_a_dispatch_waits_for_no_crowd_of_another_run(*, ends: bool) -> None:
    """Regression: it waited for seconds while 20,000 began to wait, or were cancelled."""
    store = Store(KINDS.values(), Counting())
    store.commit([worker()])
    scheduler = Scheduler(store, SystemClock(), lambda: "uid", grace_s=60.0)
    crowd = [pending(0, Placement(labels={"pool": f"b{number}"})) for number in range(500)]
    names = [f"r0.j.s-{number}.1" for number in range(500)]
    store.commit([replace(one, name=name) for one, name in zip(crowd, names, strict=True)])
    if ends:
        while len(scheduler.queue):
            await look(scheduler)
        store.commit([store.get(PENDING, name).with_spec(cancel=True) for name in names])
    store.commit([pending(1, Placement(labels={"pool": "a"}))])
    for _ in range(4):
        await look(scheduler)
    assert [lease.name for lease in store.live(LEASES)] == ["r1.j.s.1"]
    assert len(scheduler.queue) > 400


async def test_what_lost_its_worker_goes_before_all_that_asked_after_it() -> None:
    """Regression: it went behind each step of a fan-out that had never run."""
    store = Store(KINDS.values(), Counting())
    clock, pool = SystemClock(), Placement(labels={"pool": "a"})
    scheduler = Scheduler(store, clock, lambda: "uid", grace_s=60.0)
    for name in ("fan-1", "fan-2", "lost"):
        one = replace(pending(0, pool), name=f"r0.j.{name}.1")
        if name == "lost":
            asked = stamp(clock.now() - timedelta(seconds=40))
            one = replace(one.with_spec(asked_at=asked), name="r0.j.lost.2")
        store.commit([one])
        await scheduler.reconcile(one.name)
    store.commit([worker()])
    await scheduler.reconcile("place")
    assert [lease.name for lease in store.live(LEASES)] == ["r0.j.lost.2"]


async def look(scheduler: Scheduler) -> None:
    """One turn of one key."""
    key = await scheduler.queue.get()
    await scheduler.reconcile(key)
    scheduler.queue.done(key)


async def test_a_worker_that_refuses_again_and_again_is_asked_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    now_s = [0.0]
    monkeypatch.setattr(loop, "time", lambda: now_s[0])
    store = Store(KINDS.values(), Counting())
    store.commit([worker()])
    scheduler = Scheduler(store, SystemClock(), lambda: "uid", grace_s=60.0)
    offered: list[float] = []
    for number in range(8):
        store.commit([pending(number, Placement(labels={"pool": "a"}))])
        while not store.live(LEASES):
            scheduler._wake_for("w")
            await scheduler.reconcile(f"r{number}.j.s.1")
            await scheduler.reconcile("place")
            now_s[0] += 0 if store.live(LEASES) else 0.5
        offered.append(now_s[0])
        (lease,) = store.live(LEASES)
        assert lease.status is not None
        ended = {"state": "refused", "ended_at": AT, "reason": "worker_busy"}
        store.commit([lease.with_status(lease.status.model_copy(update=ended))])
    assert [b - a for a, b in itertools.pairwise(offered)] == [1, 2, 4, 8, 16, 30, 30]
    reason = scheduler.reasons.of(Placement(labels={"pool": "a"}), fresh=True)
    assert "1 busy (it refuses what it is offered" in reason.text
    known = store.get(WORKERS, "w")
    assert known.status is not None
    store.commit([known.with_status(known.status.model_copy(update={"capacity": 2}))])
    assert not scheduler._pool.refused("w"), "a worker that is another by now is asked at once"


async def looks_to_queue_one(workers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Workers looked at while a dispatch is queued that only others of the fleet could take."""
    looks = 0

    def counted(record: Record[Any, Any]) -> bool:
        nonlocal looks
        looks += record.kind is WORKERS
        return record.state in record.kind.live_states

    store = Store(KINDS.values(), Counting())
    one = worker()
    for number in range(workers):
        name = f"w{number}"
        labels = {"pool": "ab"[number % 2], "host": name}
        status = one.status.model_copy(update={"labels": labels})
        store.commit([Record(WORKERS, name, name, AT, one.spec, status)])
    scheduler = Scheduler(store, SystemClock(), lambda: "uid", grace_s=60.0)
    for number in range(workers):
        store.commit([pending(number, Placement(labels={"pool": "a"}))])
        await scheduler.reconcile(f"r{number}.j.s.1")
    monkeypatch.setattr(Record, "live", property(counted))
    store.commit([pending(workers, Placement(labels={"pool": ["a", "c"]}))])
    await scheduler.reconcile(f"r{workers}.j.s.1")
    monkeypatch.undo()
    status = store.get(PENDING, f"r{workers}.j.s.1").status
    assert status.reason.startswith(f"0 of {workers} workers fit: {workers // 2} full, ")
    return looks


async def test_to_queue_one_looks_at_the_shapes_of_workers_and_not_at_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = await looks_to_queue_one(10, monkeypatch)
    assert await looks_to_queue_one(210, monkeypatch) <= few


async def test_many_workers_of_few_shapes_do_not_slow_down_the_renewal_of_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s[0])
    monkeypatch.setattr(controllers.renewal, "LOOKS_AT_ONCE", 30)
    store = Store(KINDS.values(), Counting())
    scheduler = Scheduler(store, SystemClock(), lambda: "uid", grace_s=60.0)
    for number in range(10):
        store.commit([pending(number, Placement(labels={"pool": f"none-{number}"}))])
        await scheduler.reconcile(f"r{number}.j.s.1")
    one = worker()
    for number in range(50):
        store.commit([Record(WORKERS, f"w{number}", f"w{number}", AT, one.spec, one.status)])
    now_s[0] += 5.0
    await scheduler.reconcile("renew")
    reasons = [waiting.status.reason for waiting in store.live(PENDING) if waiting.status]
    assert len(reasons) == 10
    assert all(reason and reason.startswith("0 of 50 workers fit") for reason in reasons)
