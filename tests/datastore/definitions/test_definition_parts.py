"""Models, conditions, inheritance: the parts of definitions, one rule each."""

import json
from typing import Any, get_args

import pytest

from datastore.definitions import (
    Condition,
    Workflow,
    holds,
    model_from_source,
    parse_model,
    placement_of,
    priority_of,
    workflow_from_source,
)
from datastore.definitions.conditions import Ended
from datastore.errors import InvalidFile
from datastore.yaml_loader import load

SEED_MODEL = """\
type: command/shell
typeVersion: 2026.02.09.1
id: bd83a14c-75bd-43a0-bb96-5186061dd5d5
name: long-step-a
version: 1
tags: {}
globalArguments:
  run: "sleep 6"
methods:
  execute:
    arguments:
      run: "sleep 6"
"""


def test_the_model_of_the_seed_loads_as_written() -> None:
    document = load(SEED_MODEL.encode(), "m.yaml")
    model = parse_model(document, "m.yaml")
    assert (model.type, model.type_version) == ("command/shell", "2026.02.09.1")
    assert model.global_arguments == {"run": "sleep 6"}
    assert model.methods["execute"].arguments == {"run": "sleep 6"}
    assert model.source == document.value
    assert model_from_source(json.loads(json.dumps(model.source))) == model


