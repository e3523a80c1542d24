"""Waiting is a budget: over episodes and restarts, running and downtime not counted, in order."""

from __future__ import annotations

import json
import signal
import socket
import time

from harness import Repo


def test_waiting_counts_over_a_restart_and_downtime_does_not(repo: Repo) -> None:
    repo.shell_workflow("w", {"step": "true"}, "queueTimeout: 6\n")
    server = repo.serve()
    run = repo.start("workflow", "run", "w", "--json")
    repo.until(lambda: repo.json("worker", "queue") != [], "the waiting step")
    queued = time.monotonic()
    repo.until(lambda: time.monotonic() - queued > 4.2, "some waiting")
    server.terminate(signal.SIGKILL)
    down = time.monotonic()
    repo.until(lambda: time.monotonic() - down > 2.5, "some downtime")
    repo.serve()
    out, _ = run.communicate(timeout=30)
    assert run.returncode == 1
    step = json.loads(out[out.index("{\n") :])["jobs"][0]["steps"][0]
    assert "waited 6s, the limit set by queueTimeout of the workflow" in step["error"]
    assert step["episodes"] == 2
    (before_s,) = [
        record["spec"]["waitedBeforeS"]
        for record in repo.records("pending").values()
        if record["spec"]["episode"] == 2
    ]
    # That the server lives is noted every two seconds; with the downtime it would be 6.7.
    assert 2.0 < before_s < 5.5, "what was waited before counts, the downtime does not"


def test_what_only_holds_the_lock_makes_no_downtime_waiting(repo: Repo) -> None:
    """Regression: the time of the lock's file told until when the server had lived, and a run of
    its own, a start that came to nothing, and a copy of the folder renewed it."""
    repo.shell_workflow("w", {"step": "true"}, "queueTimeout: 6\n")
    repo.write(
        "workflows/here.yaml",
        "name: here\njobs:\n  - name: job\n    steps:\n      - name: step\n        task: {type:"
        " model_method, modelType: command/shell, modelName: here, methodName: execute,"
        " inputs: {run: 'true'}}\n",
    )
    server = repo.serve()
    run = repo.start("workflow", "run", "w", "--json")
    repo.until(lambda: repo.json("worker", "queue") != [], "the waiting step")
    run.kill()
    run.wait()
    server.terminate()
    alive = (repo.path / ".swamp" / "alive").read_bytes()
    down = time.monotonic()
    repo.until(lambda: time.monotonic() - down > 7, "some downtime")
    repo.swamp("workflow", "run", "here")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", repo.port))
        taken.listen()
        repo.swamp("serve", "--port", str(repo.port), code=1)
    assert (repo.path / ".swamp" / "alive").read_bytes() == alive
    (repo.path / ".swamp" / "lock").touch()
    repo.serve()
    (again,) = repo.json("worker", "queue")
    (before_s,) = [
        record["spec"]["waitedBeforeS"]
        for record in repo.records("pending").values()
        if record["metadata"]["name"] == again["queueId"]
    ]
    assert before_s < 5, "the downtime is no waiting"


def test_each_layer_sets_the_limit_and_the_inner_one_wins(repo: Repo) -> None:
    def workflow(name: str, flow: str, job: str, step: str) -> None:
        repo.write(
            f"workflows/{name}.yaml",
            f"name: {name}\nlabels: {{pool: none}}\n{flow}jobs:\n  - name: j\n{job}    steps:\n"
            f"      - name: s\n{step}        task: {{type: model_method, modelType: command/shell,"
            f" modelName: {name}, methodName: execute, inputs: {{run: 'true'}}}}\n",
        )

    limit = "queueTimeout: 1\n"
    workflow("by-flow", limit, "", "")
    workflow("by-job", "queueTimeout: 100\n", "    " + limit, "")
    workflow("by-step", "queueTimeout: 100\n", "", "        " + limit)
    workflow("by-serve", "", "", "")
    workflow("for-ever", "queueTimeout: 0\n", "", "")
    repo.serve("--queue-timeout", "1s")
    for_ever = repo.start("workflow", "run", "for-ever")
    said = {
        "by-flow": "queueTimeout of the workflow",
        "by-job": "queueTimeout of the job",
        "by-step": "queueTimeout of the step",
        "by-serve": "serve --queue-timeout",
    }
    for name, layer in said.items():
        view = repo.json("workflow", "run", name, code=1)
        error = view["jobs"][0]["steps"][0]["error"]
        assert error.startswith("Timed out waiting for a worker matching labels pool=none")
        assert f"the limit set by {layer}; no worker is connected" in error
    assert for_ever.poll() is None
    for_ever.kill()
    for_ever.wait()


