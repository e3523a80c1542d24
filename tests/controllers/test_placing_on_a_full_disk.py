"""While the disk refuses writes no step is placed; once it takes them, it goes on at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from test_scheduler_work import pending, worker

from controllers.boot_sweep import BootSweep
from controllers.scheduler import PLACE, RENEW, Scheduler
from datastore.alive import Lived
from datastore.clock import SystemClock
from datastore.kinds import KINDS, LEASES, PENDING, Placement
from datastore.store import Store
from full_disk import FULL, Disk

WAITS = "r1.j.s.1"


class World:
    """A worker with a slot, and a step that wants it, on a full disk."""

    def __init__(self, limit_s: float | None = None) -> None:
        self.disk = Disk()
        self.store = Store(KINDS.values(), self.disk)
        self.scheduler = Scheduler(self.store, SystemClock(), lambda: "uid", grace_s=60.0)
        self.store.commit([worker()])
        self.disk.trouble = FULL
        step = pending(1, Placement(labels={"pool": "a"}))
        spec = step.spec.model_copy(update={"wait_limit_s": limit_s})
        self.store.commit([replace(step, spec=spec)])

    async def look(self) -> None:
        """Until nothing is left to do now."""
        queue = self.scheduler.queue
        while len(queue):
            key = await queue.get()
            await self.scheduler.reconcile(key)
            queue.done(key)

    @property
    def state(self) -> str | None:
        return self.store.get(PENDING, WAITS).state


async def test_no_slot_is_given_away_until_the_disk_has_taken_all() -> None:
    """Regression: that dispatch could not leave, and its worker was cut for not answering."""
    world = World()
    await world.look()
    await world.scheduler.reconcile(PLACE)
    assert not world.store.has(LEASES, WAITS)
    assert world.state == "waiting"
    world.disk.recover()
    await world.look()
    assert world.store.has(LEASES, WAITS)


async def test_who_waits_says_so() -> None:
    world = World()
    await world.look()
    reason = world.scheduler.reasons.of_dispatch(world.store.get(PENDING, WAITS).spec)
    assert reason.code == "degraded"
    assert reason.text == f"no step is placed while the disk refuses writes: {FULL}"
    lacking = world.scheduler.reasons.of(Placement(labels={"pool": "b"}))
    assert lacking.code == "no_match"


@pytest.mark.parametrize("full_s", [50.0])
async def test_no_wait_ends_by_it(monkeypatch: pytest.MonkeyPatch, full_s: float) -> None:
    loop, passed_s = asyncio.get_running_loop(), 0.0
    really = loop.time
    monkeypatch.setattr(loop, "time", lambda: really() + passed_s)
    world = World(limit_s=10.0)
    await world.look()
    for _ in range(5):
        passed_s += full_s / 5
        wait: Any = await world.scheduler.reconcile(WAITS)
        assert 1 <= wait.seconds <= 10.1
        await world.scheduler.reconcile(RENEW)
    world.disk.recover()
    await world.scheduler.reconcile(WAITS)
    assert world.state == "waiting"
    await world.look()
    assert world.state == "dispatched"
    status = world.store.get(PENDING, WAITS).status
    assert status is not None and status.waited_s is not None
    # Regression: it ended the wait of the next episode, should this one come to nothing.
    assert status.waited_s < 1


async def test_no_wait_ends_by_it_after_a_restart_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the sweep took the time from when it began to wait until the server's end."""
    loop, passed_s = asyncio.get_running_loop(), 0.0
    really = loop.time
    monkeypatch.setattr(loop, "time", lambda: really() + passed_s)
    began = datetime.now(UTC)

    class Now:
        def now(self) -> datetime:
            return began + timedelta(seconds=passed_s)

    disk = Disk()
    store = Store(KINDS.values(), disk)
    scheduler = Scheduler(store, Now(), lambda: "uid", grace_s=60.0)
    store.commit([pending(1, Placement(labels={"pool": "a"}))])
    await scheduler.reconcile(WAITS)
    for held_s in (20.0, 300.0):
        passed_s += 2.0
        disk.trouble = FULL
        await scheduler.reconcile(RENEW)
        passed_s += held_s
        if held_s == 20.0:
            disk.recover()
            while (key := await scheduler.queue.get()) != PLACE:
                scheduler.queue.done(key)
            scheduler.queue.done(key)
    spans = [(ended - start).total_seconds() for start, ended in scheduler.held_back()]
    assert spans == [pytest.approx(20.0, abs=0.5), pytest.approx(300.0, abs=0.5)]
    disk.recover()
    held = scheduler.held_back()
    passed_s += 3.0
    BootSweep(store, Now(), lambda: "uid", earlier=Lived(Now().now(), held)).run()
    status = store.get(PENDING, WAITS).status
    assert status is not None and status.state == "orphaned"
    assert status.waited_s == pytest.approx(7.0, abs=0.5)


async def test_a_step_that_no_worker_can_take_has_its_limit_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, passed_s = asyncio.get_running_loop(), 0.0
    really = loop.time
    monkeypatch.setattr(loop, "time", lambda: really() + passed_s)
    world = World(limit_s=10.0)
    gone = world.store.get(PENDING, WAITS)
    world.store.commit([], [(PENDING, WAITS)])
    spec = gone.spec.model_copy(update={"placement": Placement(labels={"pool": "b"})})
    world.store.commit([replace(gone, spec=spec, revision=0)])
    await world.look()
    passed_s = 100.0
    world.disk.recover()
    await world.scheduler.reconcile(WAITS)
    assert world.state == "waiting"
    passed_s = 111.0
    await world.scheduler.reconcile(WAITS)
    assert world.state == "timed_out"


async def test_nothing_is_placed_either_while_results_cannot_be_taken() -> None:
    """Regression: the journal had room, the events of runs had none; results waited for these, kept
    their slots, and what waited for a slot failed by its `queueTimeout`."""
    events: list[str | None] = ["events of runs cannot be written"]
    world = World()
    world.store.heed(lambda: events[0])
    world.disk.recover()
    await world.look()
    assert not world.store.has(LEASES, WAITS)
    await world.scheduler.reconcile(RENEW)
    status = world.store.get(PENDING, WAITS).status
    assert status is not None and status.reason is not None
    assert status.reason.endswith("while the disk refuses writes: events of runs cannot be written")
    events[0] = None
    while not world.store.has(LEASES, WAITS):
        key = await world.scheduler.queue.get()
        await world.scheduler.reconcile(key)
        world.scheduler.queue.done(key)
