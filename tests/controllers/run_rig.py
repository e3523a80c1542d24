"""A store and a run controller over it, for tests that play scheduler, lease and worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from controllers.expression_references import DataRef
from controllers.ports import NoData
from controllers.run.context import RunContext
from controllers.run.controller import RunController
from datastore.clock import SystemClock
from datastore.definitions.model import model_from_source
from datastore.definitions.workflow import workflow_from_source
from datastore.errors import NotFound
from datastore.journal import Op
from datastore.kinds import (
    KINDS,
    LEASES,
    PENDING,
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
        self.fields: dict[str, dict[str, Any]] = {}

    @property
    def keys(self) -> list[str]:
        return list(self.fields)

    def emit(self, run: str, key: str, kind: str, **fields: Any) -> None:
        self.fields.setdefault(key, fields)


class NoExecutor:
    def running(self, step: str) -> bool:
        return False

    def start(self, step: str, call: Any, timeout_s: float | None) -> None:
        pytest.fail(f"{step} runs on the server")

    def stop(self, step: str) -> None: ...


class Outputs(NoData):
    """The latest outputs, by name."""

    def __init__(self) -> None:
        self.latest: dict[str, Any] = {}

    def read(self, ref: DataRef) -> Any:
        if ref.name not in self.latest:
            raise NotFound(f"model '{ref.model}' has no output '{ref.name}'")
        return self.latest[ref.name]


async def inline(work: Callable[[], Any]) -> Any:
    return work()


class Server:
    """The store and a run controller over it; `restart` makes a new controller."""

    def __init__(self) -> None:
        self.store = Store(KINDS.values(), AtOnce())
        self.outputs = Outputs()
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
                data=self.outputs,
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

    def end_wait(self, name: str, state: str) -> None:
        """The scheduler, or the boot sweep, ends a pending dispatch."""
        pending: Pending = self.store.get(PENDING, name)
        status = PENDING.status.model_validate({"state": state, "queued_at": AT, "ended_at": AT})
        self.store.commit([pending.with_status(status)])

    def end(self, name: str, outcome: Outcome) -> None:
        self.move(name, state="completed" if outcome.ok else "failed", outcome=outcome)
