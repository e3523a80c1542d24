"""The lock of a model is its live lease, or the step that the server runs itself."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from demand_rig import demand

from controllers.model_locks import ModelLocks
from controllers.pool import WorkerPool
from controllers.run.context import RunContext
from controllers.run.controller import RunController
from controllers.scheduler import Scheduler
from controllers.waiting import Group, ModelLimit
from datastore.clock import SystemClock
from datastore.definitions.model import ModelDefinition, model_from_source
from datastore.definitions.workflow import workflow_from_source
from datastore.journal import Op
from datastore.kinds import (
    KINDS,
    LEASES,
    PENDING,
    RUNS,
    STEPS,
    WORKERS,
    Lease,
    Outcome,
    Placement,
    RunSpec,
    WorkerSpec,
    WorkerStatus,
)
from datastore.record import Record
from datastore.store import Store

AT = "2026-11-29T12:00:00.000Z"
POOL = {"labels": {"pool": "a"}}
LIMITS = {"one": 1, "two": 2, "free": 0, "other": 1}


class AtOnce:
    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            on_durable()


class Said:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, run: str, key: str, kind: str, **fields: Any) -> None:
        self.events.append({"run": run, "key": key, "kind": kind, **fields})


class Here:
    """Steps that the server runs, until the test ends them."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def running(self, step: str) -> bool:
        return step in self.steps

    def start(self, step: str, call: Any, timeout_s: float | None) -> None:
        self.steps.append(step)

    def stop(self, step: str) -> None: ...


async def inline(work: Callable[[], Any]) -> Any:
    return work()


async def nothing() -> None:
    """Nobody looks yet."""


def find_model(name: str) -> ModelDefinition:
    return model_from_source(
        {"name": name, "type": "command/shell", "concurrency": LIMITS[name], "methods": {}}
    )


class Fleet:
    """The scheduler and the run controller over one store; workers that the test plays."""

    def __init__(self) -> None:
        self.store = Store(KINDS.values(), AtOnce())
        ids = itertools.count()
        self._uid = lambda: f"u{next(ids)}"
        self.restart()

    def restart(self) -> None:
        self.said, self.here = Said(), Here()
        self.scheduler = Scheduler(self.store, SystemClock(), self._uid, grace_s=60.0)
        context = RunContext(
            clock=SystemClock(), events=self.said, executor=self.here, new_uid=self._uid,
            offload=inline, find_model=find_model, check_call=lambda call: None,
        )  # fmt: skip
        self.runs = RunController(self.store, context)

    def worker(self, name: str, capacity: int, pool: str = "a") -> None:
        status = WorkerStatus(
            state="connected", instance="i", machine="m", token="t", labels={"pool": pool},
            platform="linux", arch="x86_64", capacity=capacity, version="1", enrolled_at=AT,
            last_seen_at=AT,
        )  # fmt: skip
        self.store.commit([Record(WORKERS, name, name, AT, WorkerSpec(), status)])

    async def start(self, run: str, *steps: dict[str, Any]) -> None:
        """A run of those steps: `s0`, `s1`, … each with its model and placement."""
        listed = [
            {
                "name": f"s{number}",
                "task": {
                    "type": "model_method",
                    "modelIdOrName": step["model"],
                    "methodName": "execute",
                },
                **step.get("place", POOL),
            }
            for number, step in enumerate(steps)
        ]
        workflow = workflow_from_source({"name": run, "jobs": [{"name": "j", "steps": listed}]})
        spec = RunSpec(workflow=run, workflow_id=str(workflow.id), definition=workflow.source)
        self.runs.create(workflow, spec, run)
        await self.settle()

    async def settle(self) -> None:
        """Until nobody has anything to do now."""
        while len(self.runs.queue) or len(self.scheduler.queue):
            for controller in (self.runs, self.scheduler):
                if len(controller.queue):
                    key = await controller.queue.get()
                    await controller.reconcile(key)
                    controller.queue.done(key)

    @property
    def leased(self) -> list[str]:
        return sorted(lease.name.removesuffix(".1") for lease in self.store.live(LEASES))

    async def end(self, step: str, state: str = "completed") -> None:
        lease: Lease = self.store.get(LEASES, f"{step}.1")
        assert lease.status is not None
        ok = {"completed": True, "failed": False}.get(state)
        outcome = None if ok is None else Outcome(ok=ok, reason=state)
        if state in ("completed", "failed"):
            active = lease.status.model_copy(update={"state": "active", "active_at": AT})
            self.store.commit([lease.with_status(active)])
            lease = self.store.get(LEASES, lease.name)
        assert lease.status is not None
        changes = {"state": state, "outcome": outcome, "ended_at": AT}
        self.store.commit([lease.with_status(lease.status.model_copy(update=changes))])
        await self.settle()

    async def end_here(self, step: str) -> None:
        self.here.steps.remove(step)
        self.runs.local_ended(step, Outcome(ok=True, reason="completed"))
        await self.settle()

    def reason(self, step: str) -> tuple[str, str]:
        """Code and text as the queue shows them."""
        spec = self.store.get(PENDING, f"{step}.1").spec
        reason = self.scheduler.reasons.of_dispatch(spec, fresh=True)
        return reason.code, reason.text


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    yield Fleet()


