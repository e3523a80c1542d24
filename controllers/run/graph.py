"""Which steps of a run may start, which are skipped, and how jobs and the run end. Pure.

A *unit* is a step as written; `forEach` opens it into copies, every other has one copy. A unit is
decided when everything it depends on has ended: it opens if every condition holds, else it is
skipped. Nothing waits for a level: each copy starts as soon as its own dependencies are met and the
limits of its step, its job and the workflow allow it. Lighter weights go first, then names.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, cast

from datastore.definitions.conditions import Ended, holds
from datastore.definitions.workflow import Job, Step, Workflow
from datastore.kinds.dispatch_name import file_name

StepKey = tuple[str, str]
"""Job and step name; for a copy the name of the copy."""


@dataclass
class Unit:
    """A step as written, and what became of it."""

    job: Job
    step: Step
    unmet: int = 0
    """Steps it depends on that have not ended."""
    state: Literal["blocked", "opening", "open"] | Ended = "blocked"
    allowed: bool = False
    left: int = 0
    active: int = 0
    ready: deque[str] = field(default_factory=deque)
    worst: Ended = "succeeded"
    failed_hard: bool = False

    @property
    def key(self) -> StepKey:
        return (self.job.name, self.step.name)


@dataclass
class _JobState:
    job: Job
    unmet: int
    units: list[Unit]
    left: int
    state: Literal["blocked", "running"] | Ended = "blocked"
    active: int = 0
    failed: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job started or ended; `state` is `running` or how it ended."""

    job: str
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Skip:
    """A step that will not run, and why."""

    key: StepKey
    reason: str


