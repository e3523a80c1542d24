"""The kinds of the fleet, each with its models and its table of moves.

`KINDS` lists them by folder. Definitions and workflows are not records: people own them, see
`datastore/definitions`.
"""

from __future__ import annotations

from typing import Any

from datastore.kinds.access import ACCESS, Access, AccessSpec, AccessStatus, Role
from datastore.kinds.dispatch import (
    LEASES,
    PENDING,
    Call,
    LabelRule,
    Lease,
    LeaseSpec,
    LeaseStatus,
    NotIn,
    Outcome,
    Pending,
    PendingSpec,
    PendingStatus,
    Placement,
)
from datastore.kinds.fleet import (
    TOKENS,
    WORKERS,
    Token,
    TokenSpec,
    TokenStatus,
    Worker,
    WorkerSpec,
    WorkerStatus,
)
from datastore.kinds.pause import PAUSES, Pause, PauseSpec, PauseStatus
from datastore.kinds.run import (
    RUNS,
    STEPS,
    Counts,
    KeptCopies,
    KeptCopy,
    Run,
    RunSpec,
    RunStatus,
    Step,
    StepSpec,
    StepStatus,
    WrittenOutput,
)
from datastore.record import Kind

KINDS: dict[str, Kind[Any, Any]] = {
    kind.folder: kind for kind in (WORKERS, TOKENS, ACCESS, PAUSES, PENDING, LEASES, RUNS, STEPS)
}

STARTS_NO_WORK = frozenset({TOKENS.folder, ACCESS.folder, PAUSES.folder})
"""Kinds whose records stay valid when neither journal nor index knows them (decision 007)."""

__all__ = [
    "ACCESS",
    "KINDS",
    "LEASES",
    "PAUSES",
    "PENDING",
    "RUNS",
    "STARTS_NO_WORK",
    "STEPS",
    "TOKENS",
    "WORKERS",
    "Access",
    "AccessSpec",
    "AccessStatus",
    "Call",
    "Counts",
    "KeptCopies",
    "KeptCopy",
    "LabelRule",
    "Lease",
    "LeaseSpec",
    "LeaseStatus",
    "NotIn",
    "Outcome",
    "Pause",
    "PauseSpec",
    "PauseStatus",
    "Pending",
    "PendingSpec",
    "PendingStatus",
    "Placement",
    "Role",
    "Run",
    "RunSpec",
    "RunStatus",
    "Step",
    "StepSpec",
    "StepStatus",
    "Token",
    "TokenSpec",
    "TokenStatus",
    "Worker",
    "WorkerSpec",
    "WorkerStatus",
    "WrittenOutput",
]
