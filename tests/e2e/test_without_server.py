"""`swamp workflow run` where no server holds the repository: its own process does it all."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from harness import Repo, alive_with

TASK = (
    "{{type: model_method, modelType: command/shell, modelName: {name}-{step},"
    " methodName: execute, inputs: {{run: {run}}}}}"
)


def local_workflow(repo: Repo, name: str, steps: dict[str, str], placed: str = "") -> None:
    """A workflow whose steps run without a worker, and perhaps one that needs one."""
    listed = "".join(
        f"      - name: {step}\n"
        + ("        labels: {pool: gpu}\n" if step == placed else "")
        + f"        task: {TASK.format(name=name, step=step, run=json.dumps(run))}\n"
        for step, run in steps.items()
    )
    repo.write(
        f"workflows/{name}.yaml", f"name: {name}\njobs:\n  - name: job\n    steps:\n{listed}"
    )


def waiting_for(path: Path) -> str:
    return f"until [ -e {path} ]; do sleep 0.02; done"


def states(repo: Repo, kind: str) -> list[str]:
    records = repo.records(kind).values()
    return sorted(str(record.get("status", {}).get("state")) for record in records)


def is_free(repo: Repo) -> bool:
    private = repo.path / ".swamp"
    return not (private / "lock").read_text().strip() and not (private / "serve.sock").exists()


def test_a_run_goes_to_its_end_and_leaves_the_same_as_a_server(repo: Repo) -> None:
    local_workflow(repo, "w", {"one": "echo hello", "two": "exit 3"})
    shown = repo.swamp("workflow", "run", "w", code=1)
    assert "hello" in shown.stdout
    run = repo.json("run", "list")["runs"][0]
    assert (run["status"], run["counts"]["succeeded"], run["counts"]["failed"]) == ("failed", 1, 1)
    assert states(repo, "steps") == ["failed", "succeeded"]
    stories = list((repo.path / "datastore" / "history" / "w").glob("*.yaml"))
    assert [path.stem for path in stories] == [run["runId"]]
    assert is_free(repo)


def test_json_prints_the_final_run_and_refusals_are_those_of_a_server(repo: Repo) -> None:
    local_workflow(repo, "w", {"one": "true"})
    assert repo.json("workflow", "run", "w")["status"] == "succeeded"
    refused = repo.swamp("workflow", "run", "nope", "--json", code=1)
    assert json.loads(refused.stderr)["code"] == "workflow_not_found"
    assert is_free(repo)


def test_placed_steps_fail_at_once_and_name_the_way_out(repo: Repo) -> None:
    marker = repo.base / "placed-ran"
    local_workflow(repo, "w", {"here": "true", "there": f"touch {marker}"}, placed="there")
    began = time.monotonic()
    run = repo.json("workflow", "run", "w", code=1)
    assert time.monotonic() - began < 10, "it must not wait for a worker"
    here, there = run["jobs"][0]["steps"]
    assert here["status"] == "succeeded"
    assert there["status"] == "failed"
    assert there["error"].startswith("needs a worker (labels pool=gpu): workers connect to")
    assert "swamp serve" in there["error"]
    assert not marker.exists()
    assert repo.records("pending") == {}


def test_it_answers_meanwhile_and_takes_on_nothing_else(repo: Repo) -> None:
    go = repo.base / "go"
    local_workflow(repo, "w", {"one": waiting_for(go)})
    running = repo.start("workflow", "run", "w")
    repo.until(lambda: states(repo, "steps") == ["running"], "the step")
    listed = repo.json("run", "list")["runs"]
    assert [run["status"] for run in listed] == ["running"]
    second = repo.swamp("workflow", "run", "w", "--json", code=1)
    refusal = json.loads(second.stderr)
    held = f"run {listed[0]['runId']} of workflow 'w'"
    assert (refusal["code"], held in refusal["error"]) == ("one_run_only", True)
    served = repo.swamp("serve", "--port", str(repo.port), code=1)
    assert f"held by {held}, pid {running.pid}" in served.stderr
    doctor = repo.json("doctor")
    assert doctor["server"]["takesWork"] is False
    began = time.monotonic()
    assert "at the next start of `swamp serve`" in repo.swamp("queue", "pause").stdout
    assert time.monotonic() - began < 4.5, "nothing is waited for (5 s)"
    assert [one["atNextStart"] for one in repo.json("queue", "list")] == [True]
    assert repo.swamp("queue", "resume").returncode == 0
    go.touch()
    assert running.wait(30) == 0
    assert is_free(repo)


def test_ctrl_c_cancels_the_run_and_everything_is_over(repo: Repo) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        local_workflow(repo, "w", {"one": f"MARK={repo.base} sleep 60"})
        running = repo.start("workflow", "run", "w")
        repo.until(lambda: states(repo, "steps").count("running") == 1, "the step")
        running.send_signal(number)
        out, _ = running.communicate(timeout=30)
        assert running.returncode == 128 + number, out
        assert "Cancelling the run" in out
        assert repo.json("run", "list")["runs"][0]["status"] == "cancelled"
        assert alive_with(f"MARK={repo.base}") == []
        assert is_free(repo)


def test_steps_of_a_cancelled_run_that_never_started_are_told_of(repo: Repo) -> None:
    """Regression: of 7,477 cancelled steps 3,957 were listed, without a word on the others."""
    repo.write(
        "workflows/w.yaml",
        "name: w\njobs:\n  - name: job\n    steps:\n      - name: step\n        concurrency: 1\n"
        "        forEach: {item: n, in: '${{ [1, 2, 3, 4] }}'}\n"
        "        task: {type: model_method, modelType: command/shell, modelName: m,"
        " methodName: execute, inputs: {run: sleep 60}}\n"
        "      - name: after\n        dependsOn: [{step: step, condition: {type: completed}}]\n"
        "        task: {type: model_method, modelType: command/shell, modelName: m,"
        " methodName: execute, inputs: {run: 'true'}}\n",
    )
    running = repo.start("workflow", "run", "w")
    repo.until(lambda: states(repo, "steps").count("running") == 1, "the step")
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    (run,) = repo.json("run", "list")["runs"]
    listed = repo.json("run", "show", run["runId"])["jobs"][0]["steps"]
    assert run["counts"]["cancelled"] + run["counts"]["skipped"] == 5
    shown = repo.swamp("run", "show", run["runId"]).stdout
    assert len(listed) == 2
    assert "\n3 steps that never started are counted as cancelled, not listed.\n" in shown
    (story,) = (repo.path / "datastore" / "history" / "w").glob("*.yaml")
    # There, what never started is not listed as pending either.
    assert "\nneverStarted: 4\n" in story.read_text()


def test_what_others_left_is_left_for_the_next_server(repo: Repo) -> None:
    repo.shell_workflow("far", {"step": f"echo ran >> {repo.base}/ran"})
    server = repo.serve()
    far = repo.start("workflow", "run", "far", "--on-interrupt", "detach")
    repo.until(lambda: states(repo, "pending") == ["waiting"], "the dispatch")
    server.process.kill()
    server.wait()
    far.kill()
    far.communicate()
    before = {kind: repo.records(kind) for kind in ("runs", "pending")}

    local_workflow(repo, "here", {"one": "true"})
    assert repo.json("workflow", "run", "here")["status"] == "succeeded"
    after = {kind: repo.records(kind) for kind in ("runs", "pending")}
    for kind, records in before.items():
        assert {name: after[kind][name] for name in records} == records

    again = repo.serve()
    assert "1 pending dispatch orphaned" in again.lines.kind("boot_sweep")["summary"]
    repo.worker("w1", "--label", "pool=worker")
    repo.until(lambda: states(repo, "runs") == ["succeeded", "succeeded"], "the other run's end")
    assert (repo.base / "ran").read_text() == "ran\n"


def killed_run(repo: Repo) -> str:
    """The id of a run whose process was killed; a placed step of it had failed before."""
    steps = {"there": "true", "one": f"MARK={repo.base} sleep 60"}
    local_workflow(repo, "w", steps, placed="there")
    running = repo.start("workflow", "run", "w")
    repo.until(lambda: states(repo, "steps") == ["failed", "running"], "the steps")
    running.kill()
    running.communicate()
    repo.until(lambda: alive_with(f"MARK={repo.base}") == [], "the end of its step")
    return str(repo.json("run", "list")["runs"][0]["runId"])


SUMMARY = "Boot sweep: 1 run ended with the process of its command"


def ended_truly(repo: Repo, run: str) -> None:
    """Everything says that the run ended with its process."""
    view = repo.json("run", "show", run)
    assert view["status"] == "failed"
    assert view["failureReason"] == "the process of its command ended before it did"
    steps = {step["name"]: step for step in view["jobs"][0]["steps"]}
    assert steps["one"]["error"] == view["failureReason"]
    story = repo.path / "datastore" / "history" / "w" / f"{run}.yaml"
    repo.until(story.exists, "the story")
    assert "the process of its command ended" in story.read_text()
    log = repo.path / ".swamp" / "events" / f"{run}.jsonl"
    repo.until(lambda: '"run_completed"' in log.read_text(), "the end in its events")


def test_a_run_that_was_killed_is_told_as_left_and_ended_by_the_next_run(repo: Repo) -> None:
    run = killed_run(repo)
    assert "at the next start" in repo.swamp("run", "list").stderr
    refused = repo.swamp("run", "cancel", run, code=1).stderr
    left = f"run {run} is recorded as running, but nobody serves this repository"
    assert left in refused
    (told,) = [one for one in repo.json("doctor")["findings"] if one["check"] == "runs"]
    assert told["message"].replace(" (w)", "") == left
    assert "ends it" in told["wayOut"]

    local_workflow(repo, "here", {"one": "true"})
    done = repo.swamp("workflow", "run", "here")
    assert done.stderr == f"Found at the start: {SUMMARY}\n"
    ended_truly(repo, run)
    assert repo.json("run", "cancel", run)["status"] == "failed"
    assert repo.swamp("workflow", "run", "here").stderr == "", "it is told once"
    assert [one for one in repo.json("doctor")["findings"] if one["check"] == "runs"] == []
    assert "boot_sweep" not in repo.serve().lines.kinds()


def test_a_run_that_was_killed_is_ended_by_the_next_server(repo: Repo) -> None:
    run = killed_run(repo)
    server = repo.serve()
    assert server.lines.kind("boot_sweep")["summary"] == SUMMARY
    ended_truly(repo, run)
    assert states(repo, "runs") == ["failed"]