class RunGraph:
    """The state of one run. Every method is plain; `take_…` hands out what is new, once."""

    def __init__(self, workflow: Workflow) -> None:
        self._limit = workflow.concurrency or 0
        self._active = 0
        self._jobs: dict[str, _JobState] = {}
        self._units: dict[StepKey, Unit] = {}
        self._unit_of: dict[StepKey, Unit] = {}
        self._recorded: dict[tuple[str, str], Unit] = {}
        self._step_users: dict[StepKey, list[Unit]] = {}
        self._job_users: dict[str, list[_JobState]] = {}
        self._opening: deque[Unit] = deque()
        self._with_ready: list[Unit] = []
        self._aside_units: list[Unit] = []
        self._aside: list[StepKey] = []
        self._skips: deque[Skip] = deque()
        self._changes: deque[JobChange] = deque()
        self._stopped = False
        for job in workflow.jobs:
            self._add_job(job)
        order = sorted(self._jobs.values(), key=lambda one: (one.job.weight, one.job.name))
        for state in order:
            if state.unmet == 0:
                self._start_job(state)

    def _add_job(self, job: Job) -> None:
        units = [Unit(job, step, unmet=len(step.depends_on)) for step in job.steps]
        units.sort(key=lambda unit: (unit.step.weight, unit.step.name))
        state = _JobState(job, unmet=len(job.depends_on), units=units, left=len(units))
        self._jobs[job.name] = state
        for unit in units:
            self._units[unit.key] = unit
            self._recorded[job.name, file_name(unit.step.name)] = unit
            for dependency in unit.step.depends_on:
                self._step_users.setdefault((job.name, dependency.step), []).append(unit)
        for dependency_job in job.depends_on:
            self._job_users.setdefault(dependency_job.job, []).append(state)

    # -- what is new -----------------------------------------------------------------------------

    def take_opening(self) -> Unit | None:
        """A unit whose copies must be named now, by `open`."""
        return self._opening.popleft() if self._opening else None

    def put_back(self, *units: Unit) -> None:
        """Have units opened later that `take_opening` handed out."""
        self._opening.extend(units)

    def take_ready(self) -> StepKey | None:
        """The next copy to start; it counts as active until `finish`."""
        if self._stopped or (self._limit and self._active >= self._limit):
            return None
        for unit in self._with_ready:
            if self._may_start(unit):
                return self._hand_out(unit)
        return None

    def set_aside(self, handed: Unit | StepKey) -> None:
        """What was handed out cannot be opened or started just now: `try_again` hands it out."""
        if isinstance(handed, Unit):
            self._aside_units.append(handed)
            return
        self._count_active(self._unit_of[handed], -1)
        self._aside.append(handed)

    def try_again(self) -> None:
        """Hand out what was set aside, before its like."""
        self._opening.extendleft(reversed(self._aside_units))
        for key in reversed(self._aside):
            unit = self._unit_of[key]
            if not unit.ready:
                insort(self._with_ready, unit, key=_weight)
            unit.ready.appendleft(key[1])
        self._aside_units.clear()
        self._aside.clear()

    def take_on(self, unit: Unit, started: Collection[str]) -> None:
        """Copies that an earlier process started: limits bind what starts, not what has started."""
        if started:
            gone = frozenset(started)
            unit.ready = deque(name for name in unit.ready if name not in gone)
            self._handed_out(unit, len(gone))

    def _hand_out(self, unit: Unit) -> StepKey:
        name = unit.ready.popleft()
        self._handed_out(unit, 1)
        return (unit.job.name, name)

    def _handed_out(self, unit: Unit, count: int) -> None:
        if not unit.ready:
            self._with_ready.remove(unit)
        self._count_active(unit, count)

    def _count_active(self, unit: Unit, count: int) -> None:
        unit.active += count
        self._jobs[unit.job.name].active += count
        self._active += count

    def _may_start(self, unit: Unit) -> bool:
        if unit.step.concurrency and unit.active >= unit.step.concurrency:
            return False
        job = self._jobs[unit.job.name]
        return not (job.job.concurrency and job.active >= job.job.concurrency)

    def take_skip(self) -> Skip | None:
        """A step that is skipped, to be recorded."""
        return self._skips.popleft() if self._skips else None

    def take_change(self) -> JobChange | None:
        """A job that started or ended."""
        return self._changes.popleft() if self._changes else None

    # -- what happened ---------------------------------------------------------------------------

    def open(self, key: StepKey, names: list[str], records: list[str]) -> None:
        """The copies of a unit; none at all ends it as succeeded.

        `records`: their names as parts of records' names.
        """
        unit = self._units[key]
        if unit.state != "opening":
            return
        unit.state = "open"
        unit.left = len(names)
        for name, record in zip(names, records, strict=True):
            self._unit_of[(key[0], name)] = unit
            self._recorded.setdefault((key[0], record), unit)
        if not names:
            self._end_unit(unit, "succeeded")
            return
        unit.ready.extend(names)
        insort(self._with_ready, unit, key=_weight)

    def finish(self, key: StepKey, state: Ended, *, allowed: bool = False) -> None:
        """A copy that was handed out as ready has ended."""
        unit = self._unit_of[key]
        unit.left -= 1
        self._count_active(unit, -1)
        if state == "failed":
            unit.worst = "failed"
            unit.failed_hard = unit.failed_hard or not allowed
        elif state != "succeeded" and unit.worst == "succeeded":
            unit.worst = state
        if unit.left == 0:
            self._end_unit(unit, unit.worst)

    def stop(self) -> None:
        """Start nothing more: the run was cancelled. Steps that never started count as such."""
        self._stopped = True
        self._opening.clear()
        self._aside_units.clear()

    # -- consequences ----------------------------------------------------------------------------

    def _start_job(self, state: _JobState) -> None:
        state.state = "running"
        self._changes.append(JobChange(state.job.name, "running"))
        for unit in state.units:
            if unit.unmet == 0 and unit.state == "blocked":
                self._decide(unit)

    def _decide(self, unit: Unit) -> None:
        """Everything the unit depends on has ended: open or skip it."""
        for dependency in unit.step.depends_on:
            ended = cast("Ended", self._units[(unit.job.name, dependency.step)].state)
            if not holds(dependency.condition, ended):
                self._skip(unit, f"step '{dependency.step}' {ended}")
                return
        unit.state = "opening"
        self._opening.append(unit)

    def _skip(self, unit: Unit, reason: str) -> None:
        self._skips.append(Skip(unit.key, reason))
        self._end_unit(unit, "skipped")

    def _end_unit(self, unit: Unit, state: Ended) -> None:
        unit.state = state
        job = self._jobs[unit.job.name]
        job.left -= 1
        job.failed = job.failed or (state == "failed" and unit.failed_hard)
        job.cancelled = job.cancelled or state == "cancelled"
        for user in self._step_users.get(unit.key, ()):
            user.unmet -= 1
            if user.unmet == 0 and user.state == "blocked" and job.state == "running":
                self._decide(user)
        if job.left == 0 and job.state == "running":
            self._end_job(job, "failed" if job.failed else _calm(job))

    def _end_job(self, state: _JobState, ended: Ended, reason: str = "") -> None:
        state.state = ended
        self._changes.append(JobChange(state.job.name, ended, reason))
        for user in self._job_users.get(state.job.name, ()):
            user.unmet -= 1
            if user.unmet == 0 and user.state == "blocked":
                self._decide_job(user)

    def _decide_job(self, state: _JobState) -> None:
        for dependency in state.job.depends_on:
            ended = cast("Ended", self._jobs[dependency.job].state)
            if not holds(dependency.condition, ended):
                reason = f"job '{dependency.job}' {ended}"
                state.state = "skipped"
                for unit in state.units:
                    self._skip(unit, reason)
                self._end_job(state, "skipped", reason)
                return
        self._start_job(state)

    # -- how it stands ---------------------------------------------------------------------------

    @property
    def jobs(self) -> dict[str, str]:
        """State by job: pending, running or how it ended."""
        return {
            name: "pending" if job.state == "blocked" else job.state
            for name, job in self._jobs.items()
        }

    def recorded(self, job: str, record: str) -> Unit | None:
        """The unit of whose copies one has, or may have, that record.

        What `forEach` opens has one under its own name where that fails or is skipped.
        """
        return self._recorded.get((job, record))

    def unit_of(self, key: StepKey) -> Unit:
        """The unit of a copy, or of a step that was never opened."""
        return self._unit_of.get(key) or self._units[key]

    def upcoming(self) -> list[tuple[Unit, int]]:
        """Units with copies that were not handed out yet, and how many; one if not opened."""
        if self._stopped:
            return []
        ready = [(unit, len(unit.ready)) for unit in self._with_ready]
        ready += [(self._unit_of[key], 1) for key in self._aside]
        closed = [u for u in self._units.values() if u.state in ("blocked", "opening")]
        return ready + [(unit, 1) for unit in closed]

    @property
    def never_started(self) -> int:
        """Copies that are ready or blocked; a unit that was not opened counts as one."""
        ready = sum(len(unit.ready) for unit in self._with_ready) + len(self._aside)
        return ready + sum(unit.state in ("blocked", "opening") for unit in self._units.values())

    @property
    def active(self) -> int:
        """Copies that were handed out and have not ended."""
        return self._active

    @property
    def has_ready(self) -> bool:
        """Whether `take_opening` or `take_ready` would hand something out now."""
        if self._stopped or (self._limit and self._active >= self._limit and not self._opening):
            return False
        return bool(self._opening) or any(self._may_start(unit) for unit in self._with_ready)

    @property
    def done(self) -> bool:
        """Nothing is active and nothing will ever start."""
        if self._stopped:
            return self._active == 0
        return all(job.state not in ("blocked", "running") for job in self._jobs.values())

    @property
    def outcome(self) -> Literal["succeeded", "failed", "cancelled"]:
        """How the run ends, once `done`."""
        if self._stopped:
            return "cancelled"
        return (
            "failed"
            if any(job.failed or job.cancelled for job in self._jobs.values())
            else ("succeeded")
        )


def _weight(unit: Unit) -> tuple[int, int, str]:
    return unit.job.weight, unit.step.weight, unit.step.name


def _calm(job: _JobState) -> Ended:
    return "cancelled" if job.cancelled else "succeeded"