BAD_MODELS = {
    "unknown key": (
        "name: m\ntype: t\nglobalArgs: {}\n",
        "3:1: unknown key 'globalArgs' in model 'm': did you mean 'globalArguments'?",
    ),
    "misspelt in a method": (
        "name: m\ntype: t\nmethods:\n  run:\n    argumens: {}\n",
        "5:5: unknown key 'argumens' in method of model 'm': did you mean 'arguments'?",
    ),
    "method without arguments": (
        "name: m\ntype: t\nmethods:\n  run:\n",
        "4:3: 'methods.run' of model 'm' must be a mapping, found nothing",
    ),
    "checks": ("name: m\ntype: t\nchecks: {}\n", "3:1: 'checks' in model 'm' is not supported yet"),
    "reports": (
        "name: m\ntype: t\nreports: {}\n",
        "3:1: 'reports' in model 'm' is not supported yet",
    ),
    "resources": (
        "name: m\ntype: t\nresources: {}\n",
        "3:1: 'resources' in model 'm' is not supported yet",
    ),
    "no type": ("name: m\n", "1:1: model 'm' needs 'type'"),
    "no name": ("type: t\n", "1:1: the model needs 'name'"),
    "a type that leaves the folder": (
        "name: m\ntype: ../t\n",
        "2:1: 'type' of model 'm' must be a type such as 'command/shell', found '../t'",
    ),
    "typeVersion": (
        "name: m\ntype: t\ntypeVersion: v1\n",
        "3:1: 'typeVersion' of model 'm' must look like 2026.02.09.1, found 'v1'",
    ),
    "typeVersion that is a number": (
        "name: m\ntype: t\ntypeVersion: 2026.02\n",
        "3:1: 'typeVersion' of model 'm' must be a string, found 2026.02: quote it",
    ),
    "driver": (
        "name: m\ntype: t\ndriver: x\n",
        "3:1: unknown key 'driver' in model 'm': it was removed: 'target', 'labels' and 'platform' "
        "say where a step runs",
    ),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_bad_model_is_refused_with_its_place_and_a_way_out(case: str) -> None:
    text, expected = BAD_MODELS[case]
    with pytest.raises(InvalidFile) as caught:
        parse_model(load(text.encode(), "m.yaml"), "m.yaml")
    assert str(caught.value) == f"m.yaml:{expected}"


STATES = get_args(Ended)
SUCCEEDED, FAILED, COMPLETED = {"type": "succeeded"}, {"type": "failed"}, {"type": "completed"}
SKIPPED, ALWAYS = {"type": "skipped"}, {"type": "always"}
CONDITIONS: list[tuple[dict[str, Any] | None, set[str]]] = [
    (None, {"succeeded"}),
    (SUCCEEDED, {"succeeded"}),
    (FAILED, {"failed"}),
    (COMPLETED, {"succeeded", "failed"}),
    (SKIPPED, {"skipped", "cancelled"}),
    (ALWAYS, {"succeeded", "failed", "skipped", "cancelled"}),
    ({"type": "and", "conditions": [COMPLETED, FAILED]}, {"failed"}),
    ({"type": "and", "conditions": [SUCCEEDED, FAILED]}, set()),
    ({"type": "or", "conditions": [SUCCEEDED, SKIPPED]}, {"succeeded", "skipped", "cancelled"}),
    ({"type": "not", "condition": FAILED}, {"succeeded", "skipped", "cancelled"}),
    (
        {"type": "not", "condition": {"type": "or", "conditions": [FAILED, SKIPPED]}},
        {"succeeded"},
    ),
]


@pytest.mark.parametrize(
    ("written", "expected"), CONDITIONS, ids=[str(written) for written, _ in CONDITIONS]
)
def test_a_condition_holds_for_exactly_these_ends(
    written: dict[str, Any] | None, expected: set[str]
) -> None:
    condition = None if written is None else Condition.model_validate(written)
    assert {state for state in STATES if holds(condition, state)} == expected
    assert written is None or (condition and condition.document() == written)


def layered(workflow: dict[str, Any], job: dict[str, Any], step: dict[str, Any]) -> Workflow:
    task = {"type": "model_method", "modelIdOrName": "m", "methodName": "execute"}
    steps = [{"name": "s", "task": task, **step}]
    return workflow_from_source(
        {"name": "w", "jobs": [{"name": "j", "steps": steps, **job}], **workflow}
    )


Written = dict[str, Any]
A: Written = {"labels": {"a": "1"}}
B: Written = {"labels": {"b": "2"}}
NONE: Written = {"labels": {}}
PLACEMENTS: list[tuple[Written, Written, Written, Written, bool]] = [
    ({}, {}, {}, {}, False),
    (A, {}, {}, A, True),
    ({}, A, {}, A, True),
    ({}, {}, A, A, True),
    (A, B, {}, B, True),
    (A, {}, B, B, True),
    (A, B, NONE, {}, False),
    (A, NONE, {}, {}, False),
    (A, NONE, B, B, True),
    (NONE, {}, {}, {}, False),
    ({"platform": "linux"}, A, {}, {"platform": "linux", **A}, True),
    ({"platform": "linux", **A}, {}, NONE, {"platform": "linux"}, True),
    (
        {"target": "x"},
        {"target": "y"},
        {"platform": "linux"},
        {"target": "y", "platform": "linux"},
        True,
    ),
    ({"target": "${{ inputs.w }}"}, {}, {}, {"target": "${{ inputs.w }}"}, True),
]


@pytest.mark.parametrize(("workflow", "job", "step", "expected", "active"), PLACEMENTS)
def test_placement_is_inherited_key_by_key(
    workflow: Written, job: Written, step: Written, expected: Written, active: bool
) -> None:
    whole = layered(workflow, job, step)
    placement = placement_of(whole, whole.jobs[0], whole.jobs[0].steps[0])
    assert placement.target == expected.get("target")
    assert placement.labels == expected.get("labels", {})
    assert placement.platform == expected.get("platform")
    assert placement.active is active


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((None, None, None), (None, None)),
        ((5, None, None), (5, "workflow")),
        ((5, 6, None), (6, "job")),
        ((5, 6, 7.5), (7.5, "step")),
        ((5, 6, 0), (0, "step")),
    ],
)
def test_the_innermost_queue_timeout_wins_also_when_it_is_zero(
    layers: tuple[float | None, ...], expected: tuple[float | None, str | None]
) -> None:
    whole = layered(*({} if one is None else {"queueTimeout": one} for one in layers))
    placement = placement_of(whole, whole.jobs[0], whole.jobs[0].steps[0])
    assert (placement.queue_timeout_s, placement.queue_timeout_from) == expected
    assert not placement.active


@pytest.mark.parametrize(
    ("layers", "expected"),
    [((None, None, None), 3), ((1, None, None), 1), ((1, 2, None), 2), ((1, None, 5), 5)],
)
def test_the_innermost_priority_wins(layers: tuple[int | None, ...], expected: int) -> None:
    whole = layered(*({} if one is None else {"priority": one} for one in layers))
    assert priority_of(whole, whole.jobs[0], whole.jobs[0].steps[0]) == expected
