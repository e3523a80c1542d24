"""From a step as written to what is executed: expressions resolved, models looked up. Pure.

`self` holds the fields of the model's definition and, in `forEach`, the item. Arguments come from
the model's global arguments, then its method, then the step's inputs: the later one wins. Inputs
that the model declares feed its expressions instead: the step's, else the run's, else the default.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from controllers.expression_references import SecretText
from controllers.expressions import ExpressionError, Scope, render, render_text
from controllers.requirement import describe, requirement
from datastore.definitions.inputs import defaults_of
from datastore.definitions.model import ModelDefinition
from datastore.definitions.placement import PlacementTemplate, placement_of, priority_of
from datastore.definitions.schema import LabelValue
from datastore.definitions.workflow import Job, Step, Workflow
from datastore.errors import SwampError
from datastore.kinds import Call, LabelRule, NotIn, Placement
from datastore.kinds.dispatch_name import file_name

COPIES_MOST = 100_000
"""Each is a step with records of its own, whose memory and files the server has to have."""
COPY_NAME_MAX = 100
"""Characters in the name of a copy that `forEach` makes."""


class PlanError(SwampError):
    """A step that cannot be executed as written."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One execution of a unit: its name, and its item in `forEach`."""

    name: str
    item: Mapping[str, Any]
    record: str
    """Its name as a part of a record's name."""

    @classmethod
    def of(cls, name: str, item: Mapping[str, Any] | None = None) -> Copy:
        """The copy of that name."""
        return cls(name, item or {}, file_name(name))


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What to execute, where, and within which limits."""

    call: Call
    placement: Placement | None
    wait_limit_s: float | None
    limit_from: str
    priority: int
    timeout_s: float | None
    affinity: str | None = None
    """The group that must stay on one worker."""
    model_concurrency: int = 1
    """How many executions of the model there may be at the same time; 0 without a limit."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the server sets where the workflow says nothing."""

    queue_timeout_s: float = 600.0
    """Seconds; 0 waits for ever."""
    queue_timeout_from: str = "default"
    no_workers: str | None = None
    """Why no worker can ever come, which ends placed steps at once; None where they can."""


FindModel = Callable[[str], ModelDefinition]


def items(step: Step, scope: Scope) -> Any:
    """What the `forEach` of a step goes over: a list or a mapping; PlanError for anything else."""
    assert step.for_each is not None
    values = render(step.for_each.values, scope)
    if not isinstance(values, Mapping | list):
        raise PlanError(
            f"forEach of step '{step.name}' needs a list or a mapping,"
            f" '{step.for_each.values}' gives {type(values).__name__}"
        )
    if len(values) > COPIES_MOST:
        raise PlanError(
            f"forEach of step '{step.name}' goes over {len(values):,} items, at most"
            f" {COPIES_MOST:,} are started: let each step take several"
        )
    return values


def copies(step: Step, scope: Scope) -> list[Copy]:
    """The copies of a step: one, or one for each value of its `forEach`."""
    if step.for_each is None:
        return [Copy.of(step.name)]
    values = items(step, scope)
    variable = step.for_each.item
    if isinstance(values, Mapping):
        made = [
            _copy(step, scope, {variable: {"key": key, "value": value}}, key)
            for key, value in values.items()
        ]
    else:
        made = [
            _copy(step, scope, {variable: value}, _suffix(value, index))
            for index, value in enumerate(values)
        ]
    return unique(made)


def _copy(step: Step, scope: Scope, item: Mapping[str, Any], suffix: str) -> Copy:
    name = _copy_name(step, scope, item, suffix)
    # Values may hold anything: a name is one line, and short enough for a table.
    clean = "".join(c if c.isprintable() else "?" for c in name)
    if len(clean) > COPY_NAME_MAX:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        clean = f"{clean[: COPY_NAME_MAX - 10]}…-{digest}"
    return Copy.of(clean, item)


def _copy_name(step: Step, scope: Scope, item: Mapping[str, Any], suffix: str) -> str:
    if "${{" in step.name:
        try:
            return render_text(step.name, scope.with_self(item))
        except ExpressionError:
            bare = re.sub(r"\$\{\{.*?\}\}", "", step.name).strip("-_. ") or "step"
            return f"{bare}-{suffix}"
    return f"{step.name}-{suffix}"


def _suffix(value: Any, index: int) -> str:
    return str(index) if isinstance(value, (dict, list)) or value is None else str(value)


