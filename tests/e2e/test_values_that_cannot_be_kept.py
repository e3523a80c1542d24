"""Values that JSON knows and no record can hold once stopped runs for ever, or the whole server."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from harness import Repo

SIZE = """
name: fan
inputs: {names: {type: array}}
labels: {pool: worker}
jobs:
  - name: job
    steps:
      - name: s
        task: {type: model_method, modelType: command/shell, modelName: m, methodName: execute,
               inputs: {run: "echo ${{ size(inputs.names) }}"}}
"""
FROM_OUTPUT = """
name: out
labels: {pool: worker}
jobs:
  - name: job
    steps:
      - name: first
        task: {type: model_method, modelType: command/shell, modelName: m, methodName: execute,
               inputs: {outputs: [o], run: "printf %0300d 0 | sed 's/0/[/g' > f;
                        printf %0300d 0 | sed 's/0/]/g' >> f; PYTHON -m swamp data put o f"}}
      - name: then
        dependsOn: [{step: first, condition: {type: succeeded}}]
        forEach: {item: i, in: "${{ data.latest('m', 'o') }}"}
        task: {type: model_method, modelType: command/shell, modelName: m, methodName: execute,
               inputs: {run: "true"}}
"""


def start(repo: Repo, names: str) -> tuple[int, Any]:
    body = f'{{"workflow": "fan", "inputs": {{"names": {names}}}}}'
    return repo.posted("/api/v1/runs", body.encode())


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("[" * 256 + "]" * 256, "is nested deeper than 64 levels"),
        ("[NaN]", "NaN is no JSON"),
        ("[1e999]", "inputs.names[0] is inf, no finite number"),
        ("[123456789012345678901]", "inputs.names[0] does not fit 64 bits"),
        ('"[123456789012345678901]"', "names[0] does not fit 64 bits"),
    ],
)
def test_a_run_is_refused_where_its_inputs_hold_one(repo: Repo, names: str, said: str) -> None:
    repo.write("workflows/fan.yaml", SIZE)
    repo.serve()
    status, told = start(repo, names)
    assert status in (400, 422)
    assert said in told["error"]
    given = f"names:json={names}" if not names.startswith('"') else f"names={json.loads(names)}"
    refused = repo.swamp("workflow", "run", "fan", "--input", given, code=None)
    assert refused.returncode in (1, 2)
    assert said.removeprefix("inputs.").removeprefix("names") in refused.stderr
    assert "Traceback" not in refused.stderr
    assert repo.json("run", "list")["runs"] == []
    assert start(repo, "[]")[0] == 201


def test_a_step_that_reads_such_an_output_fails_and_all_else_goes_on(repo: Repo) -> None:
    """Regression: the journal could not be written any more, not even after a restart."""
    repo.write("workflows/out.yaml", FROM_OUTPUT.replace("PYTHON", sys.executable))
    repo.write("workflows/fan.yaml", SIZE)
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    failed = repo.json("workflow", "run", "out", code=1)
    assert failed["status"] == "failed"
    assert "is nested deeper than 64 levels" in json.dumps(failed)
    assert start(repo, "[]")[0] == 201
    assert server.terminate() == 0


def test_what_is_deep_is_read_again_without_journal_and_index(repo: Repo) -> None:
    """Regression: a record could be deeper than the files that the server would read."""
    repo.write("workflows/fan.yaml", SIZE)
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    status, told = start(repo, "[" * 62 + "]" * 62)
    assert status == 201
    repo.swamp("run", "watch", told["id"])
    assert server.terminate() == 0
    for file in (repo.path / ".swamp").glob("*.db*"):
        file.unlink()
    server = repo.serve()
    assert repo.json("run", "show", told["id"])["status"] == "succeeded"
    assert "nested" not in server.log()
