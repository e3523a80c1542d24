"""The reasons that come from counted workers are those that a look at every worker would give."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.placement import Fleet, Reason, explain
from controllers.reasons import LOOKED_THROUGH_MOST
from controllers.scheduler import Scheduler
from datastore.clock import SystemClock
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
PLACEMENTS = [
    Placement(),
    Placement(platform="linux/arm64"),
    Placement(target="w1"),
    Placement(target="w2-process"),
    Placement(target="nobody"),
    *(
        Placement.model_validate({"labels": labels})
        for labels in (
            {"pool": "a"}, {"pool": ["a", "b"], "zone": "y"}, {"pool": {"not": ["a"]}},
            {"zone": "z"}, {"pol": "a"},
        )
    ),
]  # fmt: skip


class AtOnce:
    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Any = None) -> None:
        if on_durable is not None:
            on_durable()


class Fleets:
    """Some workers, what they run, and the time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        asyncio.get_running_loop().time = lambda: self.now_s  # type: ignore[method-assign]
        self.store = Store(KINDS.values(), AtOnce())
        self.scheduler = Scheduler(self.store, SystemClock(), lambda: "uid", grace_s=60.0)
        self.steps = 0

    def worker(self, name: str, spec: dict[str, Any], status: dict[str, Any]) -> None:
        known = {
            "instance": f"{name}-process", "machine": name, "token": name, "version": "1",
            "platform": "linux", "enrolled_at": AT, "last_seen_at": AT,
        }  # fmt: skip
        made = WorkerStatus.model_validate({**known, **status})
        old = self.store.find(WORKERS, name)
        if old is None:
            old = Record(WORKERS, name, name, AT, WorkerSpec())
        self.store.commit([old.with_spec(**spec).with_status(made)])

    def forget(self, name: str) -> None:
        self.store.commit(removals=[(WORKERS, name)])

    async def step(self, placement: Placement) -> None:
        self.steps += 1
        name = f"r{self.steps}.j.s.1"
        call = Call(model_type="command/shell", model=f"m{self.steps}", method="execute")
        spec = PendingSpec(
            run=f"r{self.steps}", workflow="w", job="j", step="s", episode=1,
            placement=placement, call=call, wait_limit_s=None,
        )  # fmt: skip
        self.store.commit([Record(PENDING, name, name, AT, spec)])
        await self.scheduler.reconcile(name)

    async def end(self, which: int, state: str) -> None:
        leases = self.store.live(LEASES)
        if leases:
            lease = leases[which % len(leases)]
            assert lease.status is not None
            ended = {"state": state, "ended_at": AT}
            self.store.commit([lease.with_status(lease.status.model_copy(update=ended))])
            await self.scheduler.reconcile("place")

    async def wait(self, seconds: float) -> None:
        """The loop calls what is due, as it does by itself when time passes."""
        self.now_s += seconds
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def plainly(self, placement: Placement) -> Reason:
        """By a look at every worker."""
        assert self.store.count(WORKERS) <= LOOKED_THROUGH_MOST
        gone = [worker for worker in self.store.list(WORKERS) if not worker.live]
        everyone = [*self.store.live(WORKERS), *gone]
        fleet = Fleet(
            everyone=lambda: everyone,
            holders=lambda worker: self.store.names_by(LEASES, "worker", worker),
            refused=self.scheduler._pool.refused,
            known=self.store.count(WORKERS),
        )
        return explain(placement, fleet)


names = st.sampled_from(["w1", "w2", "w3", "w4"])
specs = st.fixed_dictionaries(
    {}, optional={"schedulable": st.booleans(), "drain": st.booleans(), "note": st.just("disk")}
)
statuses = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["connected", "connected", "unverified", "disconnected"]),
        "arch": st.sampled_from(["x86_64", "arm64"]),
        "capacity": st.integers(1, 3),
        "labels": st.dictionaries(st.sampled_from(["pool", "zone"]), st.sampled_from("aby")),
    },
    optional={"draining": st.booleans(), "verify_failure": st.sampled_from(["no", "way"])},
)
moves = st.one_of(
    st.tuples(st.just("worker"), names, specs, statuses),
    st.tuples(st.just("worker"), names, st.just({}), statuses),
    st.tuples(st.just("forget"), names),
    st.tuples(st.just("step"), st.sampled_from(PLACEMENTS)),
    st.tuples(st.just("step"), st.sampled_from(PLACEMENTS)),
    st.tuples(st.just("end"), st.integers(0, 9), st.sampled_from(["expired", "refused"])),
    st.tuples(st.just("wait"), st.sampled_from([0.4, 1.0, 2.5])),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(moves, min_size=4, max_size=30))
def test_every_reason_is_the_one_that_a_look_at_every_worker_gives(story: list[Any]) -> None:
    async def told() -> None:
        fleet = Fleets()
        for verb, *rest in story:
            done = getattr(fleet, verb)(*rest)
            if done is not None:
                await done
            for placement in PLACEMENTS:
                reason = fleet.scheduler.reasons.of(placement, fresh=True)
                assert reason == fleet.plainly(placement)

    asyncio.run(told())
