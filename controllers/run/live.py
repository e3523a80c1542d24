"""What the run controller remembers of a run that is under way; all of it follows from the records.

It is built again from them after a restart: the graph is walked from the start, and every step that
has records is taken as it stands.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controllers.expression_references import ReadData
from controllers.expressions import Scope
from controllers.run.graph import RunGraph, StepKey
from controllers.run.plan import Copy, written_requirement
from datastore.clock import parse_stamp, stamp
from datastore.definitions.placement import placement_of
from datastore.definitions.workflow import Job, Step, Workflow
from datastore.kinds import Counts, Run
from datastore.kinds.dispatch_name import file_name


@dataclass
class LiveRun:
    """One run."""

    run: str
    workflow: Workflow
    scope: Scope
    started: datetime
    priority: int | None
    graph: RunGraph
    cancelled: bool = False
    taken_on: bool = False
    """Whether what an earlier process left has been looked at: the counts leave it out before."""
    copies: dict[StepKey, Copy] = field(default_factory=dict)
    """Copies that have been named and have not ended."""
    key_of: dict[str, StepKey] = field(default_factory=dict)
    """By the name of the step's record, for steps that are active."""
    dirty: dict[str, None] = field(default_factory=dict)
    """Step records' names to look at: hints only, a full look follows with each resync."""
    ready_at: dict[StepKey, datetime] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    job_started: dict[str, datetime] = field(default_factory=dict)
    recorded: dict[str, str] = field(default_factory=dict)
    """When the first step was recorded of each job that an earlier process had started."""
    counts: dict[str, int] = field(default_factory=dict)
    written_counts: Counts | None = None
    written_at_s: float = float("-inf")
    failure: str | None = None
    plans_aside: dict[str, bool] = field(default_factory=dict)
    """By unit: whether planning its copies may take long and has to leave the loop."""
    failed_early: dict[StepKey, str] = field(default_factory=dict)
    """Units whose copies could not even be named, and why."""
    try_again_at_s: float | None = None
    """When to try again what could not be opened or planned, by the loop's clock."""
    refused: str | None = None
    """Why something was last, as it was told."""

    def step_name(self, key: StepKey) -> str:
        """The name of the step's record."""
        return f"{self.run}.{file_name(key[0])}.{file_name(key[1])}"

    def written(self, key: StepKey) -> tuple[Job, Step]:
        """Job and step as written, of a step or a copy."""
        unit = self.graph.unit_of(key)
        return unit.job, unit.step

    def template(self, key: StepKey) -> str | None:
        """The step as written, of a copy that `forEach` made; None for any other."""
        written = self.written(key)[1].name
        return None if written == key[1] else written

    def count(self, state: str) -> None:
        """One more step ended in `state`."""
        self.counts[state] = self.counts.get(state, 0) + 1

    def totals(self) -> Counts:
        """Steps by state as they stand now."""
        ended = {name: self.counts.get(name, 0) for name in _ENDS}
        running = len(self.running)
        waiting = self.graph.active - running
        if self.cancelled and self.graph.done:
            ended["cancelled"] += self.graph.never_started
        total = sum(ended.values()) + running + waiting
        if not (self.cancelled and self.graph.done):
            total += self.graph.never_started
        return Counts(total=total, waiting=waiting, running=running, **ended)

    def upcoming(self) -> Counter[str]:
        """Steps that will ask for a worker, by requirement as far as it is known."""
        found: Counter[str] = Counter()
        for unit, copies_left in self.graph.upcoming():
            template = placement_of(self.workflow, unit.job, unit.step)
            if template.active:
                found[written_requirement(template)] += copies_left
        return found


_ENDS = ("succeeded", "failed", "skipped", "cancelled")


def live_run(run: Run, workflow: Workflow, env: dict[str, str], read_data: ReadData) -> LiveRun:
    """The memory of a run at its first look."""
    started_at = run.status.started_at if run.status is not None else run.created_at
    about = {
        "id": run.name,
        "workflowId": run.spec.workflow_id,
        "workflowName": run.spec.workflow,
        "startedAt": started_at,
        "tags": workflow.tags,
    }
    return LiveRun(
        run=run.name,
        workflow=workflow,
        scope=Scope(inputs=run.spec.inputs, env=env, run=about, read_data=read_data),
        started=parse_stamp(started_at),
        priority=run.spec.priority,
        graph=RunGraph(workflow),
    )


def ended_run(
    run: Run, state: str, failure: str | None, now: datetime, live: LiveRun | None
) -> Run:
    """The run's record at its end, with the counts of what is remembered of it."""
    assert run.status is not None
    passed = now - parse_stamp(run.status.started_at)
    changes: dict[str, Any] = {
        "state": state,
        "ended_at": stamp(now),
        "duration_ms": max(0, round(passed.total_seconds() * 1000)),
        "failure": failure,
    }
    if live is not None:
        changes["counts"] = live.totals()
        changes["jobs"] = live.graph.jobs
    return run.with_status(run.status.model_copy(update=changes))
