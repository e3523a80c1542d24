"""One byte that is no UTF-8, or an escape in JSON, once stopped a run for ever, or the fleet."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request

from harness import SWAMP, Repo

ECHO = """
name: fan
labels: {pool: worker}
inputs: {names: {type: array}}
jobs:
  - name: job
    steps:
      - name: s
        forEach: {item: name, in: "${{ inputs.names }}"}
        task: {type: model_method, modelType: command/shell, modelName: "m-${{ self.name }}",
               methodName: execute, inputs: {run: "echo ${{ self.name }}"}}
"""


def test_a_run_is_refused_where_its_inputs_hold_it(repo: Repo) -> None:
    repo.write("workflows/fan.yaml", ECHO)
    repo.serve()
    status, told = repo.posted("/api/v1/runs", b'{"workflow":"fan","inputs":{"names":["\\ud800"]}}')
    assert (status, told["code"]) == (400, "bad_request")
    assert told["error"].startswith("in the body, inputs.names[0] holds a character that is no ")
    status, told = repo.posted(
        "/api/v1/runs", rb'{"workflow":"fan","inputs":{"names":"[\"\\ud800\"]"}}'
    )
    assert (status, told["code"]) == (422, "input_invalid")
    assert told["error"].startswith("inputs of workflow 'fan': names[0] holds a character")
    refused = repo.swamp("workflow", "run", "fan", "--input", 'names:json=["\\ud800"]', code=None)
    assert refused.returncode != 0
    assert "names:json': [0] holds a character" in refused.stderr
    assert repo.json("run", "list")["runs"] == []


def test_nesting_without_end_is_no_fault_of_the_server(repo: Repo) -> None:
    server = repo.serve()
    status, told = repo.posted("/api/v1/runs", b"[" * 50_000)
    assert (status, told["code"]) == (400, "bad_request")
    assert "Traceback" not in server.log()


def test_an_argument_that_is_no_utf8_is_wrong_usage(repo: Repo) -> None:
    for arguments, what in (
        ([b"worker", b"cordon", b"w", b"--note", b"caf\xe9"], "the value of --note"),
        ([b"worker", b"token", b"create", b"caf\xe9", b"--duration", b"1h"], "argument 4"),
        ([b"run", b"show", b"\xe9"], "argument 3"),
    ):
        done = subprocess.run(
            [*SWAMP, *arguments], cwd=repo.path, env=repo.env, capture_output=True, text=True
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr == f"Error: {what} is not UTF-8\n"


def test_a_variable_of_the_server_that_is_no_utf8_stays_behind(repo: Repo) -> None:
    repo.shell_workflow("env", {"one": "echo $GOOD; echo x${{ env.GOOD }}"})
    repo.env |= {"LC_BAD": os.fsdecode(b"caf\xe9"), "GOOD": "good"}
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    run = repo.json("workflow", "run", "env")
    assert run["status"] == "succeeded"
    repo.until(lambda: "the variable LC_BAD is not UTF-8" in server.log(), "the warning")
    assert server.log().count("LC_BAD") == 1


def test_a_file_name_that_is_no_utf8_does_not_end_the_server(repo: Repo) -> None:
    """Regression: the watcher of files cannot name it, and its error ended everything."""
    server = repo.serve()
    for folder in ("workflows", "models", "datastore/observed/workers"):
        (repo.path / folder / os.fsdecode(b"b\xe9d.yaml")).write_text("a: 1\n")
        repo.until(lambda: server.log().count("Unable to decode path") >= 1, "the event")
    repo.write("workflows/fan.yaml", ECHO)
    repo.until(lambda: "fan" in repo.swamp("workflow", "list").stdout, "the workflow")
    repo.until(lambda: "b\\udce9d.yaml" in repo.swamp("doctor", code=None).stdout, "the problem")
    assert server.process.poll() is None
    assert server.terminate() == 0


def test_a_file_that_could_be_read_but_for_its_name_does_not_end_the_server(repo: Repo) -> None:
    """Regression: the index cannot name it. The server ended, and could not start again."""
    model = "name: {}\ntype: command/shell\nmethods: {{execute: {{arguments: {{run: 'true'}}}}}}\n"
    odd = os.fsdecode(b"b\xe9d")
    texts = {
        f"workflows/{odd}.yaml": ECHO.replace("name: fan", "name: other"),
        f"models/{odd}.yaml": model.format("one"),
        f"models/{odd}/inside.yaml": model.format("two"),
        f"datastore/desired/workers/{odd}.yaml": "spec: {schedulable: false}\n",
    }
    repo.write("workflows/fan.yaml", ECHO)
    told = {one.replace(odd, "b\\udce9d").replace("/inside.yaml", "") for one in texts}
    server = repo.serve()
    (repo.path / "models" / odd).mkdir()
    for path, text in texts.items():
        (repo.path / path).write_text(text)
    for _ in "12":
        repo.until(lambda: told <= problems(repo), "the problems")
        found = repo.swamp("workflow", "list").stdout
        assert "fan" in found
        assert "other" not in found
        assert server.terminate() == 0
        assert "Traceback" not in server.log()
        server = repo.serve()


def problems(repo: Repo) -> set[str]:
    with urllib.request.urlopen(f"{repo.url}/api/v1/problems") as answer:
        return {one["path"] for one in json.load(answer)}


def test_a_repository_whose_path_is_no_utf8_is_served(repo: Repo) -> None:
    repo.path = repo.path.rename(repo.base / os.fsdecode(b"caf\xe9"))
    server = repo.serve()
    repo.write("workflows/fan.yaml", ECHO)
    run = repo.json("workflow", "run", "fan", "--input", "names:json=[]")
    assert run["status"] == "succeeded"
    assert server.terminate() == 0
