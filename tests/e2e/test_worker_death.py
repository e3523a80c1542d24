"""A worker that is killed: its guard ends what it ran and tells, so that nothing waits for it."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from harness import Proc, Repo, alive_with
from proxy import Proxy

from datastore.key_file import load_or_make
from datastore.layout import Layout
from swamp.serve.credentials import Credentials

HERE = ("--label", "pool=worker")


def _first_waits(repo: Repo, extra: str = "") -> str:
    """A command whose first start never ends by itself; its children leave the group."""
    starts = repo.base / "starts"
    return (
        f"echo x >> {starts}; {extra} [ $(wc -l < {starts}) = 2 ] ||"
        " { setsid sleep 60 & sleep 60; }"
    )


def _leases(repo: Repo) -> list[tuple[str, str]]:
    found = [record["status"] for record in repo.records("leases").values()]
    return sorted((one["state"], one.get("reason", "")) for one in found)


def _step(run: Any) -> dict[str, Any]:
    out, _ = run.communicate(timeout=30)
    step: dict[str, Any] = json.loads(out[out.index("{\n") :])["jobs"][0]["steps"][0]
    return step


def _report(repo: Repo, worker: str, instance: str, credential: str) -> tuple[int, Any]:
    body = json.dumps({"instance": instance, "credential": credential}).encode()
    request = urllib.request.Request(
        f"{repo.url}/api/v1/workers/{worker}/death",
        body,
        {"Content-Type": "application/json"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def _kill(worker: Proc) -> float:
    worker.process.kill()
    killed = time.monotonic()
    worker.process.wait()
    return killed


@pytest.mark.parametrize("link", ["open", "half-open"])
def test_an_idle_worker_takes_the_step_of_a_killed_one_at_once(
    repo: Repo, proxy: Proxy, link: str
) -> None:
    """Also where the server never sees the socket's end: the guard's proof is enough."""
    repo.shell_workflow("long", {"step": _first_waits(repo)})
    repo.serve("--grace", "60s")
    first = repo.worker("w1", *HERE, port=proxy.port)
    run = repo.start("workflow", "run", "long", "--server", repo.url, "--json")
    first.lines.kind("dispatch_started")
    second = repo.worker("w2", *HERE)
    dispatch = f"SWAMP_DISPATCH={repo.json('run', 'list')['runs'][0]['runId']}"
    repo.until(lambda: len(alive_with(dispatch)) >= 3, "the step's processes")
    runners = alive_with(dispatch)
    if link == "half-open":
        proxy.freeze()
    killed = _kill(first)
    second.lines.kind("dispatch_started")
    # Two seconds on a machine of its own; without the proof it would be the grace, 60 s.
    assert time.monotonic() - killed < 15
    step = _step(run)
    assert (step["status"], step["worker"], step["episodes"]) == ("succeeded", "w2", 2)
    assert not set(runners) & set(alive_with(dispatch)), "nothing of the first attempt is left"
    repo.until(
        lambda: (
            _leases(repo)
            == [("completed", "completed"), ("expired", "worker lost: its process died")]
        ),
        "the leases",
    )
    worker = repo.records("workers")["w1"]["status"]
    assert worker["state"] == "disconnected"


def test_a_killed_worker_that_had_written_fails_its_step_at_once(repo: Repo) -> None:
    put = (
        'echo 1 | curl -fsS -T - -H "Authorization: Bearer $SWAMP_DATA_TOKEN"'
        f" $SWAMP_DATA_URL/report; touch {repo.base / 'wrote'};"
    )
    run_text = json.dumps(_first_waits(repo, put))
    repo.write(
        "workflows/long.yaml",
        "name: long\nlabels: {pool: worker}\njobs:\n  - name: job\n    steps:\n"
        "      - name: step\n        task: {type: model_method, modelType: command/shell,"
        " modelName: m, methodName: execute,"
        f" inputs: {{run: {run_text}, outputs: [report]}}}}\n",
    )
    repo.serve("--grace", "60s")
    worker = repo.worker("w1", *HERE)
    run = repo.start("workflow", "run", "long", "--server", repo.url, "--json")
    repo.until((repo.base / "wrote").exists, "the output")
    killed = _kill(worker)
    step = _step(run)
    assert time.monotonic() - killed < 15
    assert (step["status"], step["episodes"]) == ("failed", 1)
    assert step["error"].startswith("worker lost: its process died, after it had written")


def test_a_report_that_is_forged_or_late_changes_nothing(repo: Repo) -> None:
    go = repo.base / "go"
    repo.shell_workflow("wait", {"step": f"until [ -e {go} ]; do sleep 0.05; done"})
    repo.serve("--grace", "60s")
    credentials = Credentials(load_or_make(Layout(repo.path)))
    repo.worker("w1", *HERE).terminate()
    earlier = repo.records("workers")["w1"]["status"]["instance"]
    worker = repo.worker("w1", *HERE)
    repo.worker("w2", "--label", "pool=other")
    run = repo.start("workflow", "run", "wait", "--server", repo.url, "--json")
    worker.lines.kind("dispatch_started")
    repo.until(lambda: [one for one, _ in _leases(repo)] == ["active"], "the lease")
    now = repo.records("workers")["w1"]["status"]["instance"]
    for forged in (
        "",
        "é" * 64,
        credentials.of_death("w1", earlier),
        credentials.of_death("w2", now),
        credentials.of(next(iter(repo.records("leases")))),
    ):
        status, answer = _report(repo, "w1", now, forged)
        assert (status, answer["code"]) == (401, "unauthorized")
    late = _report(repo, "w1", earlier, credentials.of_death("w1", earlier))
    assert late == (200, {"worker": "w1", "endedLeases": 0})
    go.touch()
    step = _step(run)
    assert (step["status"], step["episodes"]) == ("succeeded", 1)
    assert worker.lines.kinds("disconnected") == []


def test_a_worker_that_gives_up_tells_so(repo: Repo, proxy: Proxy) -> None:
    """With --no-reconnect, its lost link leaves no lease to wait for the grace window."""
    repo.shell_workflow("long", {"step": _first_waits(repo)})
    repo.serve("--grace", "60s")
    first = repo.worker("w1", *HERE, "--no-reconnect", port=proxy.port)
    run = repo.start("workflow", "run", "long", "--server", repo.url, "--json")
    first.lines.kind("dispatch_started")
    repo.worker("w2", *HERE)
    proxy.cut()
    assert first.wait() == 1
    step = _step(run)
    assert (step["status"], step["worker"], step["episodes"]) == ("succeeded", "w2", 2)


def test_a_worker_that_was_stopped_runs_nothing_that_others_have_done_meanwhile(
    repo: Repo, tmp_path: Path
) -> None:
    """Regression: the dispatch waited in its socket, and ran ten seconds after the run was over."""
    witness = tmp_path / "begun"
    repo.shell_workflow("once", {"one": f"echo $$ >> {witness}; sleep 0.5"})
    server = repo.serve("--grace", "2s")
    first = repo.worker("w1", "--label", "pool=worker")
    os.kill(first.process.pid, signal.SIGSTOP)
    running = repo.start("workflow", "run", "once", "--json")
    repo.until(lambda: bool(repo.records("leases")), "the dispatch")
    repo.worker("w2", "--label", "pool=worker")
    answer = json.loads(running.communicate(timeout=30)[0])
    assert answer["status"] == "succeeded"
    os.kill(first.process.pid, signal.SIGCONT)
    first.lines.kind("enrolled", 2)
    repo.swamp("worker", "cordon", "w2")
    repo.shell_workflow("after", {"one": "true"})
    assert repo.json("workflow", "run", "after")["status"] == "succeeded"
    assert len(witness.read_text().split()) == 1
    assert first.lines.kinds().count("dispatch_started") == 1
    assert "worker w1: disconnected, runs 1 of our steps" in server.log()
    assert "on worker w1 is given up: worker lost: away for longer than 2s" in server.log()
