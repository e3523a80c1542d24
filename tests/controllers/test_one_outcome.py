"""Cancel, timeout and dispatch at the same instant: exactly one of them is the dispatch's end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count, permutations

import pytest
from run_rig import AT, TASK, Server

from controllers.scheduler import PLACE, Scheduler
from datastore.clock import SystemClock
from datastore.kinds import (
    LEASES,
    PENDING,
    RUNS,
    STEPS,
    WORKERS,
    Outcome,
    Worker,
    WorkerSpec,
    WorkerStatus,
)
from datastore.record import Record

LIMIT_S = 5
DISPATCH = "r.j.s.1"
STEP = {"name": "s", "task": TASK, "labels": {"pool": "a"}, "queueTimeout": LIMIT_S}
ORDERS = list(permutations(("cancel", "timeout", "dispatch")))


def worker() -> Worker:
    status = WorkerStatus(
        state="connected", instance="i", machine="m", token="w", labels={"pool": "a"},
        platform="linux", arch="x", version="1", capacity=1, enrolled_at=AT, last_seen_at=AT,
    )  # fmt: skip
    return Record(WORKERS, "w", "w", AT, WorkerSpec(), status)


class Instant:
    """A step that waits, one stimulus for each end that its wait may have, and who reacts to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now_s)
        self.server = Server()
        uids = count()
        self.scheduler = Scheduler(
            self.server.store, SystemClock(), lambda: f"s{next(uids)}", grace_s=60.0
        )

    async def waits(self) -> None:
        self.server.start(jobs=[{"name": "j", "steps": [STEP]}])
        await self.settle()
        assert self.server.store.get(PENDING, DISPATCH).state == "waiting"

    def stimulate(self, what: str) -> None:
        """It happens; nobody has reacted."""
        match what:
            case "cancel":
                self.server.runs.cancel("r", None)
            case "timeout":
                self.now_s += LIMIT_S
            case "dispatch":
                self.server.store.commit([worker()])

    async def react(self, what: str) -> None:
        """The controller that such a stimulus wakes looks."""
        reactions: dict[str, Callable[[], Awaitable[object]]] = {
            "cancel": lambda: self.server.runs.reconcile("r"),
            "timeout": lambda: self.scheduler.reconcile(DISPATCH),
            "dispatch": lambda: self.scheduler.reconcile(PLACE),
        }
        await reactions[what]()

    async def settle(self) -> None:
        """Everybody looks until nothing changes any more."""
        for _ in range(3):
            await self.server.look()
            for name in self.server.store.names(PENDING):
                await self.scheduler.reconcile(name)
            await self.scheduler.reconcile(PLACE)

    async def assert_one_outcome(self) -> str:
        """How the wait ended; the lease, the step and the run agree with that."""
        store = self.server.store
        ended = store.get(PENDING, DISPATCH)
        await self.settle()
        pending = store.get(PENDING, DISPATCH)
        assert ended.live or pending == ended, "an end is final"
        assert pending.state in ("cancelled", "timed_out", "dispatched")
        if pending.state == "dispatched":
            lease = store.get(LEASES, DISPATCH)
            assert lease.spec.cancel, "the run was cancelled: its lease is to end"
            self.server.end(DISPATCH, Outcome(ok=False, reason="cancelled", error="cancelled"))
            await self.settle()
        assert len(list(store.list(LEASES))) == (pending.state == "dispatched")
        assert store.names(PENDING) == (DISPATCH,), "nothing is tried again"
        step = store.get(STEPS, "r.j.s")
        assert step.state == ("failed" if pending.state == "timed_out" else "cancelled")
        assert store.get(RUNS, "r").state == "cancelled"
        assert [key for key in self.server.said.keys if key.startswith("ended/")] == ["ended/j/s"]
        return str(pending.state)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_each_is_acted_on_at_once(
    order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    instant = Instant(monkeypatch)
    await instant.waits()
    for what in order:
        instant.stimulate(what)
        await instant.react(what)
    ends = {"cancel": "cancelled", "timeout": "timed_out", "dispatch": "dispatched"}
    # A cancel is a wish until the scheduler looks, yet nothing goes before it.
    assert await instant.assert_one_outcome() == ends[order[0]]


@pytest.mark.parametrize("reactions", ORDERS, ids="-".join)
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_all_have_happened_before_anybody_looks(
    order: tuple[str, ...], reactions: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    instant = Instant(monkeypatch)
    await instant.waits()
    for what in order:
        instant.stimulate(what)
    for what in reactions:
        await instant.react(what)
    await instant.assert_one_outcome()