ONE = {"model": "one"}
HERE: dict[str, Any] = {"model": "one", "place": {}}


async def test_two_steps_on_one_model_run_one_after_the_other(fleet: Fleet) -> None:
    fleet.worker("w1", 8)
    await fleet.start("r", ONE, ONE)
    assert fleet.leased == ["r.j.s0"]
    await fleet.end("r.j.s0")
    assert fleet.leased == ["r.j.s1"]
    await fleet.end("r.j.s1")
    assert fleet.store.get(RUNS, "r").state == "succeeded"


async def test_runs_share_the_lock_and_who_waits_says_who_holds_it(fleet: Fleet) -> None:
    fleet.worker("w1", 8)
    await fleet.start("a", ONE)
    await fleet.start("b", ONE)
    text = "model 'one' is held by a/s0 on w1"
    assert fleet.reason("b.j.s0") == ("model_held", text)
    pending = fleet.store.get(PENDING, "b.j.s0.1")
    assert pending.status is not None
    assert (pending.state, pending.status.reason) == ("waiting", text)
    queued = [one for one in fleet.said.events if one["kind"] == "step_queued"]
    assert [(one["run"], one["reason"]) for one in queued] == [("b", text)]


@pytest.mark.parametrize("state", ["completed", "failed", "refused", "expired"])
async def test_the_lock_ends_with_its_lease(fleet: Fleet, state: str) -> None:
    fleet.worker("w1", 8)
    fleet.worker("w2", 4)
    await fleet.start("a", ONE)
    await fleet.start("b", ONE)
    await fleet.end("a.j.s0", state)
    (lease,) = fleet.store.live(LEASES)
    # Where it was not the step's own end it waits again, and one of the two has the model.
    ended = state in ("completed", "failed")
    assert lease.name in ({"b.j.s0.1"} if ended else {"a.j.s0.2", "b.j.s0.1"})
    assert fleet.store.get(RUNS, "a").live != ended


@pytest.mark.parametrize(("model", "at_once"), [("two", 2), ("free", 4)])
async def test_the_definition_lifts_it(fleet: Fleet, model: str, at_once: int) -> None:
    fleet.worker("w1", 8)
    await fleet.start("r", *[{"model": model}] * 4)
    assert fleet.leased == [f"r.j.s{number}" for number in range(at_once)]
    assert all(fleet.store.get(PENDING, f"r.j.s{n}.1").spec.model_concurrency == LIMITS[model]
               for n in range(4))  # fmt: skip


async def test_a_held_model_delays_nobody_behind_it(fleet: Fleet) -> None:
    fleet.worker("w1", 2)
    await fleet.start("a", ONE, ONE, ONE)
    await fleet.start("b", {"model": "other"})
    assert fleet.leased == ["a.j.s0", "b.j.s0"]
    await fleet.start("c", {"model": "free"})
    # Both slots are taken: it waits for a slot, the others for the model.
    assert fleet.reason("c.j.s0")[0] == "full"
    assert fleet.reason("a.j.s1")[0] == "model_held"
    await fleet.end("b.j.s0")
    assert fleet.leased == ["a.j.s0", "c.j.s0"]