def test_a_run_of_one_starts_within_the_next_freed_slots_of_a_fan_out(repo: Repo) -> None:
    ran = repo.base / "ran"
    repo.write(
        "workflows/many.yaml",
        "name: many\nlabels: {pool: worker}\ninputs: {n: {type: array}}\njobs:\n  - name: j\n"
        "    steps:\n      - name: s\n        forEach: {item: i, in: '${{ inputs.n }}'}\n"
        "        task: {type: model_method, modelType: command/shell, modelName: 'm${{ self.i }}',"
        f" methodName: execute, inputs: {{run: 'echo many >> {ran}; sleep 0.05'}}}}\n",
    )
    repo.shell_workflow("one", {"step": f"echo one >> {ran}"})
    given = repo.write("in.json", json.dumps({"n": list(range(2_000))}))
    repo.serve()
    worker = repo.worker("w1", "--label", "pool=worker", "--concurrency", "2")
    many = repo.start("workflow", "run", "many", "--input-file", str(given))
    worker.lines.kind("dispatch_started", 20)
    before = len(ran.read_text().split())
    view = repo.json("workflow", "run", "one")
    assert view["status"] == "succeeded"
    order = ran.read_text().split()
    # A start of the command line takes as long as some steps; from its arrival it is slots.
    assert order.index("one") - before < 60
    waited_s = view["jobs"][0]["steps"][0].get("waitedS", 0.0)
    assert waited_s < 1.0
    many.kill()
    many.wait()


def test_a_run_of_one_is_not_starved_by_a_fan_out_on_a_single_slot(repo: Repo) -> None:
    """Regression: both runs had nothing running whenever the only slot was free."""
    ran = repo.base / "ran"
    steps = {f"s{number:03}": f"echo many >> {ran}; sleep 0.05" for number in range(100)}
    repo.shell_workflow("many", steps)
    repo.shell_workflow("one", {"step": f"echo one >> {ran}"})
    repo.serve()
    worker = repo.worker("w1", "--label", "pool=worker")
    many = repo.start("workflow", "run", "many")
    worker.lines.kind("dispatch_started", 5)
    view = repo.json("workflow", "run", "one")
    assert view["status"] == "succeeded"
    assert view["jobs"][0]["steps"][0].get("waitedS", 0.0) < 1.0
    assert many.poll() is None, "the fan-out was still under way"
    many.kill()
    many.wait()


def test_a_more_urgent_run_goes_first(repo: Repo) -> None:
    ran = repo.base / "ran"
    go = repo.base / "go"
    repo.shell_workflow("first", {"step": f"until [ -e {go} ]; do sleep 0.02; done"})
    for name in ("calm", "urgent"):
        repo.shell_workflow(name, {"step": f"echo {name} >> {ran}"})
    repo.serve()
    worker = repo.worker("w1", "--label", "pool=worker")
    runs = [repo.start("workflow", "run", "first")]
    worker.lines.kind("dispatch_started")
    runs.append(repo.start("workflow", "run", "calm"))
    repo.until(lambda: len(repo.json("worker", "queue")) == 1, "calm waits")
    runs.append(repo.start("workflow", "run", "urgent", "--priority", "1"))
    repo.until(lambda: len(repo.json("worker", "queue")) == 2, "urgent waits")
    go.touch()
    assert [run.wait(30) for run in runs] == [0, 0, 0]
    assert ran.read_text().split() == ["urgent", "calm"]
