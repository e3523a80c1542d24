"""Slots (seed #3293 and its siblings): a running dispatch counts once, a freed slot is used."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import Repo, alive_with

SEED_SCRIPT = Path(__file__).parent / "seed_3293.sh"


@pytest.mark.parametrize("options", ["", "--queue-timeout 5s"])
def test_the_seeds_script_runs_as_it_stands(tmp_path: Path, options: str) -> None:
    """`seed_3293.sh` is the report's own script, unchanged but for the option of its last line."""
    script = SEED_SCRIPT.read_text().replace(
        "swamp serve --no-schedule", f"swamp serve --no-schedule {options}"
    )
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    launcher = bin_folder / "swamp"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m swamp "$@"\n')
    launcher.chmod(0o755)
    env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    assert shutil.which("curl"), "the seed's script needs curl"
    command = ["bash", "-c", script + '\nwait; cat "$W/run1.out"; cat "$W/worker.log"']
    with subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            out, _ = shell.communicate(timeout=60)
        finally:
            # Whatever it started ends with it, also after a failure.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    assert "run2 exit=0" in out, out
    assert "queued" not in out
    order = [line for line in out.splitlines() if line.startswith('"kind":"dispatch_')]
    assert order == [
        '"kind":"dispatch_started"',
        '"kind":"dispatch_started"',
        '"kind":"dispatch_finished"',
        '"kind":"dispatch_finished"',
    ]
    assert "t1    busy    1/2    pool=worker" in out
    assert out.count("done long-step in 6.") == 2
    assert out.count("succeeded in 6.") == 2


def test_the_second_run_fails_where_the_only_slot_stays_taken(repo: Repo) -> None:
    repo.shell_workflow("long", {"long-step": "sleep 20"})
    repo.shell_workflow("late", {"long-step": "true"})
    repo.serve("--queue-timeout", "1s")
    worker = repo.worker("w1", "--label", "pool=worker")
    first = repo.start("workflow", "run", "long", "--server", repo.url)
    worker.lines.kind("dispatch_started")
    done = repo.swamp("workflow", "run", "late", "--server", repo.url, code=1)
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "job │ queued, waiting for worker matching labels pool=worker" in lines
    assert any(line.startswith("job │ failed long-step in 1.") for line in lines)
    said = "system │ Timed out waiting for a worker matching labels pool=worker to become available"
    assert any(line.startswith(said) for line in lines)
    assert worker.lines.kinds("dispatch_") == ["dispatch_started"]
    first.terminate()
    first.wait()


@pytest.mark.parametrize("capacity", [1, 2, 3, 8, 16])
def test_as_many_steps_overlap_as_there_are_slots(repo: Repo, capacity: int) -> None:
    """Each step waits until all slots are taken, so fewer slots would never end."""
    meet = repo.base / "meet"
    meet.mkdir()
    command = f"touch {meet}/$$; until [ $(ls {meet} | wc -l) -ge {capacity} ]; do sleep 0.02; done"
    steps = {f"s{number:02}": command for number in range(capacity)}
    repo.shell_workflow("meet", {**steps, "zz-last": f"ls {meet} | wc -l"})
    repo.serve()
    worker = repo.worker("w1", "--label", "pool=worker", "--concurrency", str(capacity))
    view = repo.json("workflow", "run", "meet", "--server", repo.url)
    assert view["status"] == "succeeded"
    events = worker.lines.kinds("dispatch_")
    assert events[:capacity] == ["dispatch_started"] * capacity
    assert events[capacity] == "dispatch_finished"
    assert events[capacity:].count("dispatch_started") == 1
    last = next(step for step in view["jobs"][0]["steps"] if step["name"] == "zz-last")
    assert last["waitedS"] > 0


ENDS = {
    "exits-7": ("exit 7", "Command exited with code 7"),
    "killed": ("kill -9 $$", "Command was killed by signal 9 (SIGKILL)"),
    "not-found": ("/no/such/command", "not found"),
}


@pytest.mark.parametrize("how", sorted(ENDS))
def test_a_step_that_fails_frees_its_slot(repo: Repo, how: str) -> None:
    command, error = ENDS[how]
    repo.shell_workflow("bad", {"step": command})
    repo.shell_workflow("good", {"step": "true"})
    repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    done = repo.json("workflow", "run", "bad", "--server", repo.url, code=1)
    step = done["jobs"][0]["steps"][0]
    assert step["status"] == "failed"
    assert error.lower() in step["error"].lower()
    assert repo.json("worker", "list")["workers"][0]["activeDispatchIds"] == []
    repo.swamp("workflow", "run", "good", "--server", repo.url)


def test_a_step_that_times_out_frees_its_slot(repo: Repo) -> None:
    repo.write(
        "workflows/slow.yaml",
        "name: slow\nlabels: {pool: worker}\njobs:\n  - name: job\n    steps:\n"
        "      - name: step\n        timeout: 1\n"
        "        task: {type: model_method, modelType: command/shell, modelName: m,"
        " methodName: execute, inputs: {run: sleep 60}}\n",
    )
    repo.shell_workflow("good", {"step": "true"})
    repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    done = repo.json("workflow", "run", "slow", "--server", repo.url, code=1)
    assert "timed out" in done["jobs"][0]["steps"][0]["error"]
    repo.swamp("workflow", "run", "good", "--server", repo.url)


def test_a_cancelled_step_frees_its_slot_and_leaves_no_process(repo: Repo) -> None:
    repo.shell_workflow("long", {"running": "sleep 61 & sleep 60", "waiting": "true"})
    repo.shell_workflow("good", {"step": "true"})
    repo.serve()
    worker = repo.worker("w1", "--label", "pool=worker")
    run = repo.start("workflow", "run", "long", "--server", repo.url, "--json")
    worker.lines.kind("dispatch_started")
    run_id = repo.json("run", "list")["runs"][0]["runId"]
    assert alive_with(f"SWAMP_DISPATCH={run_id}")
    repo.swamp("run", "cancel", run_id, "--reason", "changed my mind")
    out, _ = run.communicate(timeout=30)
    assert run.returncode == 1
    view = json.loads(out[out.index("{") :])
    assert view["status"] == "cancelled"
    assert [step["status"] for step in view["jobs"][0]["steps"]] == ["cancelled", "cancelled"]
    assert not alive_with(f"SWAMP_DISPATCH={run_id}")
    repo.swamp("workflow", "run", "good", "--server", repo.url)
    assert worker.terminate() == 0


def test_a_drained_worker_finishes_its_step_and_takes_no_other(repo: Repo) -> None:
    gate = repo.base / "gate"
    repo.shell_workflow("two", {"a": f"until [ -e {gate} ]; do sleep 0.1; done", "b": "true"})
    repo.serve("--queue-timeout", "3s")
    worker = repo.worker("w1", "--label", "pool=worker")
    run = repo.start("workflow", "run", "two", "--server", repo.url, "--json")
    worker.lines.kind("dispatch_started")
    worker.process.send_signal(signal.SIGTERM)
    worker.lines.kind("draining")
    gate.touch()
    assert worker.wait() == 0
    assert worker.lines.kinds()[-3:] == ["draining", "drain_complete", "stopped"] or (
        "drain_complete" in worker.lines.kinds()
    )
    out, _ = run.communicate(timeout=30)
    view = json.loads(out[out.index("{") :])
    assert {step["name"]: step["status"] for step in view["jobs"][0]["steps"]} == {
        "a": "succeeded",
        "b": "failed",
    }
