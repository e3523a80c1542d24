"""Plans steps that are ready: names the copies of a unit and resolves what each one executes.

Plain paths are resolved at once; whatever evaluates more, or reads files, is done off the event
loop. Nothing is committed here.
"""

from __future__ import annotations

from typing import Any

from controllers.expressions import ExpressionError, needs_thread, roots_read
from controllers.run.context import RunContext
from controllers.run.graph import StepKey, Unit
from controllers.run.live import LiveRun
from controllers.run.plan import Copy, PlanContext, PlanError, StepPlan, copies, items, plan_step
from datastore.definitions.model import ModelDefinition, model_from_source
from datastore.definitions.workflow import Job, Step, Workflow
from datastore.kinds import PENDING, RUNS, STEPS, KeptCopies, KeptCopy, Run
from datastore.store import Store

_NAMED_AT_ONCE = 1_000
"""To name so many copies takes some milliseconds."""


class _Taken(PlanError):
    """Which of two units comes first may be another one after a restart."""


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

    async def open(self, live: LiveRun, unit: Unit) -> KeptCopies | None:
        """Name the copies of a unit; where that fails it gets one copy, which fails early.

        What has to be kept in the run's record before anything else is, None where nothing has.
        """
        status = self._store.get(RUNS, live.run).status
        known = status.for_each if status is not None else None
        kept = known.get(kept_name(unit)) if known is not None else None
        try:
            made = await self._made(live, unit.step) if kept is None else _copies_of(kept)
            self._refuse_taken(live, unit, made)
        except (ExpressionError, PlanError) as error:
            live.graph.open(unit.key, [unit.step.name])
            live.failed_early[unit.key] = str(error)
            keeps = isinstance(error, _Taken) or _may_change(unit.step)
            return KeptCopies(error=str(error)) if kept is None and keeps else None
        keep = None
        if kept is None and _may_change(unit.step):
            aside = len(made) > _NAMED_AT_ONCE
            keep = await self._context.offload(lambda: _kept(made)) if aside else _kept(made)
        for copy in made:
            live.copies[(unit.job.name, copy.name)] = copy
        live.graph.open(unit.key, [copy.name for copy in made])
        return keep

    def _refuse_taken(self, live: LiveRun, unit: Unit, made: list[Copy]) -> None:
        """Two steps of one name would be one record: neither could be told from the other."""
        has_records = any(self._store.count_by(kind, "run", live.run) for kind in (STEPS, PENDING))
        for copy in made:
            other = live.graph.recorded(unit.job.name, copy.name)
            taken_by = other.step.name if other is not None else None
            if taken_by is None and has_records:
                taken_by = self._made_from(live.step_name((unit.job.name, copy.name)))
            if taken_by not in (None, unit.step.name):
                raise _Taken(
                    f"forEach of step '{unit.step.name}' makes a step '{copy.name}', and so is"
                    f" another one called (step '{taken_by}'): steps of a job need names of their"
                    " own"
                )

    def _made_from(self, name: str) -> str | None:
        """What an earlier process made the step of that record from, in whatever order."""
        step = self._store.find(STEPS, name)
        found = step if step is not None else self._store.find(PENDING, f"{name}.1")
        return None if found is None else found.spec.template

    async def _made(self, live: LiveRun, step: Step) -> list[Copy]:
        if step.for_each is None:
            return copies(step, live.scope)
        aside = needs_thread([step.for_each.values, step.name])
        if aside or len(items(step, live.scope)) > _NAMED_AT_ONCE:
            made: list[Copy] = await self._context.offload(lambda: copies(step, live.scope))
            return made
        return copies(step, live.scope)

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


def _copies_of(kept: KeptCopies) -> list[Copy]:
    if kept.error is not None:
        raise PlanError(kept.error)
    return [Copy(one.name, one.item) for one in kept.copies]


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
