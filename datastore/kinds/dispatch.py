"""A pending dispatch (a step's wait for a worker) and the lease that answers it.

Both have the same name, the *dispatch id*: one episode of waiting can have one lease at most, and
whoever sees either name knows the other.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from datastore.kinds.call import Call, Outcome, model_key
from datastore.kinds.dispatch_name import run_of
from datastore.record import Kind, Model, Record


class NotIn(Model):
    """A label rule: any value but these, or no such label at all."""

    not_: list[str] = Field(alias="not", min_length=1)


LabelRule = str | list[str] | NotIn
"""What a worker's label must be: this, one of these, or none of these."""


class Placement(Model):
    """Which worker may run a step. All given parts must hold; `target` alone decides if given."""

    target: str | None = None
    labels: dict[str, LabelRule] = Field(default_factory=dict)
    platform: str | None = None


class PendingSpec(Model):
    """Who asks, for what kind of worker, and how long it may wait."""

    run: str
    workflow: str
    job: str
    step: str
    template: str | None = None
    """The step as written, where `forEach` made this one from it."""
    episode: int
    call: Call
    placement: Placement
    priority: int = Field(default=3, ge=1, le=5)
    wait_limit_s: float | None = None
    """How long the step may wait in all, seconds; None waits for ever."""
    limit_from: str = "default"
    """Which layer set the limit: step, job, workflow, serve, default, or edit (by hand)."""
    waited_before_s: float = 0.0
    """Waiting time of the step's earlier episodes, seconds."""
    asked_at: str | None = None
    """When the first of these began, which may have no record any more; None in the first."""
    timeout_s: float | None = None
    """How long the execution may take, seconds."""
    affinity: str | None = None
    """The group of steps that must stay on one worker: the run, or `<run>.<job>`."""
    model_concurrency: int = Field(default=1, ge=0)
    """How many executions of the model there may be at the same time; 0 without a limit."""
    cancel: bool = False
    desired: str | None = None
    """Digest of the desired file that was taken into this spec; the status is the scheduler's."""


class PendingStatus(Model):
    """`waiting` only once the scheduler has looked and found nobody."""

    state: Literal["waiting", "dispatched", "timed_out", "cancelled", "orphaned"]
    queued_at: str
    reason: str | None = None
    """Why it waits, or why it ended."""
    reason_changes: int = 0
    """How often the reason has changed since it was queued."""
    error: Literal["affinity_lost"] | None = None
    """Set where it ended because it can never be placed."""
    waited_s: float | None = None
    """How long this episode waited, seconds; set at its end."""
    ended_at: str | None = None
    worker: str | None = None


class LeaseSpec(Model):
    """This step, on this worker. `instance` is the worker's process at the time."""

    run: str
    workflow: str
    job: str
    step: str
    worker: str
    instance: str
    model_type: str = ""
    model: str
    method: str
    requirement: str = ""
    """What the step asked for, in words: `pool=gpu, platform=linux`."""
    affinity: str | None = None
    cancel: bool = False
    desired: str | None = None
    """Digest of the desired file that was taken into this spec."""


class LeaseStatus(Model):
    """`wrote_at` is durable before the first byte of an output is (promise 2)."""

    state: Literal["bound", "active", "recovering", "completed", "failed", "refused", "expired"]
    bound_at: str
    active_at: str | None = None
    recovering_at: str | None = None
    wrote_at: str | None = None
    ended_at: str | None = None
    reason: str | None = None
    outcome: Outcome | None = None


Pending = Record[PendingSpec, PendingStatus]
Lease = Record[LeaseSpec, LeaseStatus]


_ENDS = frozenset({"dispatched", "timed_out", "cancelled", "orphaned"})

PENDING = Kind(
    folder="pending",
    title="PendingDispatch",
    spec=PendingSpec,
    status=PendingStatus,
    moves={
        None: _ENDS | {"waiting"},
        "waiting": _ENDS,
        **dict.fromkeys(_ENDS, frozenset()),
    },
    live_states=frozenset({None, "waiting"}),
    name_indexes={"run": run_of},
)

_LIVE = frozenset({"bound", "active", "recovering"})
_LEASE_ENDS = frozenset({"completed", "failed", "refused", "expired"})

LEASES = Kind(
    folder="leases",
    title="Lease",
    spec=LeaseSpec,
    status=LeaseStatus,
    moves={
        None: frozenset({"bound"}),
        "bound": frozenset({"active", "recovering", "failed", "refused", "expired"}),
        "active": frozenset({"recovering", "completed", "failed", "expired"}),
        "recovering": frozenset({"active", "completed", "failed", "expired"}),
        **dict.fromkeys(_LEASE_ENDS, frozenset()),
    },
    live_states=_LIVE,
    live_indexes={
        "worker": lambda lease: lease.spec.worker,
        "model": lambda lease: model_key(lease.spec.model_type, lease.spec.model),
    },
    name_indexes={"run": run_of},
)


def is_given_up(lease: Lease) -> bool:
    """Whether its step is over while the lease lives: cancelled, with its worker away.

    What the worker runs may go on until it is back, so it keeps its slot and its model.
    """
    return lease.spec.cancel and lease.state == "recovering"
