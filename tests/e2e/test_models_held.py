"""Model locks with real processes: one call at a time, unless the definition says otherwise."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from harness import Proc, Repo


def model(repo: Repo, name: str, concurrency: int | None = None) -> None:
    limit = "" if concurrency is None else f"concurrency: {concurrency}\n"
    repo.write(f"models/command/shell/{name}.yaml", f"type: command/shell\nname: {name}\n{limit}")


def workflow(repo: Repo, name: str, commands: list[str], extra: str = "") -> None:
    """One step per command, all calling model `m`; placed unless `extra` says how."""
    steps = "\n".join(
        f"      - name: s{number}\n"
        "        task: {type: model_method, modelIdOrName: m, methodName: execute,"
        f" inputs: {{run: {json.dumps(command)}}}}}"
        for number, command in enumerate(commands)
    )
    repo.write(
        f"workflows/{name}.yaml",
        f"name: {name}\n{extra or 'labels: {pool: worker}'}\njobs:\n  - name: job\n"
        f"    steps:\n{steps}\n",
    )


def traced(repo: Repo, name: str, middle: str = "sleep 0.3") -> str:
    """A command that notes its start and its end, and does something in between."""
    trace = repo.base / "trace"
    return f"echo +{name} >> {trace}; {middle}; echo -{name} >> {trace}"


def trace(repo: Repo) -> list[str]:
    path = repo.base / "trace"
    return path.read_text().split() if path.exists() else []


def most_at_once(lines: list[str]) -> int:
    running = most = 0
    for line in lines:
        running += 1 if line.startswith("+") else -1
        most = max(most, running)
    return most


def until(repo: Repo, line: str) -> None:
    repo.until(lambda: line in trace(repo), line)


def waits_for_go(repo: Repo, name: str) -> str:
    return traced(repo, name, f"until [ -e {repo.base / 'go'} ]; do sleep 0.02; done")


def held(repo: Repo, reason: str) -> None:
    """Something waits, and says so in the queue and in its record."""

    def says() -> bool:
        queue = repo.json("worker", "queue")
        return [(one["reasonCode"], one["reason"]) for one in queue] == [("model_held", reason)]

    repo.until(says, reason)
    waiting = [r for r in repo.records("pending").values() if r["status"]["state"] == "waiting"]
    assert [record["status"]["reason"] for record in waiting] == [reason]


def start(repo: Repo, name: str) -> subprocess.Popen[str]:
    return repo.start("workflow", "run", name, "--server", repo.url)


def served(repo: Repo, *arguments: str) -> tuple[Proc, Proc]:
    """A server and a worker with eight slots."""
    server = repo.serve(*arguments)
    return server, repo.worker("w1", "--label", "pool=worker", "--concurrency", "8")


def test_two_runs_on_one_model_run_one_after_the_other(repo: Repo) -> None:
    model(repo, "m")
    workflow(repo, "a", [waits_for_go(repo, "a")])
    workflow(repo, "b", [traced(repo, "b")])
    served(repo)
    a = start(repo, "a")
    until(repo, "+a")
    b = start(repo, "b")
    held(repo, "model 'm' is held by a/s0 on w1")
    (demand,) = repo.json("worker", "demand")
    assert (demand["waiting"], demand["blocked"]) == (0, 1)
    assert repo.json("worker", "list")["workers"][0]["activeDispatchIds"] == [
        name for name, one in repo.records("leases").items() if one["spec"]["workflow"] == "a"
    ]
    (repo.base / "go").touch()
    assert (a.wait(30), b.wait(30)) == (0, 0)
    assert trace(repo) == ["+a", "-a", "+b", "-b"]


@pytest.mark.parametrize(("concurrency", "at_once"), [(None, 1), (0, 6), (3, 3)])
def test_the_definition_lifts_the_lock(repo: Repo, concurrency: int | None, at_once: int) -> None:
    model(repo, "m", concurrency)
    # Those that may run together wait for each other.
    together = f"until [ $(grep -c + {repo.base / 'trace'}) -ge {at_once} ]; do sleep 0.02; done"
    workflow(repo, "many", [traced(repo, f"{n}", together) for n in range(6)])
    served(repo)
    repo.swamp("workflow", "run", "many", "--server", repo.url)
    assert most_at_once(trace(repo)) == at_once


def test_steps_of_the_server_and_of_workers_share_the_lock(repo: Repo) -> None:
    model(repo, "m")
    workflow(repo, "placed", [traced(repo, f"p{n}", "sleep 0.1") for n in range(4)])
    workflow(repo, "here", [traced(repo, f"h{n}", "sleep 0.1") for n in range(4)], "version: 1")
    served(repo)
    runs = [start(repo, "placed"), start(repo, "here")]
    assert [run.wait(30) for run in runs] == [0, 0]
    assert len(trace(repo)) == 16
    assert most_at_once(trace(repo)) == 1


ENDS = {
    "cancel": "",
    "timeout": "timeout: 1",
    "a killed worker": "",
    "a killed runner": "",
    "a restart that gives leases up": "",
}


@pytest.mark.parametrize("how", ENDS)
def test_the_lock_ends_with_its_lease(repo: Repo, how: str) -> None:
    model(repo, "m")
    stuck = traced(repo, "a", f"echo $$ > {repo.base / 'pid'}; exec sleep 60")
    workflow(repo, "a", [stuck], f"labels: {{pool: worker}}\n{ENDS[how]}")
    workflow(repo, "b", [traced(repo, "b")], "labels: {pool: other}")
    server, worker = served(repo, "--grace", "2s")
    repo.worker("w2", "--label", "pool=other")
    a = start(repo, "a")
    until(repo, "+a")
    b = start(repo, "b")
    if how != "timeout":
        held(repo, "model 'm' is held by a/s0 on w1")
    if how == "cancel":
        run = next(one for one in repo.json("run", "list")["runs"] if one["workflowName"] == "a")
        repo.swamp("run", "cancel", run["runId"])
    elif how == "a killed worker":
        worker.process.kill()
    elif how == "a killed runner":
        repo.until(lambda: (repo.base / "pid").exists())
        subprocess.run(["kill", "-9", (repo.base / "pid").read_text().strip()], check=True)
    elif how == "a restart that gives leases up":
        worker.process.send_signal(signal.SIGSTOP)
        server.terminate(signal.SIGKILL)
        repo.serve("--recover-leases", "0")
    assert b.wait(30) == 0
    assert trace(repo)[-2:] == ["+b", "-b"]
    a.kill()
    a.wait()


def test_a_lease_holds_its_model_over_a_restart_of_the_server(repo: Repo) -> None:
    model(repo, "m")
    workflow(repo, "a", [waits_for_go(repo, "a")])
    workflow(repo, "b", [traced(repo, "b")], "labels: {pool: other}")
    server, worker = served(repo)
    repo.worker("w2", "--label", "pool=other")
    a = start(repo, "a")
    until(repo, "+a")
    b = start(repo, "b")
    held(repo, "model 'm' is held by a/s0 on w1")
    server.terminate(signal.SIGKILL)
    repo.serve()
    worker.lines.kind("enrolled", 2)
    held(repo, "model 'm' is held by a/s0 on w1")
    (repo.base / "go").touch()
    assert (a.wait(30), b.wait(30)) == (0, 0)
    assert trace(repo) == ["+a", "-a", "+b", "-b"]


def test_without_a_server_steps_on_one_model_are_serial_too(repo: Repo) -> None:
    model(repo, "m")
    workflow(repo, "here", [traced(repo, f"h{n}", "sleep 0.1") for n in range(3)], "version: 1")
    repo.swamp("workflow", "run", "here")
    assert most_at_once(trace(repo)) == 1
