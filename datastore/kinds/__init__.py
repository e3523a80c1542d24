"""The kinds of the fleet, each with its models and its table of moves: all is to be had from here.

A module is loaded when somebody asks for one of its names. Making models takes time, and a worker
needs those of a call alone, a command that lists one kind those of that kind.

Definitions and workflows are not records: people own them, see `datastore/definitions`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datastore.kinds.access import (
        ACCESS,
        Access,
        AccessSpec,
        AccessStatus,
        Role,
    )
    from datastore.kinds.call import Call, Outcome
    from datastore.kinds.dispatch import (
        LEASES,
        PENDING,
        LabelRule,
        Lease,
        LeaseSpec,
        LeaseStatus,
        NotIn,
        Pending,
        PendingSpec,
        PendingStatus,
        Placement,
        is_given_up,
    )
    from datastore.kinds.every import (
        KINDS,
        STARTS_NO_WORK,
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
    from datastore.kinds.pause import (
        PAUSES,
        Pause,
        PauseSpec,
        PauseStatus,
    )
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

__all__ = [
    "ACCESS",
    "Access",
    "AccessSpec",
    "AccessStatus",
    "Role",
    "LEASES",
    "PENDING",
    "Call",
    "LabelRule",
    "Lease",
    "LeaseSpec",
    "LeaseStatus",
    "NotIn",
    "Outcome",
    "Pending",
    "PendingSpec",
    "PendingStatus",
    "Placement",
    "is_given_up",
    "KINDS",
    "STARTS_NO_WORK",
    "TOKENS",
    "WORKERS",
    "Token",
    "TokenSpec",
    "TokenStatus",
    "Worker",
    "WorkerSpec",
    "WorkerStatus",
    "PAUSES",
    "Pause",
    "PauseSpec",
    "PauseStatus",
    "RUNS",
    "STEPS",
    "Counts",
    "KeptCopies",
    "KeptCopy",
    "Run",
    "RunSpec",
    "RunStatus",
    "Step",
    "StepSpec",
    "StepStatus",
    "WrittenOutput",
]

_DEFINED_IN = {
    "access": "ACCESS Access AccessSpec AccessStatus Role",
    "call": "Call Outcome",
    "dispatch": (
        "LEASES PENDING LabelRule Lease LeaseSpec LeaseStatus NotIn"
        " Pending PendingSpec PendingStatus Placement is_given_up"
    ),
    "every": "KINDS STARTS_NO_WORK",
    "fleet": "TOKENS WORKERS Token TokenSpec TokenStatus Worker WorkerSpec WorkerStatus",
    "pause": "PAUSES Pause PauseSpec PauseStatus",
    "run": (
        "RUNS STEPS Counts KeptCopies KeptCopy Run RunSpec RunStatus Step"
        " StepSpec StepStatus WrittenOutput"
    ),
}
_MODULES = {name: module for module, names in _DEFINED_IN.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
