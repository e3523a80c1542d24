"""What cannot run is found in the workflow as written, and nothing that may run is refused."""

import time
from pathlib import Path
from typing import Any

import pytest

from controllers.run.preflight import CALLS, EXPRESSIONS, MODELS, NAMES, Trouble, preflight
from datastore.definitions import ModelDefinition, Workflow, model_from_source, workflow_from_source
from datastore.errors import NotFound
from datastore.yaml_loader import load
from swamp.execute.calls import check_written

BUILD = model_from_source(
    {
        "name": "build",
        "type": "command/shell",
        "inputs": {"target": {"type": "string"}},
        "methods": {
            "execute": {"arguments": {"run": "make ${{ inputs.target }} ${{ self.name }}"}}
        },
    }
)
ODD = model_from_source(
    {
        "name": "odd",
        "type": "command/shell",
        "methods": {"execute": {"arguments": {"run": "echo ${{ inputs.nobody }}"}}},
    }
)


def find_model(name: str) -> ModelDefinition:
    for model in (BUILD, ODD):
        if name == model.name:
            return model
    raise NotFound(f"no model '{name}'; did you mean 'build'?")


def workflow(step: dict[str, Any], **more: Any) -> Workflow:
    job = {"name": "job", "steps": [{"name": "s", **step}]}
    inputs = {"properties": {"host": {"type": "string"}}}
    return workflow_from_source({"name": "w", "inputs": inputs, "jobs": [job], **more})


def shell(**inputs: Any) -> dict[str, Any]:
    task = {"type": "model_method", "modelType": "command/shell", "modelName": "m"}
    return {"task": {**task, "methodName": "execute", "inputs": {"run": "true", **inputs}}}


def calling(model: str, method: str = "execute", **inputs: Any) -> dict[str, Any]:
    task = {"type": "model_method", "modelIdOrName": model, "methodName": method}
    return {"task": {**task, "inputs": inputs}}


def troubles(found: Workflow) -> list[Trouble]:
    return list(preflight(found, find_model, check_written))


