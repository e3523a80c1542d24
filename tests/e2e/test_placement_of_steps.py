"""Where steps run: affinity, sets and negation of labels, and placements that give nothing."""

from __future__ import annotations

import json
from typing import Any

from harness import Repo


def _step(name: str, run: str = "true", extra: str = "") -> str:
    return (
        f"      - name: {name}\n{extra}"
        f"        task: {{type: model_method, modelType: command/shell, modelName: m-{name},"
        f" methodName: execute, inputs: {{run: {json.dumps(run)}}}}}\n"
    )


def _steps(view: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {step["name"]: step for job in view["jobs"] for step in job["steps"]}


def test_steps_of_an_affinity_group_stay_on_one_worker(repo: Repo) -> None:
    steps = "".join(_step(f"s{n}", "sleep 0.1") for n in range(6))
    repo.write(
        "workflows/together.yaml",
        f"name: together\naffinity: true\nlabels: {{pool: worker}}\njobs:\n"
        f"  - name: job\n    steps:\n{steps}",
    )
    repo.serve()
    for name in ("w1", "w2"):
        repo.worker(name, "--label", "pool=worker", "--concurrency", "2")
    view = repo.json("workflow", "run", "together")
    assert view["status"] == "succeeded"
    assert len({step["worker"] for step in _steps(view).values()}) == 1
    apart = repo.write(
        "workflows/apart.yaml",
        (repo.path / "workflows/together.yaml").read_text()
        .replace("name: together", "name: apart").replace("affinity: true\n", ""),
    )  # fmt: skip
    assert apart.exists()
    view = repo.json("workflow", "run", "apart")
    assert {step["worker"] for step in _steps(view).values()} == {"w1", "w2"}


def test_the_loss_of_a_groups_worker_fails_the_group_with_its_own_error(repo: Repo) -> None:
    first = _step("first")
    second = _step("second", "sleep 30", "        dependsOn: [{step: first}]\n")
    third = _step("third", "true", "        dependsOn: [{step: first}]\n")
    repo.write(
        "workflows/together.yaml",
        "name: together\nlabels: {pool: worker}\njobs:\n"
        f"  - name: job\n    affinity: true\n    steps:\n{first}{second}{third}",
    )
    repo.serve("--grace", "1s")
    only = repo.worker("w1", "--label", "pool=worker")
    run = repo.start("workflow", "run", "together", "--json")
    only.lines.kind("dispatch_started", 2)
    repo.worker("w2", "--label", "pool=worker")
    only.process.kill()
    out, _ = run.communicate(timeout=30)
    steps = _steps(json.loads(out[out.index("{\n") :]))
    assert steps["first"]["status"] == "succeeded"
    for name in ("second", "third"):
        assert steps[name]["status"] == "failed"
        assert "worker 'w1', which its group must stay on, was lost" in steps[name]["error"]


def test_sets_and_negation_of_labels_choose_workers(repo: Repo) -> None:
    placed = {
        "one-of": "{zone: [a, b]}",
        "not": "{zone: {not: [a, c]}}",
        "without": "{gpu: {not: old}, zone: a}",
    }
    steps = "".join(_step(n, "true", f"        labels: {p}\n") for n, p in placed.items())
    repo.write("workflows/sets.yaml", f"name: sets\njobs:\n  - name: job\n    steps:\n{steps}")
    repo.serve()
    repo.worker("wa", "--label", "zone=a")
    repo.worker("wb", "--label", "zone=b", "--label", "gpu=old")
    steps_of = _steps(repo.json("workflow", "run", "sets"))
    assert steps_of["one-of"]["worker"] in ("wa", "wb")
    assert steps_of["not"]["worker"] == "wb"
    assert steps_of["without"]["worker"] == "wa"


def test_a_placement_that_gives_nothing_fails_and_never_runs_here(repo: Repo) -> None:
    def workflow(name: str, placement: str) -> None:
        repo.write(
            f"workflows/{name}.yaml",
            f"name: {name}\ninputs: {{host: {{type: string, default: ''}}}}\njobs:\n"
            f"  - name: job\n    steps:\n{_step('s', 'touch RAN', placement)}",
        )

    workflow("nothing", "        target: ${{ inputs.host }}\n")
    workflow("missing", "        labels: {pool: '${{ inputs.nope }}'}\n")
    repo.serve()
    found = _steps(repo.json("workflow", "run", "nothing", code=1))
    assert "evaluates to nothing" in found["s"]["error"]
    refused = repo.swamp("workflow", "run", "missing", code=1)
    assert "inputs has no 'nope'" in refused.stderr or "nope" in refused.stderr
    assert repo.records("leases") == {} and not list(repo.base.rglob("RAN"))


def test_the_reason_is_told_again_when_it_has_changed(repo: Repo) -> None:
    repo.shell_workflow("w", {"step": "true"})
    repo.serve()
    run = repo.start("workflow", "run", "w", "--json")
    repo.until(lambda: repo.json("worker", "queue") != [], "the waiting step")
    assert repo.json("worker", "queue")[0]["reasonCode"] == "no_workers"
    repo.worker("other", "--label", "pool=wrker")
    repo.until(
        lambda: any(
            "1 lacks pool=worker" in str(one["status"].get("reason"))
            for one in repo.records("pending").values()
        ),
        "the new reason in the record",
    )
    repo.worker("right", "--label", "pool=worker")
    run.communicate(timeout=30)
    assert run.returncode == 0
    run_id = repo.json("run", "list")["runs"][0]["runId"]
    seen = repo.swamp("run", "watch", run_id).stdout
    assert "no worker is connected" in seen
    assert "0 of 1 workers fit: 1 lacks pool=worker" in seen