async def test_who_waits_for_a_model_goes_by_rank(fleet: Fleet) -> None:
    fleet.worker("w1", 8)
    await fleet.start("a", ONE)
    await fleet.start("calm", {**ONE, "place": {**POOL, "priority": 4}})
    await fleet.start("urgent", {**ONE, "place": {**POOL, "priority": 1}})
    await fleet.start("normal", ONE)
    went = []
    while fleet.leased:
        (step,) = fleet.leased
        went.append(step.partition(".")[0])
        await fleet.end(step)
    assert went == ["a", "urgent", "normal", "calm"]


async def test_other_requirements_compete_for_the_model_with_the_same_rank(fleet: Fleet) -> None:
    fleet.worker("w1", 8)
    fleet.worker("w2", 8, "b")
    await fleet.start("a", ONE)
    await fleet.start("b", {"model": "one", "place": {"labels": {"pool": "b"}}})
    await fleet.start("c", ONE)
    await fleet.end("a.j.s0")
    assert fleet.leased == ["b.j.s0"]
    await fleet.end("b.j.s0")
    assert fleet.leased == ["c.j.s0"]


async def test_who_cannot_be_placed_does_not_keep_the_model_from_others(fleet: Fleet) -> None:
    fleet.worker("w1", 8)
    await fleet.start("a", ONE)
    await fleet.start("nowhere", {"model": "one", "place": {"labels": {"pool": "none"}}})
    await fleet.start("b", ONE)
    # A worker would have to come first, whoever holds the model.
    assert fleet.reason("nowhere.j.s0")[0] == "no_match"
    await fleet.end("a.j.s0")
    assert fleet.leased == ["b.j.s0"]


async def test_who_leaves_the_queue_makes_room_for_the_next(fleet: Fleet) -> None:
    fleet.worker("w1", 8)
    await fleet.start("a", ONE)
    await fleet.start("b", ONE)
    await fleet.start("c", ONE)
    fleet.runs.cancel("b", None)
    await fleet.settle()
    assert fleet.store.get(RUNS, "b").state == "cancelled"
    await fleet.end("a.j.s0")
    assert fleet.leased == ["c.j.s0"]


async def test_demand_counts_it_as_blocked(fleet: Fleet) -> None:
    fleet.worker("w1", 8)
    await fleet.start("a", ONE, ONE, ONE)
    now = datetime.now(UTC)
    (entry,) = demand(fleet.store, fleet.scheduler.reasons, now)
    assert (entry.waiting, entry.blocked, entry.running) == (0, 2, 1)
    assert entry.reason_code == "model_held"
    await fleet.start("b", *[{"model": "free"}] * 9)
    (entry,) = demand(fleet.store, fleet.scheduler.reasons, now)
    assert (entry.waiting, entry.blocked, entry.running) == (2, 2, 8)
    assert entry.reason_code != "model_held"


async def test_those_put_aside_are_not_gone_through_while_their_model_is_held(
    fleet: Fleet,
) -> None:
    fleet.worker("w1", 8)
    await fleet.start("a", ONE)
    pool = WorkerPool(fleet.store, lambda placement: None, ModelLocks(fleet.store))
    group = Group(Placement(labels={"pool": "a"}), model=ModelLimit("command/shell/one", 1))
    assert pool.best("key", group) is None
    await fleet.end("a.j.s0")
    assert pool.best("key", group) == fleet.store.get(WORKERS, "w1")


# -- steps that the server runs itself -----------------------------------------------------------


async def test_steps_on_the_server_share_the_lock_with_placed_ones(fleet: Fleet) -> None:
    fleet.worker("w1", 8)
    await fleet.start("here", HERE)
    await fleet.start("there", ONE)
    await fleet.start("again", HERE)
    assert fleet.here.steps == ["here.j.s0"]
    assert fleet.reason("there.j.s0")[1] == "model 'one' is held by here/s0 on the server"
    # It has no record before it starts, but the run says why it waits.
    assert fleet.store.find(STEPS, "again.j.s0") is None
    told = [one for one in fleet.said.events if one["kind"] == "step_waiting"]
    assert [one["reason"] for one in told] == ["model 'one' is held by here/s0 on the server"]
    await fleet.end_here("here.j.s0")
    both = [*fleet.here.steps, *fleet.leased]
    assert len(both) == 1
    if fleet.leased:
        await fleet.end("there.j.s0")
        assert fleet.here.steps == ["again.j.s0"]


