"""Finished runs go by count and by age, whole, and never before they have ended."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controllers.controller import Wait
from controllers.retention import KEY, REMOVED_AT_ONCE, Due, Keep, Retention, due_of_records
from datastore.clock import stamp
from datastore.journal import Op, Put, Remove
from datastore.kinds import (
    KINDS,
    LEASES,
    PENDING,
    RUNS,
    STEPS,
    LeaseSpec,
    LeaseStatus,
    RunSpec,
    RunStatus,
    StepSpec,
    StepStatus,
)
from datastore.record import Record
from datastore.store import Store

START = datetime(2026, 3, 1, tzinfo=UTC)


class Journal:
    """Everything is durable at once, in order."""

    trouble: str | None = None

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        self.ops += ops
        if on_durable is not None:
            on_durable()


class Waiting(Journal):
    """What is appended is durable when `sync` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[int, Callable[[], None]]] = []
        self.most = 0

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        assert on_durable is not None
        self.ops += ops
        self.waits.append((len(ops), on_durable))
        self.most = max(self.most, sum(count for count, _ in self.waits))

    def sync(self) -> None:
        waits, self.waits = self.waits, []
        for _, on_durable in waits:
            on_durable()


class Clock:
    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed_s)


class World:
    """A store, its journal, a clock, and what was said of event logs."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.journal = journal or Journal()
        self.store = Store(KINDS.values(), self.journal)
        self.clock = Clock()
        self.forgotten: list[str] = []

    def retention(self, keep: Keep) -> Retention:
        return Retention(self.store, self.clock, keep, self.forget)

    def forget(self, run: str, gone: Callable[[], None]) -> None:
        assert self.store.find(RUNS, run) is not None, "the run goes last"
        self.forgotten.append(run)
        gone()

    def start(self, name: str, steps: int = 1) -> None:
        spec = RunSpec(workflow="w", workflow_id="w", definition={})
        status = RunStatus(state="running", started_at=stamp(self.clock.now()))
        self.store.commit([self._record(RUNS, name, spec, status)])
        for number in range(steps):
            step = StepSpec(run=name, workflow="w", job="j", step=f"s{number}")
            ended = StepStatus(state="succeeded")
            self.store.commit([self._record(STEPS, f"{name}.j.s{number}", step, ended)])

    def lease(self, run: str, state: str = "bound") -> None:
        spec = LeaseSpec(
            run=run, workflow="w", job="j", step="s0", worker="x", instance="i", model="m",
            method="execute",
        )  # fmt: skip
        status = LeaseStatus.model_validate({"state": state, "bound_at": stamp(START)})
        self.store.commit([self._record(LEASES, f"{run}.j.s0.1", spec, status)])

    def end(self, name: str) -> None:
        run = self.store.get(RUNS, name)
        assert run.status is not None
        changes = {"state": "succeeded", "ended_at": stamp(self.clock.now())}
        self.store.commit([run.with_status(run.status.model_copy(update=changes))])

    def _record(self, kind: Any, name: str, spec: Any, status: Any) -> Any:
        at = stamp(self.clock.now())
        return Record(kind=kind, name=name, uid=name, created_at=at, spec=spec, status=status)

    def ended(self, *names: str) -> None:
        """Runs that end a second after one another."""
        for name in names:
            self.start(name)
            self.end(name)
            self.clock.passed_s += 1

    def names(self) -> set[str]:
        return set(self.store.names(RUNS))

    def belongings(self) -> set[str]:
        kinds = (STEPS, PENDING, LEASES)
        return {name.partition(".")[0] for kind in kinds for name in self.store.names(kind)}


def look(retention: Retention) -> Wait | None:
    return asyncio.run(retention.reconcile(KEY))


def test_the_newest_ended_runs_are_kept_with_all_that_is_theirs() -> None:
    world = World()
    retention = world.retention(Keep(runs=2))
    world.ended("r1", "r2")
    assert len(retention.queue) == 0, "nothing is due"
    world.ended("r3")
    assert len(retention.queue) == 1
    look(retention)
    assert world.names() == world.belongings() == {"r2", "r3"}
    assert world.forgotten == ["r1"]


def test_what_counts_is_when_a_run_ended_also_after_a_restart() -> None:
    world = World()
    world.start("r1")
    world.ended("r2", "r3")
    world.end("r1")
    look(world.retention(Keep(runs=1)))
    assert world.names() == {"r1"}


def test_live_runs_are_neither_counted_nor_removed() -> None:
    world = World()
    world.start("r0")
    world.ended("r1")
    look(world.retention(Keep(runs=1, for_s=0.0)))
    assert world.names() == world.belongings() == {"r0"}


def test_a_run_goes_when_it_is_old_enough_and_is_looked_at_again_then() -> None:
    world = World()
    world.ended("r1")
    world.clock.passed_s = 40.0
    world.ended("r2")
    retention = world.retention(Keep(runs=None, for_s=100.0))
    wait = look(retention)
    assert wait is not None
    assert world.names() == {"r1", "r2"}
    world.clock.passed_s += wait.seconds
    look(retention)
    assert world.names() == {"r2"}


def test_belongings_go_before_the_run_so_that_a_crash_is_made_good() -> None:
    world = World()
    world.start("r1", steps=2 * REMOVED_AT_ONCE + 1)
    world.end("r1")
    retention = world.retention(Keep(runs=0))
    look(retention)
    assert world.names() == world.belongings() == set()
    removed = [op for op in world.journal.ops if isinstance(op, Remove)]
    assert removed[-1] == Remove(RUNS, "r1")
    assert [op.kind for op in removed[:-1]] == [STEPS] * (2 * REMOVED_AT_ONCE + 1)
    ends = [i for i, op in enumerate(world.journal.ops) if isinstance(op, Put)]
    assert ends[-1] < world.journal.ops.index(removed[0]), "the outcome is on disk before"


def test_a_run_of_which_something_lives_stays_until_that_has_ended() -> None:
    world = World()
    world.start("r1")
    world.lease("r1")
    world.end("r1")
    retention = world.retention(Keep(runs=0))
    look(retention)
    assert world.names() == world.belongings() == {"r1"}
    lease = world.store.get(LEASES, "r1.j.s0.1")
    assert lease.status is not None
    ended = lease.status.model_copy(update={"state": "expired"})
    world.store.commit([lease.with_status(ended)])
    assert list(retention.live_keys()) == [KEY]
    look(retention)
    assert world.names() == world.belongings() == set()


def test_pruning_names_what_is_due_and_removes_only_what_it_is_given() -> None:
    world = World()
    world.ended("r1", "r2", "r3")
    retention = world.retention(Keep())

    async def prune() -> None:
        assert (await retention.due(Keep(runs=1))).going == ["r1", "r2"]
        assert (await retention.due(Keep(runs=None, for_s=2.5))).going == ["r1"]
        assert await retention.due(Keep(runs=3, for_s=1000.0)) == Due([], [])
        assert world.names() == {"r1", "r2", "r3"}
        await retention.remove(["r2"])
        assert (await retention.due(Keep(runs=0))).going == ["r1", "r3"]

    asyncio.run(prune())
    assert world.names() == world.belongings() == {"r1", "r3"}


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_run_that_a_worker_may_still_run_is_not_pruned(steps: int) -> None:
    """Regression: of a run that was cancelled while its worker was away, all but the run went."""
    world = World()
    world.start("r1", steps)
    world.lease("r1")
    world.end("r1")
    world.ended("r2")
    before = world.belongings()
    retention = world.retention(Keep())

    async def prune() -> None:
        due = await retention.due(Keep(runs=0))
        assert due == Due(going=["r2"], busy=["r1"])
        runs = [world.store.get(RUNS, name) for name in world.names()]
        leases = world.store.live(LEASES)
        assert due_of_records(runs, leases, Keep(runs=0), world.clock) == due
        await retention.remove([*due.going, *due.busy])
        assert world.names() == {"r1"}
        assert len(world.store.names_by(STEPS, "run", "r1")) == steps
        lease = world.store.live(LEASES)[0]
        assert lease.status is not None
        ended = lease.status.model_copy(update={"state": "expired"})
        world.store.commit([lease.with_status(ended)])
        assert await retention.due(Keep(runs=0)) == Due(going=["r1"], busy=[])
        await retention.remove(["r1"])

    asyncio.run(prune())
    assert before
    assert world.names() == world.belongings() == set()


def crowd(journal: Waiting, keep: Keep, steps: int = 100) -> tuple[World, Retention]:
    """Finished runs of so many steps each, 4,000 steps or 1,000 runs."""
    world = World(journal)
    for number in range(4000 // steps if steps else 1000):
        world.start(f"r{number}", steps)
        world.end(f"r{number}")
    journal.sync()
    journal.most = 0
    return world, world.retention(keep)


@pytest.mark.parametrize("steps", [0, 100])
@pytest.mark.parametrize("is_asked_for", [False, True])
def test_what_others_commit_waits_for_no_crowd_of_removals(
    *, is_asked_for: bool, steps: int
) -> None:
    """Regression: who settled while 1,500 runs were pruned waited for 15 s."""
    journal = Waiting()
    world, retention = crowd(journal, Keep(runs=None if is_asked_for else 0), steps)

    async def prune() -> None:
        due = await retention.due(Keep(runs=0))
        work = retention.remove(due.going) if is_asked_for else retention.reconcile(KEY)
        removing = asyncio.ensure_future(work)
        while not removing.done():
            # A disk is slower than whatever needs nothing but turns.
            for _ in range(100):
                await asyncio.sleep(0)
            journal.sync()
        await removing

    asyncio.run(asyncio.wait_for(prune(), 10))
    journal.sync()
    assert journal.most <= 2 * REMOVED_AT_ONCE
    assert world.names() == world.belongings() == set()


def test_removals_wait_neither_for_a_disk_that_refuses_nor_for_a_stop() -> None:
    async def remove_all(refuses: bool) -> tuple[World, Retention]:
        journal = Waiting()
        world, retention = crowd(journal, Keep(runs=0))
        removing = asyncio.ensure_future(retention.reconcile(KEY))
        await asyncio.sleep(0.01)
        assert not removing.done()
        if refuses:
            journal.trouble = "the disk is full"
        else:
            retention.queue.close()
        await asyncio.wait_for(removing, 5)
        return world, retention

    world, _ = asyncio.run(remove_all(True))
    assert world.belongings() == set()
    world, _ = asyncio.run(remove_all(False))
    assert 0 < len(world.belongings()) < 40


def test_one_more_finished_run_costs_the_same_however_many_there_are() -> None:
    def parsed(kept: int) -> int:
        world = World()
        for number in range(kept):
            run = Record(
                kind=RUNS, name=f"r{number:05}", uid="u", created_at=stamp(START),
                spec=RunSpec(workflow="w", workflow_id="w", definition={}),
                status=RunStatus(state="failed", started_at=stamp(START), ended_at=stamp(START)),
            )  # fmt: skip
            world.store.load(run)
        retention = world.retention(Keep(runs=kept))
        look(retention)
        reads = 0
        find = world.store.find

        def counted(kind: Any, name: str) -> Any:
            nonlocal reads
            reads += 1
            return find(kind, name)

        world.store.find = counted  # type: ignore[method-assign]
        world.clock.passed_s += 1
        world.ended("z")
        look(retention)
        assert len(world.names()) == max(1, kept)
        return reads

    assert parsed(2_000) == parsed(20)
