"""Small records of each kind that tests of the disk engine need."""

from __future__ import annotations

from typing import Any

from datastore.kinds import (
    LEASES,
    RUNS,
    TOKENS,
    WORKERS,
    Lease,
    LeaseSpec,
    LeaseStatus,
    Run,
    RunSpec,
    RunStatus,
    Token,
    TokenSpec,
    TokenStatus,
    Worker,
    WorkerSpec,
    WorkerStatus,
)
from datastore.record import Record

AT = "2026-11-29T16:41:31.123Z"


def worker(name: str = "w1", *, note: str | None = None, **status: Any) -> Worker:
    """A connected worker."""
    found = {
        "state": "connected",
        "instance": "i1",
        "machine": "m1",
        "token": "t1",
        "platform": "linux",
        "arch": "x86_64",
        "version": "0.1.0",
        "capacity": 2,
        "enrolled_at": AT,
        "last_seen_at": AT,
        **status,
    }
    return Record(
        WORKERS, name, f"uid-{name}", AT, WorkerSpec(note=note), WorkerStatus.model_validate(found)
    )


def seen(record: Worker, at: str, state: str | None = None) -> Worker:
    """The worker after its status alone changed."""
    assert record.status is not None
    changes = {"last_seen_at": at, "state": state or record.status.state}
    return record.with_status(record.status.model_copy(update=changes))


def token(name: str = "t1", state: str = "unused") -> Token:
    """A token that has not been used."""
    status = TokenStatus.model_validate({"state": state, "secret_hash": "00ff"})
    return Record(TOKENS, name, f"uid-{name}", AT, TokenSpec(expires_at=AT), status)


def lease(name: str = "r1.j.s.1", on: str = "w1", state: str = "bound") -> Lease:
    """A lease of a step on a worker."""
    run, job, step, _ = name.split(".")
    spec = LeaseSpec(
        run=run, workflow="wf", job=job, step=step, worker=on, instance="i1", model="m", method="f"
    )
    status = LeaseStatus.model_validate({"state": state, "bound_at": AT})
    return Record(LEASES, name, f"uid-{name}", AT, spec, status)


def run(name: str = "r1", state: str = "running", **spec: Any) -> Run:
    """A run of workflow `wf`."""
    asked = RunSpec(workflow="wf", workflow_id="wf-1", definition={"name": "wf"}, **spec)
    return Record(RUNS, name, f"uid-{name}", AT, asked, RunStatus(state=state, started_at=AT))  # type: ignore[arg-type]