async def test_a_placed_step_goes_when_the_server_has_ended_its_own(fleet: Fleet) -> None:
    fleet.worker("w1", 8)
    await fleet.start("here", HERE)
    await fleet.start("there", ONE)
    assert fleet.leased == []
    await fleet.end_here("here.j.s0")
    assert fleet.leased == ["there.j.s0"]


async def test_nobody_overtakes_a_step_of_the_server_that_stands_in_line(fleet: Fleet) -> None:
    await fleet.start("a", HERE)
    await fleet.start("b", HERE)
    settle, fleet.settle = fleet.settle, nothing  # type: ignore[method-assign]
    await fleet.start("c", HERE)
    await fleet.end_here("a.j.s0")
    # The model is free now, and the controller looks at `c` first.
    await settle()
    assert fleet.here.steps == ["b.j.s0"]


async def test_a_lease_keeps_a_step_of_the_server_waiting(fleet: Fleet) -> None:
    fleet.worker("w1", 8)
    await fleet.start("there", ONE)
    await fleet.start("here", HERE, HERE)
    assert fleet.here.steps == []
    assert fleet.runs.totals("here")["waiting"] == 2  # type: ignore[index]
    await fleet.end("there.j.s0")
    assert fleet.here.steps == ["here.j.s0"]
    await fleet.end_here("here.j.s0")
    assert fleet.here.steps == ["here.j.s1"]
    await fleet.end_here("here.j.s1")
    assert fleet.store.get(RUNS, "here").state == "succeeded"


async def test_a_step_of_the_server_that_waits_for_its_model_can_be_cancelled(
    fleet: Fleet,
) -> None:
    await fleet.start("a", HERE)
    await fleet.start("b", HERE)
    await fleet.start("c", HERE)
    fleet.runs.cancel("b", "not needed")
    await fleet.settle()
    assert fleet.store.get(RUNS, "b").state == "cancelled"
    assert fleet.store.get(STEPS, "b.j.s0").state == "cancelled"
    await fleet.end_here("a.j.s0")
    assert fleet.here.steps == ["c.j.s0"]


async def test_limits_hold_on_the_server_too(fleet: Fleet) -> None:
    await fleet.start("r", *[{"model": "two", "place": {}}] * 4)
    assert fleet.here.steps == ["r.j.s0", "r.j.s1"]
    await fleet.end_here("r.j.s1")
    assert fleet.here.steps == ["r.j.s0", "r.j.s2"]


# -- restarts ------------------------------------------------------------------------------------


async def test_a_lease_that_is_recovering_holds_its_model(fleet: Fleet) -> None:
    fleet.worker("w1", 8)
    await fleet.start("a", ONE)
    lease = fleet.store.get(LEASES, "a.j.s0.1")
    assert lease.status is not None
    recovering = lease.status.model_copy(update={"state": "recovering", "recovering_at": AT})
    fleet.store.commit([lease.with_status(recovering)])
    fleet.restart()
    for controller in (fleet.runs, fleet.scheduler):
        for key in controller.live_keys():
            controller.queue.add(key)
    await fleet.settle()
    await fleet.start("b", ONE)
    await fleet.start("here", HERE)
    assert fleet.leased == ["a.j.s0"]
    assert fleet.here.steps == []
    await fleet.end("a.j.s0", "expired")
    assert len(fleet.here.steps) + len(fleet.leased) == 1


async def test_a_great_fan_out_over_one_model_is_put_aside_in_turns(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controllers.scheduler.LOOKS_AT_ONCE", 3)
    fleet.worker("w1", 1)
    await fleet.start("first", {"model": "other"})
    await fleet.start("many", *[ONE] * 9, {"model": "free"})
    fleet.worker("w2", 3)
    fleet.scheduler.place()
    assert fleet.leased == ["first.j.s0", "many.j.s0"]
    await fleet.settle()
    assert fleet.leased == ["first.j.s0", "many.j.s0", "many.j.s9"]