TASK = ("jobs", 0, "steps", 0, "task")
WRONG: dict[str, tuple[dict[str, Any], str, str, tuple[str | int, ...]]] = {
    "model": (calling("biuld"), MODELS, "no model 'biuld'; did", (*TASK, "modelIdOrName")),
    "method": (
        calling("build", "exec"), CALLS, "has no method 'exec'; did you mean 'execute'?",
        (*TASK, "methodName"),
    ),
    "type": (
        {"task": {**shell()["task"], "modelType": "command/shel"}}, CALLS, "unknown model type",
        (*TASK, "methodName"),
    ),
    "argument": (
        calling("build", rnu="x"), CALLS, "unknown argument 'rnu'; did you mean 'run'?",
        (*TASK, "inputs", "rnu"),
    ),
    "argument with an expression": (
        calling("build", rnu="${{ inputs.host }}"), CALLS, "unknown argument 'rnu'",
        (*TASK, "inputs", "rnu"),
    ),
    "value": (
        shell(timeout="soon"), CALLS, "'timeout' must be a positive whole number",
        (*TASK, "inputs", "timeout"),
    ),
    "value inside": (shell(env={"A": 1}), CALLS, "'env.A' must be text", (*TASK, "inputs", "env")),
    "input": (
        shell(run="ping ${{ inputs.hots }}"), NAMES, "`inputs.hots`: did you mean 'host'?",
        (*TASK, "inputs", "run"),
    ),
    "input in CEL": (
        shell(run="${{ 'ping ' + inputs.nope }}"), NAMES,
        "`inputs.nope`: the workflow's inputs are host", (*TASK, "inputs", "run"),
    ),
    "input of the model": (
        calling("odd"), NAMES, "model 'odd': `inputs.nobody`", (*TASK, "modelIdOrName"),
    ),
    "syntax": (
        shell(env={"A": "${{ 1 + }}"}), EXPRESSIONS, "it ends too early",
        (*TASK, "inputs", "env", "A"),
    ),
    "no end": (
        shell(run="${{ inputs.host"), EXPRESSIONS, "has no closing", (*TASK, "inputs", "run"),
    ),
    "root": (
        {**shell(), "target": "${{ input.host }}"}, EXPRESSIONS, "did you mean `inputs`?",
        ("jobs", 0, "steps", 0, "target"),
    ),
    "secret in a placement": (
        {**shell(), "labels": {"pool": "${{ vault.get('v', 'k') }}"}}, EXPRESSIONS,
        "`vault` is not available here", ("jobs", 0, "steps", 0, "labels", "pool"),
    ),
    "self without forEach": (
        shell(run="${{ self.host }}"), NAMES, "outside of forEach", (*TASK, "inputs", "run"),
    ),
    "forEach": (
        {**shell(), "forEach": {"item": "h", "in": "${{ inputs.hosts }}"}}, NAMES,
        "did you mean 'host'?", ("jobs", 0, "steps", 0, "forEach", "in"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_found_with_its_check_and_place(name: str) -> None:
    step, check, said, keys = WRONG[name]
    (found,) = troubles(workflow(step))
    assert (found.check, found.keys) == (check, keys)
    assert said in found.text
    assert "step 's' of job 'job'" in found.text


@pytest.mark.parametrize(
    "step",
    [
        calling("build", target="all", timeout=5),
        calling("build", target="${{ inputs.host }}", timeout="${{ 5 + 5 }}"),
        calling("${{ inputs.host }}", "any"),
        shell(run="${{ inputs.host }} ${{ env.ANY }} ${{ run.id }}"),
        shell(run="${{ has(inputs.nope) ? inputs.nope : 'x' }}"),
        shell(run="${{ inputs.?nope.orValue('x') }}"),
        shell(run='${{ inputs["host"] + "inputs.nope" }}'),
        shell(env={"KEY": "${{ vault.get('v', 'k') }}"}),
        {
            **shell(run="${{ self.h.name }}"),
            "name": "s-${{ self.h }}",
            "forEach": {"item": "h", "in": "${{ [1, 2] }}"},
            "labels": {"pool": "${{ self.h }}"},
        },
    ],
    ids=str,
)
def test_what_may_run_is_not_refused(step: dict[str, Any]) -> None:
    assert troubles(workflow(step)) == []


def test_inputs_of_any_name_are_taken_where_the_workflow_takes_them() -> None:
    step = shell(run="${{ inputs.nope }}")
    assert troubles(workflow(step, inputs={"properties": {}, "additionalProperties": True})) == []
    undeclared = workflow_from_source({"name": "w", "jobs": [{"name": "j", "steps": [
        {"name": "s", **step}]}]})  # fmt: skip
    (found,) = troubles(undeclared)
    assert "the workflow declares no inputs" in found.text


def test_layers_above_the_steps_are_looked_at() -> None:
    found = troubles(workflow(shell(), target="${{ inputs.nope }}"))
    assert [(one.text[:13], one.keys) for one in found] == [("the workflow:", ("target",))]


def test_a_thousand_steps_take_a_moment_and_each_model_is_looked_up_once() -> None:
    steps = [
        {"name": f"s{n}", **calling("build", target=f"${{{{ inputs.host }}}}-{n}")}
        for n in range(1000)
    ]
    source = {"name": "w", "inputs": {"host": "x"}, "jobs": [{"name": "j", "steps": steps}]}
    asked = []

    def find(name: str) -> ModelDefinition:
        asked.append(name)
        return find_model(name)

    made = workflow_from_source(source)
    began = time.process_time()
    assert list(preflight(made, find, check_written)) == []
    assert time.process_time() - began < 1
    assert asked == ["build"]


def test_the_examples_that_people_copy_can_run() -> None:
    folder = Path(__file__).parents[2] / "manifests"
    models = {}
    for path in (folder / "models").rglob("*.yaml"):
        model = model_from_source(load(path.read_bytes(), path.name).value)
        models[model.name] = model
    for path in (folder / "workflows").rglob("*.yaml"):
        made = workflow_from_source(load(path.read_bytes(), path.name).value)
        assert list(preflight(made, models.__getitem__, check_written)) == []
