"""SIGHUP stops everything as SIGTERM does, unless it was ignored from the start (`nohup`)."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from harness import SWAMP, Repo, alive_with


def local_step(repo: Repo, run: str) -> None:
    """The workflow `w`, which the process that starts it runs itself."""
    repo.write(
        "workflows/w.yaml",
        "name: w\njobs: [{name: j, steps: [{name: s, task: {type: model_method,"
        " modelType: command/shell, modelName: m, methodName: execute,"
        f" inputs: {{run: '{run}'}}}}}}]}}]\n",
    )


def is_running(repo: Repo) -> bool:
    folder = repo.path / "datastore" / "observed" / "steps"
    return folder.is_dir() and any("state: running" in one.read_text() for one in texts(folder))


def texts(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.yaml") if path.exists()]


def status(repo: Repo) -> str:
    return str(repo.json("run", "list")["runs"][0]["status"])


def test_a_hang_up_stops_a_server_and_a_worker_in_order(repo: Repo) -> None:
    server = repo.serve()
    worker = repo.worker()
    assert worker.terminate(signal.SIGHUP) == 0
    assert worker.lines.kind("stopped")["reason"] == "signal"
    assert server.terminate(signal.SIGHUP) == 0
    assert server.lines.events[-1] == {"status": "stopped"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_without_a_server_is_cancelled_and_the_exit_code_says_by_what(
    repo: Repo, number: signal.Signals
) -> None:
    local_step(repo, f"MARK={repo.base} sleep 60")
    running = repo.start("workflow", "run", "w")
    repo.until(lambda: is_running(repo), "the step")
    running.send_signal(number)
    out, _ = running.communicate(timeout=30)
    assert running.returncode == 128 + number, out
    assert "Cancelling the run" in out
    assert status(repo) == "cancelled"
    assert alive_with(f"MARK={repo.base}") == []


def test_a_hang_up_leaves_the_run_of_a_server(repo: Repo) -> None:
    repo.shell_workflow("far", {"step": "true"})
    repo.serve()
    client = repo.start("workflow", "run", "far")
    assert client.stdout is not None
    assert "Starting workflow far" in client.stdout.readline()
    client.send_signal(signal.SIGHUP)
    out, _ = client.communicate(timeout=30)
    assert (client.returncode, "The run goes on" in out) == (129, True), out
    watcher = repo.start("run", "watch", repo.json("run", "list")["runs"][0]["runId"])
    assert watcher.stdout is not None
    watcher.stdout.readline()
    watcher.send_signal(signal.SIGHUP)
    out, _ = watcher.communicate(timeout=30)
    assert (watcher.returncode, "The run goes on" in out) == (129, True), out


def test_a_run_of_a_server_goes_on_when_nobody_reads_of_it_and_that_is_said(repo: Repo) -> None:
    """As with `swamp workflow run w | head -1`."""
    local_step(repo, "while :; do echo on; sleep 0.1; done")
    repo.serve()
    run = subprocess.run(
        ["bash", "-c", f"{shlex.join(SWAMP)} workflow run w | head -1; exit ${{PIPESTATUS[0]}}"],
        cwd=repo.path, env=repo.env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    (view,) = repo.json("run", "list")["runs"]
    assert (run.returncode, view["status"]) == (1, "running")
    said = f"The run goes on. Watch it: swamp run watch {view['runId']}"
    assert run.stderr.splitlines() == [f"The output cannot be written any more. {said}"]
    repo.swamp("run", "cancel", view["runId"])


def test_a_worker_that_is_hung_up_on_twice_finishes_what_runs(repo: Repo) -> None:
    """A shell whose terminal is closed passes that on, and the kernel does so once more."""
    speak, go = repo.base / "speak", repo.base / "go"
    waits = "until [ -e {} ]; do sleep 0.02; done"
    step = f"{waits.format(speak)}; echo alive; {waits.format(go)}"
    repo.shell_workflow("far", {"step": step}, "queueTimeout: 1\n")
    repo.serve()
    worker = repo.worker("w1", "--label", "pool=worker")
    client = repo.start("workflow", "run", "far")
    worker.lines.kind("dispatch_started")
    worker.process.send_signal(signal.SIGHUP)
    worker.lines.kind("draining")
    worker.process.send_signal(signal.SIGHUP)
    speak.touch()
    assert client.stdout is not None
    # What the worker sends now, it sends after the signal.
    assert any("alive" in line for line in client.stdout)
    go.touch()
    out, _ = client.communicate(timeout=30)
    assert client.returncode == 0, out
    assert worker.wait() == 0


def test_a_run_that_is_hung_up_on_twice_ends_in_order(repo: Repo) -> None:
    local_step(repo, 'trap "sleep 3; exit 3" TERM; while :; do sleep 0.1; done')
    running = repo.start("workflow", "run", "w")
    repo.until(lambda: is_running(repo), "the step")
    assert running.stdout is not None
    running.send_signal(signal.SIGHUP)
    while "Cancelling the run" not in running.stdout.readline():
        pass
    running.send_signal(signal.SIGHUP)
    out, _ = running.communicate(timeout=30)
    assert (running.returncode, status(repo)) == (129, "cancelled"), out
    assert "Stopped before the run had ended" not in out


def test_a_run_whose_output_nobody_reads_any_more_ends_in_order(repo: Repo) -> None:
    """As with `swamp workflow run w 2>&1 | head -1`."""
    local_step(repo, f"export MARK={repo.base}; while :; do echo on; sleep 0.1; done")
    running = repo.start("workflow", "run", "w")
    assert running.stdout is not None
    running.stdout.readline()
    running.stdout.close()
    assert running.wait(30) == 1
    assert status(repo) == "cancelled"
    assert alive_with(f"MARK={repo.base}") == []


def test_an_interrupt_that_ends_who_reads_as_well_cancels_the_run(repo: Repo) -> None:
    """As with `swamp workflow run w 2>&1 | tee log`: Ctrl-C is for both."""
    bye = 'trap "echo bye; exit 3" TERM'
    local_step(repo, f"export MARK={repo.base}; {bye}; sleep 60 & wait")
    running = repo.start("workflow", "run", "w")
    repo.until(lambda: is_running(repo), "the step")
    assert running.stdout is not None
    running.stdout.close()
    running.send_signal(signal.SIGINT)
    assert running.wait(30) == 130
    assert status(repo) == "cancelled"
    assert alive_with(f"MARK={repo.base}") == []


def test_a_terminal_that_is_closed_cancels_the_run(repo: Repo) -> None:
    """Nobody can be told: what is printed then must not keep the run from its end."""
    local_step(repo, f"MARK={repo.base} sleep 60")
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [*SWAMP, "workflow", "run", "w"],
        cwd=repo.path,
        env=repo.env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    repo.until(lambda: is_running(repo), "the step")
    os.close(ours)
    assert running.wait(30) == 129
    assert status(repo) == "cancelled"


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_under_nohup_it_stays_ignored(repo: Repo) -> None:
    go = repo.base / "go"
    local_step(repo, f"until [ -e {go} ]; do sleep 0.02; done")
    running = subprocess.Popen(
        ["nohup", *SWAMP, "workflow", "run", "w"],
        cwd=repo.path,
        env=repo.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    repo.until(lambda: is_running(repo), "the step")
    running.send_signal(signal.SIGHUP)
    go.touch()
    out, _ = running.communicate(timeout=30)
    assert running.returncode == 0, out
    server = repo._proc("serve", "--json", "--port", str(repo.port), before=("nohup",))
    server.lines.wait(lambda event: event.get("status") == "listening")
    server.process.send_signal(signal.SIGHUP)
    assert repo.json("worker", "list")["workers"] == []
    assert server.terminate() == 0
