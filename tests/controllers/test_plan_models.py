"""What a model brings along to a call: its arguments, and the inputs that they are made of."""

from __future__ import annotations

from typing import Any

import pytest

from controllers.expressions import Scope
from controllers.run.plan import Copy, Defaults, PlanContext, plan_step
from datastore.definitions.model import model_from_source
from datastore.definitions.workflow import workflow_from_source

MODEL = {
    "name": "greet",
    "type": "command/shell",
    "inputs": {
        "properties": {
            "who": {"type": "string", "default": "world"},
            "where": {"type": "string", "default": "on ${{ run.place }}"},
            "times": {"type": "integer", "default": 2},
            "bare": {"type": "string"},
        }
    },
    "globalArguments": {"env": {"WHERE": "${{ inputs.where }}"}},
    "methods": {"execute": {"arguments": {"run": "greet ${{ inputs.who }} ${{ inputs.times }}"}}},
}


def arguments(step_inputs: dict[str, Any], run_inputs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of the model."""
    task = {"type": "model_method", "modelIdOrName": "greet", "methodName": "execute"}
    steps = [{"name": "s", "task": {**task, "inputs": step_inputs}}]
    workflow = workflow_from_source({"name": "w", "jobs": [{"name": "j", "steps": steps}]})
    where = (workflow.jobs[0], workflow.jobs[0].steps[0])
    scope = Scope(inputs=run_inputs, run={"id": "r", "place": "earth"})
    context = PlanContext(lambda name: model_from_source(MODEL), Defaults())
    return plan_step(workflow, where, Copy.of("s"), scope, context).call.arguments


@pytest.mark.parametrize(
    ("step_inputs", "run_inputs", "run"),
    [
        ({}, {}, "greet world 2"),
        ({"who": "ann"}, {}, "greet ann 2"),
        ({}, {"who": "bob", "times": 3}, "greet bob 3"),
        ({"who": "ann"}, {"who": "bob"}, "greet ann 2"),
        ({"who": "${{ inputs.user }}"}, {"user": "eve"}, "greet eve 2"),
    ],
)
def test_an_input_is_the_steps_else_the_runs_else_the_models_default(
    step_inputs: dict[str, Any], run_inputs: dict[str, Any], run: str
) -> None:
    assert arguments(step_inputs, run_inputs)["run"] == run


def test_a_default_may_be_an_expression() -> None:
    assert arguments({}, {})["env"] == {"WHERE": "on earth"}


def test_inputs_of_the_model_are_no_arguments_and_others_are() -> None:
    assert set(arguments({"who": "ann", "workingDir": "/tmp"}, {})) == {"env", "run", "workingDir"}
