"""Plans steps that are ready: names the copies of a unit and resolves what each one executes.

Plain paths are resolved at once; whatever evaluates more, or reads files, is done off the event
loop. Nothing is committed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from controllers.expressions import ExpressionError, needs_thread, roots_read
from controllers.run.context import RunContext
from controllers.run.graph import StepKey, Unit
from controllers.run.live import LiveRun
from controllers.run.plan import (
    Copy,
    PlanContext,
    PlanError,
    StepPlan,
    copies,
    items,
    plan_step,
    unique,
)
from datastore.definitions.model import ModelDefinition, model_from_source
from datastore.definitions.workflow import Job, Step, Workflow
from datastore.kinds import PENDING, RUNS, STEPS, KeptCopies, KeptCopy, Run
from datastore.kinds.dispatch_name import file_name
from datastore.record import Kind
from datastore.store import Store

T = TypeVar("T")

_NAMED_AT_ONCE = 1_000
"""To name so many copies takes some milliseconds."""


class Planner:
    """Reads runs, and models that a run did not name when it started."""

    def __init__(self, store: Store, context: RunContext) -> None:
        self._store = store
        self._context = context

    def models_of(self, workflow: Workflow) -> dict[str, dict[str, Any]]:
        """The definitions that the workflow names, as they are now; NotFound for a missing one.

        Names that are expressions are looked up when their step is ready. Blocking.
        """
        named = {
            step.task.model_id_or_name
            for job in workflow.jobs
            for step in job.steps
            if step.task.model_id_or_name is not None and "${{" not in step.task.model_id_or_name
        }
        return {name: self._context.find_model(name).source for name in sorted(named)}

    def is_to_wait(self, live: LiveRun, unit: Unit) -> bool:
        """Whether others come first that an earlier process opened: it did not open this one.

        Which of two has a name must not be decided anew.
        """
        return _contends(unit) and self._kept(live, unit) is None

    def take_opened(self, live: LiveRun, later: list[Unit]) -> Unit | None:
        """One of those that are to wait that was opened all the same, taken out; None without one.

        An older version kept nothing of that, but there are records that no other unit has.
        """
        found = None
        for made_from in self._unclaimed(live):
            found = next((one for one in later if one.key == made_from), None)
            if found is not None:
                break
            # Of a step that comes after one of them: it was opened, and had no copies.
            found = later[0]
        later[:] = [one for one in later if one is not found]
        return found

    def was_opened(self, live: LiveRun, unit: Unit) -> bool:
        """Whether there are records of copies of it, although none has been named yet."""
        return any(made_from == unit.key for made_from in self._unclaimed(live))

    def _unclaimed(self, live: LiveRun) -> Iterator[tuple[str, str | None]]:
        """Of each record of the run that no opened unit has: its job, and what it was made from."""
        jobs = {file_name(job.name): job.name for job in live.workflow.jobs}
        kinds: tuple[Kind[Any, Any], ...] = (STEPS, PENDING)
        for kind in kinds:
            for name in self._store.names_by(kind, "run", live.run):
                _, job, record, *_ = name.split(".")
                unit = live.graph.recorded(jobs[job], record) if job in jobs else None
                if unit is not None and unit.state in ("blocked", "opening"):
                    yield unit.key
                elif unit is None and job in jobs:
                    yield jobs[job], self._store.get(kind, name).spec.template

    async def open(self, live: LiveRun, unit: Unit) -> KeptCopies | None:
        """Name the copies of a unit; where that fails it gets one copy, which fails early.

        What has to be kept in the run's record before anything else is, None where nothing has.
        """
        kept = self._kept(live, unit)
        may_change = _may_change(unit.step)
        keeps = kept is None and (may_change or _contends(unit))
        try:
            made = await self._made(live, unit.step, kept)
            if kept is None:
                _refuse_taken(live, unit, made)
        except (ExpressionError, PlanError) as error:
            alone = Copy.of(unit.step.name)
            live.graph.open(unit.key, [alone.name], [alone.record])
            live.failed_early[unit.key] = str(error)
            return KeptCopies(error=str(error)) if keeps else None
        many = len(made) > _NAMED_AT_ONCE
        keep = None
        if keeps and may_change:
            keep = await self._aside(len(made), lambda: _kept(made))
        elif keeps:
            keep = KeptCopies()
        if many:
            # Each of these takes a while for 100,000 copies.
            await asyncio.sleep(0)
        live.copies.update(((unit.job.name, copy.name), copy) for copy in made)
        if many:
            await asyncio.sleep(0)
        live.graph.open(unit.key, [copy.name for copy in made], [copy.record for copy in made])
        return keep

    def _kept(self, live: LiveRun, unit: Unit) -> KeptCopies | None:
        """What is kept of the unit, if an earlier process opened it."""
        status = self._store.get(RUNS, live.run).status
        known = status.for_each if status is not None else None
        return None if known is None else known.get(kept_name(unit))

    async def _made(self, live: LiveRun, step: Step, kept: KeptCopies | None) -> list[Copy]:
        if kept is not None and kept.error is not None:
            raise PlanError(kept.error)
        if kept is not None and kept.copies is not None:
            again = kept.copies
            return await self._aside(len(again), lambda: _copies_of(again))
        if step.for_each is None:
            return copies(step, live.scope)
        if needs_thread([step.for_each.values, step.name]):
            made: list[Copy] = await self._context.offload(lambda: copies(step, live.scope))
            return made
        return await self._aside(len(items(step, live.scope)), lambda: copies(step, live.scope))

    async def _aside(self, count: int, make: Callable[[], T]) -> T:
        """What `make` returns; off the event loop where it is of many copies."""
        if count <= _NAMED_AT_ONCE:
            return make()
        made: T = await self._context.offload(make)
        return made

    async def plan(self, live: LiveRun, key: StepKey) -> StepPlan:
        """What the copy executes, checked; SwampError says why it cannot run."""
        job, step = live.written(key)
        run = self._store.get(RUNS, live.run)
        context = PlanContext(
            find_model=lambda name: self._model(run, name),
            defaults=self._context.defaults,
            priority=live.priority,
        )
        copy = live.copies[key]

        def plan() -> StepPlan:
            planned = plan_step(live.workflow, (job, step), copy, live.scope, context)
            self._context.data.check_secrets(planned.call)
            self._context.check_call(planned.call)
            return planned

        unit = kept_name(live.graph.unit_of(key))
        if unit not in live.plans_aside:
            live.plans_aside[unit] = _may_take_long(live.workflow, job, step, run)
        if live.plans_aside[unit]:
            planned: StepPlan = await self._context.offload(plan)
            return planned
        return plan()

    def _model(self, run: Run, name: str) -> ModelDefinition:
        source = run.spec.models.get(name)
        return model_from_source(source) if source is not None else self._context.find_model(name)


def _may_take_long(workflow: Workflow, job: Job, step: Step, run: Run) -> bool:
    named = step.task.model_id_or_name or ""
    sources = [step.task.inputs, run.spec.models.get(named), named, step.task.model_name]
    placement = [[one.target, one.labels, one.platform] for one in (step, job, workflow)]
    return "${{" in named or needs_thread([sources, placement])


def kept_name(unit: Unit) -> str:
    """What the copies of a unit are kept under in the run's record."""
    return f"{unit.job.name}/{unit.step.name}"


