"""What of a workflow cannot run whatever happens: found before a run of it exists. Pure.

Expressions must compile and name what there is, models and methods must exist, and arguments must
be taken. Nothing is evaluated: an argument that holds an expression is checked by its name, a model
that an expression names not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from controllers.expression_engine import compile_source
from controllers.expression_paths import OPEN, ROOTS, VAULT, Slot, blanked
from controllers.expressions import check, compile_template
from datastore.definitions.model import ModelDefinition
from datastore.definitions.suggest import did_you_mean
from datastore.definitions.workflow import Placed, Step, Workflow
from datastore.errors import NotFound, SwampError
from datastore.kinds import Call

EXPRESSIONS = "Expressions"
NAMES = "Names in expressions"
MODELS = "Models of the steps"
CALLS = "Methods and arguments"
CHECKS = (EXPRESSIONS, NAMES, MODELS, CALLS)

_MODEL_FIELDS = frozenset({"name", "id", "type", "tags"})
_EVERYWHERE = (*ROOTS, VAULT)
_Keys = tuple[str | int, ...]

FindModel = Callable[[str], ModelDefinition]
"""The model of that name or id; NotFound says what may have been meant."""

CheckCall = Callable[[Call, Collection[str]], object]
"""Raises SwampError, perhaps with an `argument`, for a call that cannot be whatever the arguments
that are named besides turn out to be."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the workflow cannot run. `keys` lead to the place in its document."""

    check: str
    text: str
    keys: _Keys


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a text stands, and what its expressions can see; None: not known before the run."""

    label: str
    keys: _Keys
    roots: Collection[str] = _EVERYWHERE
    inputs: frozenset[str] | None = None
    self_: frozenset[str] | None = None


@dataclass(slots=True)
class _Models:
    """Looks every model up once."""

    find: FindModel
    found: dict[str, ModelDefinition | str] = field(default_factory=dict)
    checked: set[tuple[str, str]] = field(default_factory=set)

    def get(self, name: str) -> ModelDefinition | str:
        """The model, or why there is none."""
        if name not in self.found:
            try:
                self.found[name] = self.find(name)
            except NotFound as missing:
                self.found[name] = str(missing)
        return self.found[name]


def preflight(
    workflow: Workflow, find_model: FindModel, check_call: CheckCall
) -> Iterator[Trouble]:
    """Everything in it that must fail, in the order of the workflow, found as it is asked for.

    Blocks as `find_model` does, and while expressions are compiled.
    """
    models = _Models(find_model)
    inputs = _inputs_of(workflow)
    yield from _placed(workflow, _Place("the workflow", (), inputs=inputs))
    for j, job in enumerate(workflow.jobs):
        label = f"job '{job.name}'"
        yield from _placed(job, _Place(label, ("jobs", j), inputs=inputs))
        for s, step in enumerate(job.steps):
            where = _Place(f"step '{step.name}' of {label}", ("jobs", j, "steps", s), inputs=inputs)
            yield from _step(step, where)
            yield from _call(step, where, models, check_call)


def _inputs_of(workflow: Workflow) -> frozenset[str] | None:
    """The names that its runs may have as inputs; None where any name may be given."""
    if workflow.inputs is None:
        return frozenset()
    if workflow.inputs.additional_properties:
        return None
    return frozenset(workflow.inputs.properties)


def _placed(layer: Placed, place: _Place) -> Iterator[Trouble]:
    for key in ("target", "labels", "platform"):
        value = getattr(layer, key)
        if value is not None:
            yield from _texts(value, _at(place, key, roots=ROOTS))


def _step(step: Step, place: _Place) -> Iterator[Trouble]:
    item = frozenset({step.for_each.item}) if step.for_each is not None else frozenset()
    # A name that does not evaluate is replaced, so only what cannot be read at all is wrong in it.
    yield from _texts(step.name, _Place(place.label, (*place.keys, "name"), ROOTS))
    if step.for_each is not None:
        values = _at(place, "forEach", "in", roots=ROOTS, self_=frozenset())
        yield from _texts(step.for_each.values, values)
    yield from _placed(step, _Place(place.label, place.keys, ROOTS, place.inputs, item))
    task = step.task
    for key, text in (
        ("modelIdOrName", task.model_id_or_name),
        ("modelType", task.model_type),
        ("modelName", task.model_name),
    ):
        yield from _texts(text, _at(place, "task", key, roots=ROOTS, self_=item))
    yield from _texts(task.inputs, _at(place, "task", "inputs", self_=item))


def _at(
    place: _Place,
    *keys: str,
    roots: Collection[str] = _EVERYWHERE,
    self_: frozenset[str] | None = None,
) -> _Place:
    return _Place(place.label, (*place.keys, *keys), roots, place.inputs, self_)


# -- expressions ---------------------------------------------------------------------------------


def _texts(value: Any, place: _Place) -> Iterator[Trouble]:
    """What is wrong with the expressions inside a value."""
    for keys, text in _with_expressions(value, place.keys):
        problems = check(text, place.roots)
        for problem in problems:
            yield Trouble(EXPRESSIONS, f"{place.label}: {problem}", keys)
        if not problems:
            for problem in _unknown_names(text, place):
                yield Trouble(NAMES, f"{place.label}: {problem}", keys)


def _with_expressions(value: Any, keys: _Keys) -> Iterator[tuple[_Keys, str]]:
    match value:
        case str():
            if OPEN in value:
                yield keys, value
        case Mapping():
            for key, item in value.items():
                yield from _with_expressions(item, (*keys, key))
        case list() | tuple():
            for index, item in enumerate(value):
                yield from _with_expressions(item, (*keys, index))


def _unknown_names(text: str, place: _Place) -> Iterator[str]:
    known = {"inputs": place.inputs, "self": place.self_}
    slots = [part for part in compile_template(text).parts if isinstance(part, Slot)]
    for slot in slots:
        for root, names in known.items():
            if names is None:
                continue
            for name in sorted(_names_read(slot, root) - names):
                yield f"`{root}.{name}`: {_instead(root, name, names)}"


def _names_read(slot: Slot, root: str) -> frozenset[str]:
    """The entries of a root that the expression cannot do without."""
    if slot.secret:
        return frozenset()
    if slot.path is not None:
        named = slot.path[0] == root and len(slot.path) > 1
        return frozenset({str(slot.path[1])} if named else ())
    names = compile_source(slot.source).reads.get(root) or frozenset()
    return frozenset(name for name in names if not _is_guarded(slot.source, root, name))


def _is_guarded(source: str, root: str, name: str) -> bool:
    """Whether the expression asks first whether there is such an entry."""
    field_ = rf"has\s*\(\s*{root}\s*\.\s*{name}\b|{root}\s*\.\s*\?\s*{name}\b"
    return re.search(field_, blanked(source)) is not None


def _instead(root: str, name: str, names: frozenset[str]) -> str:
    if root == "self" and not names:
        return "outside of forEach a step has no `self`"
    near = did_you_mean(name, names)
    if near is not None:
        return near
    if root == "self":
        return f"here `self` has only {', '.join(sorted(names))}"
    listed = ", ".join(sorted(names))
    return f"the workflow's inputs are {listed}" if names else "the workflow declares no inputs"


# -- calls ---------------------------------------------------------------------------------------


def _call(step: Step, place: _Place, models: _Models, check_call: CheckCall) -> Iterator[Trouble]:
    task = step.task
    named, kind = task.model_id_or_name, task.model_type or ""
    if named is None:
        if OPEN not in kind:
            made = _Called(kind, task.model_name or "", task.method_name, task.inputs)
            yield from _checked(made, place, check_call)
        return
    if OPEN in named:
        return
    model = models.get(named)
    if isinstance(model, str):
        keys = (*place.keys, "task", "modelIdOrName")
        yield Trouble(MODELS, f"{place.label}: {model}", keys)
        return
    yield from _own_expressions(step, model, place, models)
    method = model.methods.get(task.method_name)
    own = {**model.global_arguments, **(method.arguments if method is not None else {})}
    declared = model.inputs.properties if model.inputs is not None else {}
    passed = {key: value for key, value in task.inputs.items() if key not in declared}
    made = _Called(model.type, model.name, task.method_name, {**own, **passed})
    yield from _checked(made, place, check_call)


def _own_expressions(
    step: Step, model: ModelDefinition, place: _Place, models: _Models
) -> Iterator[Trouble]:
    """What the model itself cannot evaluate for this workflow; said at its first step."""
    method = model.methods.get(step.task.method_name)
    if (model.name, step.task.method_name) in models.checked:
        return
    models.checked.add((model.name, step.task.method_name))
    declared = frozenset(model.inputs.properties if model.inputs is not None else ())
    inputs = None if place.inputs is None else place.inputs | declared
    item = frozenset({step.for_each.item} if step.for_each is not None else ())
    label = f"{place.label}: model '{model.name}'"
    keys = (*place.keys, "task", "modelIdOrName")
    inner = _Place(label, keys, inputs=inputs, self_=_MODEL_FIELDS | item)
    arguments = method.arguments if method is not None else {}
    for found in _texts({**model.global_arguments, **arguments}, inner):
        yield Trouble(found.check, found.text, keys)


@dataclass(frozen=True, slots=True)
class _Called:
    """A call as written: its arguments may hold expressions."""

    model_type: str
    model: str
    method: str
    arguments: Mapping[str, Any]


def _checked(made: _Called, place: _Place, check_call: CheckCall) -> Iterator[Trouble]:
    computed = [
        name
        for name, value in made.arguments.items()
        if any(True for _ in _with_expressions(value, ()))
    ]
    literal = {key: value for key, value in made.arguments.items() if key not in computed}
    call = Call(model_type=made.model_type, model=made.model, method=made.method, arguments=literal)
    try:
        check_call(call, computed)
    except SwampError as wrong:
        argument = getattr(wrong, "argument", None)
        inner = ("methodName",) if argument is None else ("inputs", argument)
        yield Trouble(CALLS, f"{place.label}: {wrong}", (*place.keys, "task", *inner))
