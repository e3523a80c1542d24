"""Inputs: what a run is given becomes what was declared, or is refused by name."""

from typing import Any

import pytest

from datastore.definitions import InputError, Workflow, resolve_inputs, workflow_from_source
from datastore.errors import SwampError


def workflow(inputs: dict[str, Any] | None) -> Workflow:
    task = {"type": "model_method", "modelIdOrName": "m", "methodName": "execute"}
    jobs = [{"name": "j", "steps": [{"name": "s", "task": task}]}]
    return workflow_from_source(
        {"name": "w", "jobs": jobs, **({"inputs": inputs} if inputs else {})}
    )


def test_both_forms_give_the_same() -> None:
    flat = {"host": {"type": "string", "required": True}, "port": 80, "dry": {"type": "boolean"}}
    schema = {
        "type": "object",
        "properties": {
            "host": {"type": "string"},
            "port": {"default": 80},
            "dry": {"type": "boolean"},
        },
        "required": ["host"],
    }
    for inputs in (flat, schema):
        assert resolve_inputs(workflow(inputs), {"host": "h"}) == {"host": "h", "port": 80}
        with pytest.raises(InputError, match="'host'"):
            resolve_inputs(workflow(inputs), {})


GOOD: list[tuple[Any, Any, Any]] = [
    ({"type": "integer"}, "3", 3),
    ({"type": "integer"}, "-3", -3),
    ({"type": "integer"}, 3, 3),
    ({"type": "number"}, "3", 3),
    ({"type": "number"}, "2.5", 2.5),
    ({"type": "boolean"}, "true", True),
    ({"type": "boolean"}, False, False),
    ({"type": "string"}, "3", "3"),
    ({"type": "array"}, '["a", 1]', ["a", 1]),
    ({"type": "array", "items": {"type": "integer"}}, ["1", 2], [1, 2]),
    ({"type": "object"}, '{"a": 1}', {"a": 1}),
    (
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        {"n": "1", "other": None},
        {"n": 1, "other": None},
    ),
    ({"type": "integer", "enum": [1, 2]}, "2", 2),
    ({}, ["anything"], ["anything"]),
    (5, "6", 6),
    ("text", "6", "6"),
    (True, "false", False),
    (None, "x", "x"),
    ({"type": "integer", "default": "7"}, None, 7),
    ({"type": "integer", "default": "${{ env.N }}"}, None, "${{ env.N }}"),
    ({"type": "boolean", "default": False}, None, False),
]


@pytest.mark.parametrize(("declared", "given", "expected"), GOOD, ids=str)
def test_a_value_becomes_the_declared_type(declared: Any, given: Any, expected: Any) -> None:
    values = resolve_inputs(workflow({"x": declared}), {} if given is None else {"x": given})
    assert values == {"x": expected}
    assert type(values["x"]) is type(expected)


BAD: list[tuple[Any, Any, str]] = [
    ({"type": "integer"}, "three", "must be a whole number, found 'three'"),
    ({"type": "integer"}, "1.5", "must be a whole number, found '1.5'"),
    ({"type": "integer"}, True, "must be a whole number, found true"),
    ({"type": "number"}, "NaN", "must be a number, found 'NaN'"),
    ({"type": "number"}, "1e999", "must be a number, found '1e999'"),
    ({"type": "boolean"}, "yes", "must be true or false, found 'yes'"),
    ({"type": "boolean"}, 1, "must be true or false, found 1"),
    ({"type": "string"}, 3, "must be a string, found 3"),
    ({"type": "array"}, "a,b", "must be a list, found 'a,b'"),
    ({"type": "array"}, "[NaN]", "must be a list, found '[NaN]'"),
    ({"type": "object"}, ["a"], "must be a mapping, found a list"),
    ({"type": "string"}, None, "must be a string, found nothing"),
    ({"enum": ["a", "b"]}, "c", "must be one of 'a', 'b', found 'c'"),
    ({"enum": [1]}, True, "must be one of 1, found true"),
    (
        {"type": "array", "items": {"type": "integer"}},
        [1, "x"],
        ": entry 2 must be a whole number, found 'x'",
    ),
    (
        {"items": {"properties": {"n": {"type": "integer"}}, "type": "object"}, "type": "array"},
        [{"n": "x"}],
        ": in entry 1, 'n' must be a whole number, found 'x'",
    ),
    (
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        {},
        "must be a mapping with 'n'",
    ),
]


@pytest.mark.parametrize(("declared", "given", "expected"), BAD, ids=str)
def test_a_value_that_does_not_fit_is_refused(declared: Any, given: Any, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_inputs(workflow({"x": declared}), {"x": given})
    assert str(caught.value) == f"input 'x' of workflow 'w' {expected}".replace(" : ", ": ")
    assert isinstance(caught.value, SwampError)


def test_unknown_inputs_are_refused_with_what_was_meant() -> None:
    known = workflow({"host": {}, "port": 1})
    for given, advice in (("hots", "did you mean 'host'?"), ("zzz", "its inputs are host, port")):
        with pytest.raises(InputError) as caught:
            resolve_inputs(known, {given: 1})
        assert str(caught.value) == f"unknown input '{given}' of workflow 'w': {advice}"
    with pytest.raises(InputError, match="it takes none"):
        resolve_inputs(workflow(None), {"x": 1})


def test_additional_properties_let_unknown_inputs_through() -> None:
    open_to_all = workflow({"properties": {"n": {"type": "integer"}}, "additionalProperties": True})
    assert resolve_inputs(open_to_all, {"n": "1", "x": "y"}) == {"n": 1, "x": "y"}


def test_all_missing_inputs_are_named_at_once() -> None:
    inputs = {
        "properties": {"a": {"type": "array"}, "b": {"enum": [1]}, "c": {}},
        "required": ["a", "b"],
    }
    with pytest.raises(InputError) as caught:
        resolve_inputs(workflow(inputs), {})
    expected = "needs input 'a' (a list), 'b' (one of 1): give each as --input name=value"
    assert str(caught.value) == f"workflow 'w' {expected}"


def test_runs_do_not_share_a_default() -> None:
    shared = workflow({"hosts": ["a"]})
    resolve_inputs(shared, {})["hosts"].append("b")
    assert resolve_inputs(shared, {}) == {"hosts": ["a"]}
