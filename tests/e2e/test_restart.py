"""What survives what: restarts of the server, of its clients, and a second server."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from harness import Repo, alive_with

from swamp.open_files import raise_limit


def _counting(repo: Repo, steps: int, seconds: float) -> None:
    """A fan-out whose steps leave one line each time they run."""
    ran = repo.base / "ran"
    repo.write(
        "workflows/count.yaml",
        "name: count\nlabels: {pool: worker}\njobs:\n  - name: job\n    steps:\n"
        "      - name: step\n"
        f"        forEach: {{item: n, in: '${{{{ inputs.n }}}}'}}\n"
        "        task: {type: model_method, modelType: command/shell, modelName: 'm-${{ self.n }}',"
        " methodName: execute, inputs: {run: "
        f"'echo ${{{{ self.n }}}} >> {ran}; echo out-${{{{ self.n }}}}; sleep {seconds}'}}}}\n"
        f"inputs: {{n: {{type: array, default: {list(range(steps))}}}}}\n",
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_restart_of_the_server_costs_no_step(repo: Repo, how: signal.Signals) -> None:
    _counting(repo, 12, 0.5)
    server = repo.serve()
    worker = repo.worker("w1", "--label", "pool=worker", "--concurrency", "4")
    run = repo.start("workflow", "run", "count", "--server", repo.url, "--json")
    worker.lines.kind("dispatch_finished", 2)
    began = time.monotonic()
    server.terminate(how)
    # Within 5 s on a disk that others leave alone; here they do not.
    assert time.monotonic() - began < 20
    again = repo.serve()
    swept = [event for event in again.lines.events if event.get("kind") == "boot_sweep"]
    assert swept and swept[0]["counts"]["recovering"] >= 1
    out, _ = run.communicate(timeout=60)
    view = json.loads(out[out.index("{\n") :])
    assert view["status"] == "succeeded"
    assert view["counts"]["succeeded"] == 12
    ran = sorted(int(line) for line in (repo.base / "ran").read_text().split())
    assert ran == list(range(12)), "each step ran exactly once"
    events = _events(repo, view["id"])
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    texts = sorted(e["text"] for e in events if e["kind"] == "output")
    assert texts == sorted(f"out-{number}\n" for number in range(12))
    ends = [e["step"] for e in events if e["kind"] == "step_completed"]
    assert len(ends) == len(set(ends)) == 12


class Silent:
    """Sockets of strangers: each is upgraded and says nothing, and is opened again when closed."""

    SAYS = (
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )

    def __init__(self, port: int, many: int) -> None:
        raise_limit(2 * many)
        self._port, self._many = port, many
        self._over, self.full = threading.Event(), threading.Event()
        """`full`: as many as there are have been upgraded."""
        self._open, self._upgraded = selectors.DefaultSelector(), 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Silent:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        for _ in range(self._many):
            self._dial()
        while not self._over.is_set():
            for key, _ in self._open.select(0.1):
                client = key.fileobj
                assert isinstance(client, socket.socket)
                said = _said(client)
                self._upgraded += said.startswith(b"HTTP/1.1 101 ")
                if not said or b"too_many_at_once" in said:
                    self._open.unregister(client)
                    client.close()
                    self._dial()
            if self._upgraded >= self._many:
                self.full.set()
        for key in list(self._open.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()

    def _dial(self) -> None:
        client = socket.create_connection(("127.0.0.1", self._port))
        client.sendall(self.SAYS)
        self._open.register(client, selectors.EVENT_READ)


def _said(client: socket.socket) -> bytes:
    try:
        return client.recv(1 << 16)
    except ConnectionError:
        return b""


def test_silent_sockets_of_strangers_keep_no_worker_from_coming_back(repo: Repo) -> None:
    """Regression: 1,050 of them had its lease given up, and its step ran twice."""
    _counting(repo, 1, 10)
    server = repo.serve("--grace", "6s")
    worker = repo.worker("w1", "--label", "pool=worker")
    run = repo.start("workflow", "run", "count", "--server", repo.url, "--json")
    worker.lines.kind("dispatch_started")
    worker.process.send_signal(signal.SIGSTOP)
    server.terminate()
    repo.serve("--grace", "6s")
    with Silent(repo.port, 1_050) as silent:
        assert silent.full.wait(30)
        worker.process.send_signal(signal.SIGCONT)
        worker.lines.kind("enrolled", 2)
        assert len(worker.lines.kinds("connecting")) <= 4
        out, _ = run.communicate(timeout=60)
    view = json.loads(out[out.index("{\n") :])
    assert view["status"] == "succeeded"
    assert (repo.base / "ran").read_text() == "0\n", "the step ran once"


def _events(repo: Repo, run: str, after: int = 0) -> list[dict[str, object]]:
    done = subprocess.run(
        ["curl", "-sf", f"{repo.url}/api/v1/runs/{run}/events?after={after}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line]


def test_a_worker_that_is_killed_loses_its_runner_and_its_step_runs_elsewhere(repo: Repo) -> None:
    go = repo.base / "go"
    repo.shell_workflow("long", {"step": f"until [ -e {go} ]; do sleep 0.05; done; echo over"})
    repo.serve("--grace", "2s")
    first = repo.worker("w1", "--label", "pool=worker")
    run = repo.start("workflow", "run", "long", "--server", repo.url, "--json")
    lost = first.lines.kind("dispatch_started")["dispatchId"]
    second = repo.worker("w2", "--label", "pool=worker")
    run_id = repo.json("run", "list")["runs"][0]["runId"]
    first.process.kill()
    first.process.wait()
    second.lines.kind("dispatch_started")
    assert not alive_with(f"SWAMP_DISPATCH={lost}")
    go.touch()
    out, _ = run.communicate(timeout=60)
    view = json.loads(out[out.index("{\n") :])
    assert view["status"] == "succeeded"
    step = view["jobs"][0]["steps"][0]
    assert (step["worker"], step["episodes"]) == ("w2", 2)
    assert not alive_with(f"SWAMP_DISPATCH={run_id}")


def test_a_worker_restarted_with_its_cache_takes_its_step_up_again_at_once(repo: Repo) -> None:
    repo.shell_workflow("long", {"step": repo.long_at_first})
    repo.serve("--grace", "50s")
    first = repo.worker("w1", "--label", "pool=worker")
    run = repo.start("workflow", "run", "long", "--server", repo.url, "--json")
    repo.until_begun()
    first.process.kill()
    first.process.wait()
    again = repo.worker("w1", "--label", "pool=worker")
    again.lines.kind("dispatch_started")
    out, _ = run.communicate(timeout=30)
    view = json.loads(out[out.index("{\n") :])
    assert view["status"] == "succeeded"
    leases = sorted(record["status"]["state"] for record in repo.records("leases").values())
    assert leases == ["completed", "expired"]


def test_what_happened_to_files_while_the_server_was_stopped_is_told_truly_and_in_few_lines(
    repo: Repo,
) -> None:
    """Regression: a removed file "was changed", in a line for each of them."""
    repo.shell_workflow("w", {f"step{number}": "true" for number in range(6)})
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    repo.swamp("workflow", "run", "w")
    repo.until(
        lambda: all(
            one["status"]["state"] == "completed" for one in repo.records("leases").values()
        ),
        "the leases",
    )
    # What a killed one had in its journal is written again without a word.
    server.terminate()
    folder = repo.path / "datastore" / "observed"
    shutil.rmtree(folder / "leases")
    (run,) = (folder / "runs").glob("*.yaml")
    run.write_text("mine")
    again = repo.serve()
    said = [one["message"] for one in again.lines.events if one.get("kind") == "warning"]
    asked = f"what is asked of it goes into datastore/desired/runs/{run.name}"
    changed = f"datastore/observed/runs/{run.name} was changed while the server was stopped"
    removed = "6 files in observed/ were removed while the server was stopped and are there again"
    assert [one.partition("; one of them")[0] for one in said] == [
        f"{changed} and is put back: {asked}",
        removed,
    ]
    assert run.read_text() != "mine"
    assert len(repo.records("leases")) == 6


def test_a_second_server_is_refused_and_names_the_holder(repo: Repo) -> None:
    server = repo.serve()
    refused = repo.swamp("serve", "--port", "0", code=1)
    assert str(server.process.pid) in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_run_survives_its_client_and_is_watched_again_from_any_event(repo: Repo) -> None:
    go = repo.base / "go"
    repo.shell_workflow("wait", {"step": f"echo one; until [ -e {go} ]; do sleep 0.05; done"})
    repo.serve()
    worker = repo.worker("w1", "--label", "pool=worker")
    client = repo.start("workflow", "run", "wait", "--server", repo.url)
    worker.lines.kind("dispatch_started")
    assert client.stdout is not None
    assert "Starting workflow wait" in client.stdout.readline(), "from now on it knows its run"
    client.send_signal(signal.SIGINT)
    said, _ = client.communicate(timeout=20)
    run_id = repo.json("run", "list")["runs"][0]["runId"]
    assert client.returncode == 130
    assert f"swamp run watch {run_id}" in said
    watching = repo.start("run", "watch", run_id)
    go.touch()
    seen, _ = watching.communicate(timeout=30)
    assert watching.returncode == 0
    assert "Starting workflow wait" in seen and "Completed workflow wait" in seen
    everything = _events(repo, run_id)
    for after in (0, 1, len(everything) - 1, len(everything)):
        assert _events(repo, run_id, after) == everything[after:]


def _guards(server: int) -> list[int]:
    """The guard of a process; its other children are steps."""
    found = [guard for guard in alive_with("swamp.worker.guard") if _parent(guard) == server]
    assert len(found) == 1
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "its guard killed, too"])
def test_steps_on_the_server_itself_end_with_it_and_say_so(repo: Repo, guarded: bool) -> None:
    repo.write(
        "workflows/here.yaml",
        "name: here\njobs:\n  - name: job\n    steps:\n      - name: step\n"
        "        task: {type: model_method, modelType: command/shell, modelName: m,"
        " methodName: execute, inputs: {run: 'sleep 60'}}\n",
    )
    server = repo.serve()
    run = repo.start("workflow", "run", "here", "--server", repo.url, "--json")
    repo.until(lambda: bool(repo.json("run", "list")["runs"]), "the run")
    run_id = repo.json("run", "list")["runs"][0]["runId"]
    repo.until(lambda: bool(alive_with(f"SWAMP_DISPATCH={run_id}")), "the step's process")
    guards = [] if guarded else _guards(server.process.pid)
    for guard in guards:
        os.kill(guard, signal.SIGSTOP)
    server.terminate(signal.SIGKILL)
    for guard in guards:
        os.kill(guard, signal.SIGKILL)
        assert alive_with(f"SWAMP_DISPATCH={run_id}"), "nobody is left to end it"
    repo.serve()
    out, _ = run.communicate(timeout=30)
    view = json.loads(out[out.index("{\n") :])
    assert view["status"] == "failed"
    assert "orchestrator restart" in view["jobs"][0]["steps"][0]["error"]
    repo.until(lambda: not alive_with(f"SWAMP_DISPATCH={run_id}"), "the end of its process")


@pytest.mark.parametrize("attempt", range(3))
def test_a_worker_and_its_server_told_to_stop_at_once_both_end(repo: Repo, attempt: int) -> None:
    """Regression: the lost socket's error took the place of the worker's own end."""
    server = repo.serve()
    worker = repo.worker("w1", "--label", "pool=worker")
    worker.process.terminate()
    server.process.terminate()
    assert (worker.wait(), server.wait()) == (0, 0)


def test_the_process_list_never_shows_a_token(repo: Repo) -> None:
    repo.serve()
    worker = repo.worker("w1")
    secret = (repo.base / "w1.token").read_text().partition(".")[2]
    shown = (Path("/proc") / str(worker.process.pid) / "cmdline").read_bytes()
    assert b"--token" in shown
    assert secret.encode() not in shown


def test_a_restart_with_all_slots_of_forty_steps_under_way(repo: Repo) -> None:
    _counting(repo, 40, 0.5)
    server = repo.serve()
    worker = repo.worker("w1", "--label", "pool=worker", "--concurrency", "8")
    run = repo.start("workflow", "run", "count", "--server", repo.url, "--json")
    worker.lines.kind("dispatch_finished", 4)
    server.terminate(signal.SIGKILL)
    # The outage itself: a second without anybody on the port.
    time.sleep(1)
    repo.serve()
    out, _ = run.communicate(timeout=60)
    view = json.loads(out[out.index("{\n") :])
    assert (view["status"], view["counts"]["succeeded"]) == ("succeeded", 40)
    ran = sorted(int(line) for line in (repo.base / "ran").read_text().split())
    assert ran == list(range(40)), "each step ran exactly once"
    events = _events(repo, view["id"])
    texts = sorted(e["text"] for e in events if e["kind"] == "output")
    assert texts == sorted(f"out-{number}\n" for number in range(40))


def test_a_stop_of_the_server_lets_no_grace_window_run_out(repo: Repo) -> None:
    """Regression: workers were cut first, and their grace ended while the server was stopping."""
    ran = repo.base / "ran"
    repo.shell_workflow("once", {"step": f"echo x >> {ran}; sleep 2"})
    server = repo.serve("--grace", "5s")
    worker = repo.worker("w1", "--label", "pool=worker")
    run = repo.start("workflow", "run", "once")
    worker.lines.kind("dispatch_started")
    server.terminate()
    # The worker says it started a moment before the server hears of it and makes the lease active.
    held = [r["status"]["state"] for r in repo.records("leases").values()]
    assert held in (["bound"], ["active"]), held
    assert [r["status"]["state"] for r in repo.records("workers").values()] == ["disconnected"]
    repo.serve("--grace", "30s")
    assert run.wait(30) == 0
    assert ran.read_text() == "x\n"


def test_a_worker_forced_to_stop_hands_its_step_back(repo: Repo) -> None:
    """Regression: being polite was worse than `kill -9`, the run failed."""
    repo.shell_workflow("long", {"step": repo.long_at_first})
    repo.serve()
    first = repo.worker("w1", "--label", "pool=worker")
    run = repo.start("workflow", "run", "long", "--json")
    repo.until_begun()
    second = repo.worker("w2", "--label", "pool=worker")
    first.process.send_signal(signal.SIGINT)
    first.lines.kind("draining")
    first.process.send_signal(signal.SIGINT)
    assert first.wait() not in (0, None)
    second.lines.kind("dispatch_started")
    out, _ = run.communicate(timeout=30)
    step = json.loads(out[out.index("{\n") :])["jobs"][0]["steps"][0]
    assert (step["status"], step["worker"]) == ("succeeded", "w2")
    ended = [r["status"] for r in repo.records("leases").values()]
    assert {s["reason"] for s in ended if s["state"] == "expired"} == {
        "worker lost: it was stopped while the step ran"
    }


def test_sigterm_means_what_ctrl_c_does(repo: Repo) -> None:
    """Regression: what a CI system sends ended the client alone, whatever that was told to do."""
    repo.shell_workflow("far", {"step": "true"})
    repo.serve()
    for choice, code, said in (
        ("cancel", 1, "Cancelling the run"),
        ("detach", 143, "The run goes on"),
        ("ask", 143, "The run goes on"),
    ):
        client = repo.start("workflow", "run", "far", "--on-interrupt", choice)
        assert client.stdout is not None
        assert "Starting workflow far" in client.stdout.readline()
        client.send_signal(signal.SIGTERM)
        out, _ = client.communicate(timeout=30)
        assert client.returncode == code, out
        assert said in out
        run = repo.json("run", "list")["runs"][0]
        assert (run["status"] == "cancelled") == (choice == "cancel")