def _kept(made: list[Copy]) -> KeptCopies:
    return KeptCopies(copies=[KeptCopy(name=one.name, item=dict(one.item)) for one in made])


def _copies_of(kept: list[KeptCopy]) -> list[Copy]:
    return unique([Copy.of(one.name, one.item) for one in kept])


def _contends(unit: Unit) -> bool:
    """Whether another `forEach` of the job may make copies of the same names.

    That one of these was opened is kept: whoever was has its names for ever.
    """
    # In this order: a job may have thousands of steps, and each of them is asked about.
    return unit.step.for_each is not None and any(
        other.for_each is not None and other is not unit.step for other in unit.job.steps
    )


def _refuse_taken(live: LiveRun, unit: Unit, made: list[Copy]) -> None:
    """Two steps of one name would be one record: neither could be told from the other."""
    for copy in made:
        other = live.graph.recorded(unit.job.name, copy.record)
        if other is not None and other is not unit:
            raise PlanError(
                f"forEach of step '{unit.step.name}' makes a step '{copy.name}', and so is"
                f" another one called (step '{other.step.name}'): steps of a job need names of"
                " their own"
            )


def _may_change(step: Step) -> bool:
    """Whether evaluating the step's `forEach` once more might give something else.

    Inputs stay, outputs and the server's environment do not.
    """
    if step.for_each is None:
        return False
    try:
        read = roots_read([step.for_each.values, step.name])
    except ExpressionError:
        return False
    return bool(read & {"data", "env"})
