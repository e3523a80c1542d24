"""Runs and their steps.

A run's record holds its phase and counts; each step that has started or ended has a record of its
own, so that finishing one never rewrites the others. A step that waits is its pending dispatch.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from datastore.kinds.call import Call, Outcome
from datastore.kinds.dispatch import Placement
from datastore.kinds.dispatch_name import run_of
from datastore.record import Kind, Model, Record


class Counts(Model):
    """Steps of a run by state."""

    total: int = 0
    waiting: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0


class RunSpec(Model):
    """What was asked for: the workflow and its models as they were when the run started."""

    workflow: str
    workflow_id: str
    inputs: dict[str, Any] = Field(default_factory=dict)
    priority: int | None = Field(default=None, ge=1, le=5)
    """Asked for at the command line: it beats the workflow's."""
    cancel: bool = False
    cancel_reason: str | None = None
    definition: dict[str, Any]
    """The workflow as written, parsed."""
    models: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """The model definitions that its steps name, by name."""
    own_process: Literal[True] | None = None
    """It runs in the process of its command, without a server, and ends with it."""


class KeptCopy(Model):
    """A step that `forEach` made, and its item by the item's name."""

    name: str
    item: dict[str, Any] = Field(default_factory=dict)


class KeptCopies(Model):
    """That a `forEach` has been opened, and so has the names of its copies."""

    copies: list[KeptCopy] | None = None
    """What it gave, if it reads outputs or the environment: evaluated again, after a restart, it
    might give something else."""
    error: str | None = None
    """Why it gave nothing."""


class RunStatus(Model):
    """Phase and counts; the steps tell the rest."""

    state: Literal["running", "succeeded", "failed", "cancelled"]
    started_at: str
    ended_at: str | None = None
    duration_ms: int | None = None
    counts: Counts = Field(default_factory=Counts)
    jobs: dict[str, str] = Field(default_factory=dict)
    for_each: dict[str, KeptCopies] | None = None
    """By `job/step` as written, where it might give something else later."""
    failure: str | None = None
    desired: str | None = None
    """Digest of the desired file that was taken into `spec`."""


class StepSpec(Model):
    """Which step of which run, and what it executes."""

    run: str
    workflow: str
    job: str
    step: str
    template: str | None = None
    """The step as written, where `forEach` made this one from it."""
    call: Call | None = None
    """None where the step ended before its expressions were resolved."""
    placement: Placement | None = None


class WrittenOutput(Model):
    """One version of an output that a step wrote. `size` in bytes."""

    name: str
    version: int
    size: int


class StepStatus(Model):
    """`running` has an owner: a live lease, or (with no `worker`) the server itself.

    `waiting` is a step that had started and waits again: its lease was lost before it wrote.
    """

    state: Literal["running", "waiting", "succeeded", "failed", "skipped", "cancelled"]
    started_at: str | None = None
    ended_at: str | None = None
    worker: str | None = None
    dispatch: str | None = None
    """The dispatch id of the latest lease."""
    episodes: int = 0
    waited_s: float = 0.0
    error: str | None = None
    allowed_failure: bool = False
    outcome: Outcome | None = None
    outputs: list[WrittenOutput] | None = None
    """What it wrote, in order; set at its end."""


Run = Record[RunSpec, RunStatus]
Step = Record[StepSpec, StepStatus]

_RUN_ENDS = frozenset({"succeeded", "failed", "cancelled"})

RUNS = Kind(
    folder="runs",
    title="Run",
    spec=RunSpec,
    status=RunStatus,
    moves={
        None: _RUN_ENDS | {"running"},
        "running": _RUN_ENDS,
        **dict.fromkeys(_RUN_ENDS, frozenset()),
    },
    live_states=frozenset({None, "running"}),
)


def _model_held_here(step: Step) -> str | None:
    """The model that a step without a placement holds; that of others is held by their lease."""
    spec = step.spec
    return spec.call.model_key if spec.call is not None and spec.placement is None else None


_STEP_ENDS = frozenset({"succeeded", "failed", "skipped", "cancelled"})

STEPS = Kind(
    folder="steps",
    title="Step",
    spec=StepSpec,
    status=StepStatus,
    moves={
        None: _STEP_ENDS | {"running"},
        "running": _STEP_ENDS | {"waiting"},
        "waiting": _STEP_ENDS | {"running"},
        **dict.fromkeys(_STEP_ENDS, frozenset()),
    },
    live_states=frozenset({"running", "waiting"}),
    live_indexes={"local_model": _model_held_here},
    name_indexes={"run": run_of},
)
