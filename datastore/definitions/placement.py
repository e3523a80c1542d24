"""What a step inherits: placement and priority, per field, the inner layer wins."""

from __future__ import annotations

from dataclasses import dataclass, field

from datastore.definitions.schema import LabelValue
from datastore.definitions.workflow import Job, Placed, Step, Workflow

DEFAULT_PRIORITY = 3


@dataclass(frozen=True, slots=True)
class PlacementTemplate:
    """Where a step may run, as written: expressions are still in it."""

    target: str | None = None
    labels: dict[str, LabelValue] = field(default_factory=dict)
    platform: str | None = None
    queue_timeout_s: float | None = None
    """How long the step may wait, seconds; 0 waits for ever, None: no layer says."""
    queue_timeout_from: str | None = None
    """The layer that set it: `step`, `job` or `workflow`."""

    @property
    def active(self) -> bool:
        """Whether the step needs a worker; decided before expressions are evaluated."""
        return self.target is not None or self.platform is not None or bool(self.labels)


def placement_of(workflow: Workflow, job: Job, step: Step) -> PlacementTemplate:
    """The placement in force for a step; `labels: {}` in an inner layer clears those outside."""
    layers: tuple[tuple[str, Placed], ...] = (("step", step), ("job", job), ("workflow", workflow))
    placed = [layer for _, layer in layers]
    timeout = next(
        ((one.queue_timeout_s, name) for name, one in layers if one.queue_timeout_s is not None),
        (None, None),
    )
    return PlacementTemplate(
        target=next((one.target for one in placed if one.target is not None), None),
        labels=next((one.labels for one in placed if one.labels is not None), {}),
        platform=next((one.platform for one in placed if one.platform is not None), None),
        queue_timeout_s=timeout[0],
        queue_timeout_from=timeout[1],
    )


def priority_of(workflow: Workflow, job: Job, step: Step) -> int:
    """1 to 5, 3 where no layer says."""
    layers: tuple[Placed, ...] = (step, job, workflow)
    return next((one.priority for one in layers if one.priority is not None), DEFAULT_PRIORITY)
