"""Runs that an earlier process of the server had started: taken on as their records stand."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controllers.run.context import RunContext
from controllers.run.controller import RunController
from datastore.clock import SystemClock
from datastore.definitions.model import model_from_source
from datastore.definitions.workflow import workflow_from_source
from datastore.journal import Op
from datastore.kinds import (
    KINDS,
    LEASES,
    PENDING,
    RUNS,
    STEPS,
    LeaseSpec,
    LeaseStatus,
    Outcome,
    Pending,
    RunSpec,
)
from datastore.record import Record
from datastore.store import Store

MODEL = {"name": "m", "type": "command/shell"}
TASK = {"type": "model_method", "modelIdOrName": "m", "methodName": "execute"}
AT = "2026-11-29T12:00:00.000Z"


class AtOnce:
    """A journal whose commits are durable at once."""

    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            on_durable()


class Said:
    """The events, by key."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def emit(self, run: str, key: str, kind: str, **fields: Any) -> None:
        if key not in self.keys:
            self.keys.append(key)


class NoExecutor:
    def running(self, step: str) -> bool:
        return False

    def start(self, step: str, call: Any, timeout_s: float | None) -> None:
        pytest.fail(f"{step} runs on the server")

    def stop(self, step: str) -> None: ...


async def inline(work: Callable[[], Any]) -> Any:
    return work()


class Server:
    """The store and a run controller over it; `restart` makes a new controller."""

    def __init__(self) -> None:
        self.store = Store(KINDS.values(), AtOnce())
        self.restart()

    def restart(self) -> None:
        self.said = Said()
        ids = itertools.count()
        self.runs = RunController(
            self.store,
            RunContext(
                clock=SystemClock(),
                events=self.said,
                executor=NoExecutor(),
                new_uid=lambda: f"u{next(ids)}",
                offload=inline,
                find_model=lambda name: model_from_source(MODEL),
                check_call=lambda call: None,
            ),
        )

    async def look(self) -> None:
        """Reconcile the run until nothing is left to do now."""
        self.runs.queue.add("r")
        while len(self.runs.queue):
            key = await self.runs.queue.get()
            await self.runs.reconcile(key)
            self.runs.queue.done(key)

    def start(self, **source: Any) -> None:
        workflow = workflow_from_source({"name": "w", **source})
        spec = RunSpec(workflow="w", workflow_id=str(workflow.id), definition=workflow.source)
        self.runs.create(workflow, spec, "r")

    def lease(self, name: str) -> None:
        """The scheduler binds a pending dispatch, and its worker accepts."""
        pending: Pending = self.store.get(PENDING, name)
        spec = LeaseSpec(
            run="r", workflow="w", job="j", step=pending.spec.step,
            worker="box", instance="i", model="m", method="execute",
        )  # fmt: skip
        bound = LeaseStatus(state="bound", bound_at=AT)
        made = Record(kind=LEASES, name=name, uid=name, created_at=AT, spec=spec, status=bound)
        ended = {"state": "dispatched", "queued_at": AT, "ended_at": AT, "worker": "box"}
        status = PENDING.status.model_validate(ended)
        self.store.commit([made, pending.with_status(status)])
        self.move(name, state="active", active_at=AT)

    def move(self, name: str, **changes: Any) -> None:
        lease = self.store.get(LEASES, name)
        assert lease.status is not None
        self.store.commit([lease.with_status(lease.status.model_copy(update=changes))])

    def end(self, name: str, outcome: Outcome) -> None:
        self.move(name, state="completed" if outcome.ok else "failed", outcome=outcome)


@asynccontextmanager
async def two_steps_of_which_one_runs() -> AsyncIterator[Server]:
    server = Server()
    steps = [{"name": name, "task": TASK, "labels": {"pool": "a"}} for name in ("s0", "s1")]
    server.start(jobs=[{"name": "j", "steps": steps, "concurrency": 1}])
    await server.look()
    server.lease("r.j.s0.1")
    await server.look()
    yield server


async def test_a_run_cancelled_before_a_restart_cancels_what_runs_and_counts_it() -> None:
    async with two_steps_of_which_one_runs() as server:
        server.runs.cancel("r", None)
        server.restart()
        await server.look()
        assert server.store.get(LEASES, "r.j.s0.1").spec.cancel
        assert server.store.get(RUNS, "r").state == "running"
        server.end("r.j.s0.1", Outcome(ok=False, reason="cancelled", error="cancelled"))
        await server.look()
        run = server.store.get(RUNS, "r")
        assert run.state == "cancelled"
        assert run.status is not None
        assert run.status.counts.cancelled == run.status.counts.total == 2
        assert server.store.get(STEPS, "r.j.s0").state == "cancelled"


async def test_a_step_that_runs_over_a_restart_counts_against_the_limits() -> None:
    server = Server()
    after_d = [{"step": "d", "condition": {"type": "succeeded"}}]
    steps = [
        {"name": "b", "task": TASK, "labels": {"pool": "a"}, "dependsOn": after_d},
        {"name": "c", "task": TASK, "labels": {"pool": "a"}, "dependsOn": after_d},
        {"name": "d", "task": TASK, "labels": {"pool": "a"}},
        {"name": "x", "task": TASK, "labels": {"pool": "a"}},
    ]
    server.start(jobs=[{"name": "j", "steps": steps, "concurrency": 2}])
    await server.look()
    for name in ("r.j.d.1", "r.j.x.1"):
        server.lease(name)
    server.end("r.j.d.1", Outcome(ok=True, reason="completed"))
    await server.look()
    assert server.store.find(PENDING, "r.j.b.1") is not None
    server.restart()
    await server.look()
    # x still runs and b waits: c would be the third.
    assert server.store.find(PENDING, "r.j.c.1") is None
    server.end("r.j.x.1", Outcome(ok=True, reason="completed"))
    await server.look()
    assert server.store.find(PENDING, "r.j.c.1") is not None


async def test_the_end_of_a_run_that_nobody_could_tell_is_told_after_the_restart() -> None:
    async with two_steps_of_which_one_runs() as server:
        for step in ("s0", "s1"):
            if step == "s1":
                server.lease("r.j.s1.1")
            server.end(f"r.j.{step}.1", Outcome(ok=True, reason="completed"))
            await server.look()
        assert server.store.get(RUNS, "r").state == "succeeded"
        told = server.said.keys
        server.restart()
        await server.look()
        assert server.said.keys == []
        server.runs.tell_again(["r"])
        await server.look()
        assert server.said.keys[-1] == "run_completed"
        assert {"ended/j/s0", "ended/j/s1", "job_ended/j"} < set(server.said.keys)
        assert set(server.said.keys) < set(told)
