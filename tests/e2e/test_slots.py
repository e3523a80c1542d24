"""A worker's slots: eight runners side by side, none of which sees or hurts another."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from harness import Repo, alive_with

HERE = ("--label", "pool=worker")


def _steps(repo: Repo, name: str, steps: dict[str, str], env: dict[str, str] | None = None) -> None:
    """A workflow whose steps may all run at once, each with `WHO` and `env` of its own."""
    listed = [
        {
            "name": step,
            "task": {
                "type": "model_method",
                "modelType": "command/shell",
                "modelName": f"{name}-{step}",
                "methodName": "execute",
                "inputs": {"run": run, "env": {"WHO": step, **(env or {})}},
            },
        }
        for step, run in steps.items()
    ]
    jobs = [{"name": "job", "steps": listed}]
    document = {"name": name, "labels": {"pool": "worker"}, "jobs": jobs}
    repo.write(f"workflows/{name}.yaml", json.dumps(document))


def _start(repo: Repo, name: str) -> Any:
    return repo.start("workflow", "run", name, "--server", repo.url, "--json")


def _steps_of(run: Any) -> dict[str, dict[str, Any]]:
    out, _ = run.communicate(timeout=60)
    view = json.loads(out[out.index("{\n") :])
    return {step["name"]: step for step in view["jobs"][0]["steps"]}


def _environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def _load(repo: Repo, name: str) -> str:
    """What `worker list` shows of a worker."""
    lines = repo.swamp("worker", "list").stdout.splitlines()
    return next(line for line in lines if line.split()[:1] == [name])


def test_eight_at_once_and_only_the_killed_one_fails(repo: Repo) -> None:
    pids = repo.base / "pids"
    pids.mkdir()
    go = repo.base / "go"
    hold = (
        f"echo $$ > {pids}/$WHO.tmp; mv {pids}/$WHO.tmp {pids}/$WHO;"
        f' until [ -e {go} ]; do sleep 0.05; done; echo "$WHO $SHARED"'
    )
    _steps(repo, "three", {f"a{n}": hold for n in range(3)}, {"SHARED": "three"})
    _steps(repo, "five", {f"b{n}": hold for n in range(5)}, {"SHARED": "five"})
    _steps(repo, "late", {"late": hold}, {"SHARED": "late"})
    repo.serve()
    repo.env["SWAMP_WORKER_CONCURRENCY"] = "8"
    worker = repo.worker("w1", *HERE)
    held = lambda: sorted(path.name for path in pids.iterdir() if not path.suffix)  # noqa: E731

    runs = [_start(repo, "three")]
    repo.until(lambda: len(held()) == 3, "three")
    assert "busy" in _load(repo, "w1") and "3/8" in _load(repo, "w1")
    runs.append(_start(repo, "five"))
    repo.until(lambda: len(held()) == 8, "five more")
    assert "8/8" in _load(repo, "w1")
    runs.append(_start(repo, "late"))
    repo.until(lambda: repo.json("worker", "queue") != [], "the ninth to wait")

    secret = (repo.base / "w1.token").read_text().partition(".")[2].encode()
    for path in pids.iterdir():
        environment = _environment(int(path.read_text()))
        assert f"WHO={path.name}".encode() in environment.split(b"\0")
        assert secret not in environment
        assert b"SWAMP_WORKER_" not in environment

    os.killpg(int((pids / "b3").read_text()), signal.SIGKILL)
    repo.until(lambda: "late" in held(), "the freed slot to be used while seven others run")
    assert worker.lines.kinds("dispatch_finished") == ["dispatch_finished"]
    worker.process.send_signal(signal.SIGTERM)
    worker.lines.kind("draining")
    repo.until(lambda: "draining" in _load(repo, "w1"), "the drain to show")
    assert "8/8" in _load(repo, "w1")
    go.touch()
    assert worker.wait() == 0
    three, five, late = map(_steps_of, runs)
    killed = five.pop("b3")
    assert (killed["status"], killed["signal"]) == ("failed", 9)
    assert "signal 9" in killed["error"]
    for steps, shared in ((three, "three"), (five, "five"), (late, "late")):
        for name, step in steps.items():
            assert (step["status"], step["stdout"]) == ("succeeded", f"{name} {shared}\n")


def test_a_fan_out_overlaps_in_time(repo: Repo) -> None:
    repo.write(
        "workflows/fan.yaml",
        "name: fan\nlabels: {pool: worker}\njobs:\n  - name: job\n    steps:\n"
        "      - name: step\n        forEach: {item: n, in: '${{ inputs.n }}'}\n"
        "        task: {type: model_method, modelType: command/shell, modelName: 'm-${{ self.n }}',"
        " methodName: execute, inputs: {run: 'date +%s.%N; sleep 0.7; date +%s.%N'}}\n"
        "inputs: {n: {type: array, default: [1, 2, 3, 4]}}\n",
    )
    repo.serve()
    repo.worker("w1", *HERE, "--concurrency", "4")
    steps = _steps_of(_start(repo, "fan")).values()
    times = [tuple(map(float, step["stdout"].split())) for step in steps]
    assert len(times) == 4
    assert max(start for start, _ in times) < min(end for _, end in times)


def test_the_idle_timeout_waits_for_the_last_runner(repo: Repo) -> None:
    _steps(repo, "two", {"short": "true", "long": "sleep 1.5"})
    repo.serve()
    run = _start(repo, "two")
    repo.until(lambda: bool(repo.json("run", "list")["runs"]), "the run")
    worker = repo.worker("w1", *HERE, "--concurrency", "auto", "--idle-timeout", "1s")
    repo.until(lambda: "w1" in repo.records("workers"), "the worker's record")
    assert repo.records("workers")["w1"]["status"]["capacity"] == os.cpu_count()
    steps = _steps_of(run)
    assert {step["status"] for step in steps.values()} == {"succeeded"}
    assert worker.wait() == 0
    kinds = worker.lines.kinds()
    assert kinds.index("draining") > max(
        number for number, kind in enumerate(kinds) if kind == "dispatch_finished"
    )
    assert worker.lines.kind("draining")["reason"] == "idle-timeout"


def test_no_process_of_an_ended_step_survives(repo: Repo) -> None:
    stray = "setsid sh -c 'setsid sleep 61 & sleep 62' > /dev/null 2>&1 &"
    _steps(repo, "over", {"over": f"{stray} sleep 0.2; echo said"})
    _steps(repo, "cancelled", {"cancelled": f"{stray} sleep 63"})
    repo.serve()
    worker = repo.worker("w1", *HERE)
    over = _steps_of(_start(repo, "over"))["over"]
    assert (over["status"], over["stdout"]) == ("succeeded", "said\n")
    newest = lambda: str(repo.json("run", "list")["runs"][0]["runId"])  # noqa: E731
    assert alive_with(f"SWAMP_DISPATCH={newest()}") == []
    run = _start(repo, "cancelled")
    worker.lines.kind("dispatch_started", 2)
    run_id = newest()
    repo.until(lambda: len(alive_with(f"SWAMP_DISPATCH={run_id}")) >= 4, "its processes")
    repo.swamp("run", "cancel", run_id)
    assert _steps_of(run)["cancelled"]["status"] == "cancelled"
    assert alive_with(f"SWAMP_DISPATCH={run_id}") == []