def unique(made: list[Copy]) -> list[Copy]:
    """Copies of one name, or one record, get their position appended: each is a step of its own.

    Where another one is called like that, more is appended. Equal lists give equal names.
    """
    counts = Counter(copy.record for copy in made)
    taken = {record for record, times in counts.items() if times == 1}
    one_of_a_kind: list[Copy] = []
    for index, copy in enumerate(made):
        if counts[copy.record] > 1:
            first = f"{copy.name}-{index}"
            tries = chain([first], (f"{first}-{number}" for number in count(2)))
            name = next(one for one in tries if file_name(one) not in taken)
            copy = Copy.of(name, copy.item)
            taken.add(copy.record)
        one_of_a_kind.append(copy)
    return one_of_a_kind


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What planning needs besides the workflow."""

    find_model: FindModel
    defaults: Defaults
    priority: int | None = None
    """The priority asked for at the command line; it beats the workflow's."""


def plan_step(
    workflow: Workflow, where: tuple[Job, Step], copy: Copy, scope: Scope, models: PlanContext
) -> StepPlan:
    """The plan of one copy; PlanError or ExpressionError says why it cannot run."""
    job, step = where
    own = scope.with_self(copy.item) if copy.item else scope
    template = placement_of(workflow, job, step)
    limit_s, limit_from = template.queue_timeout_s, template.queue_timeout_from
    if limit_s is None:
        limit_s, limit_from = models.defaults.queue_timeout_s, models.defaults.queue_timeout_from
    timeouts = (step.timeout_s, job.timeout_s, workflow.timeout_s)
    placement = _placement(template, own) if template.active else None
    if placement is not None and models.defaults.no_workers is not None:
        raise PlanError(f"needs a worker ({describe(placement)}): {models.defaults.no_workers}")
    call, concurrency = _call(step, copy, own, models.find_model)
    return StepPlan(
        call=call,
        placement=placement,
        wait_limit_s=limit_s or None,
        limit_from=limit_from or "default",
        priority=models.priority or priority_of(workflow, job, step),
        timeout_s=next((one for one in timeouts if one is not None), None),
        affinity=_affinity(workflow, job, scope) if template.active else None,
        model_concurrency=concurrency,
    )


def _affinity(workflow: Workflow, job: Job, scope: Scope) -> str | None:
    """The workflow's affinity holds all steps of the run together, a job's those of the job."""
    run = str(scope.run.get("id", ""))
    if workflow.affinity:
        return run
    return f"{run}.{file_name(job.name)}" if job.affinity else None


def written_requirement(template: PlacementTemplate) -> str:
    """The requirement of a step that was not planned yet; expressions stay as written."""
    labels = {
        key: rule if not isinstance(rule, dict) else NotIn.model_validate(rule)
        for key, rule in template.labels.items()
    }
    return requirement(Placement(target=template.target, labels=labels, platform=template.platform))


def _placement(template: PlacementTemplate, scope: Scope) -> Placement:
    """The placement with its expressions resolved; one that gives nothing is an error."""

    def text(value: str, what: str) -> str:
        resolved = render(value, scope)
        if isinstance(resolved, SecretText):
            raise PlanError(f"{what} '{value}' asks for a secret: a placement is no place for one")
        if not isinstance(resolved, str) or not resolved.strip():
            raise PlanError(
                f"{what} '{value}' evaluates to nothing: a placement must name a worker"
            )
        return resolved

    def rule(value: LabelValue, what: str) -> LabelRule:
        if isinstance(value, str):
            return text(value, what)
        if isinstance(value, list):
            return [text(one, what) for one in value]
        return NotIn.model_validate({"not": [text(one, what) for one in value["not"]]})

    return Placement(
        target=None if template.target is None else text(template.target, "target"),
        labels={key: rule(value, f"label {key}") for key, value in template.labels.items()},
        platform=None if template.platform is None else text(template.platform, "platform"),
    )


def _call(step: Step, copy: Copy, scope: Scope, find_model: FindModel) -> tuple[Call, int]:
    """The call, and how many of its model there may be at once: one where it has no definition."""
    task = step.task
    inputs = render(task.inputs, scope)
    if task.model_id_or_name is None:
        made = Call(
            model_type=render_text(task.model_type or "", scope),
            model=render_text(task.model_name or "", scope),
            method=task.method_name,
            arguments=inputs,
        )
        return made, 1
    named = task.model_id_or_name
    model = find_model(render_text(named, scope))
    method = model.methods.get(task.method_name)
    declared = model.inputs.properties if model.inputs is not None else {}
    fed = {key: value for key, value in inputs.items() if key in declared}
    fields = {"name": model.name, "id": str(model.id), "type": model.type, "tags": model.tags}
    inner = scope.with_self({**fields, **copy.item})
    missing = {k: v for k, v in defaults_of(model.inputs).items() if k not in scope.inputs}
    if missing or fed:
        inner = replace(inner, inputs={**scope.inputs, **render(missing, scope), **fed})
    own = {**model.global_arguments, **(method.arguments if method is not None else {})}
    passed = {key: value for key, value in inputs.items() if key not in declared}
    call = Call(
        model_type=model.type,
        model=model.name,
        method=task.method_name,
        arguments={**render(own, inner), **passed},
    )
    return call, model.concurrency
