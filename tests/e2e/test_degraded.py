"""A full disk and a read-only repository: it says so, nothing is lost, and it goes on by itself."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from harness import Proc, Repo
from small_disk import fill, mounted, unmount

STEPS = 30


def asked(repo: Repo, path: str, body: Any = None) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(repo.url + path, data)
    try:
        with urllib.request.urlopen(request, timeout=8) as answer:
            return answer.status, dict(answer.headers), json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), json.load(error)


def is_degraded(repo: Repo) -> bool:
    """Whether the server answers, and says so."""
    try:
        return bool(asked(repo, "/health")[2]["status"] == "degraded")
    except OSError:
        return False


def metrics(repo: Repo) -> list[str]:
    """The lines of `/metrics`, which does not wait for the disk."""
    with urllib.request.urlopen(f"{repo.url}/metrics", timeout=8) as answer:
        return str(answer.read().decode()).splitlines()


def fan_out(repo: Repo, gate: Path, done: Path) -> None:
    """Steps that say on another disk that they have ended, the first ones once there is a gate."""
    padding = "x" * 20_000
    steps = {
        f"s{number:02}": f"until [ -e {gate} ]; do sleep 0.02; done; echo {padding};"
        f" echo {number} >> {done}"
        for number in range(STEPS)
    }
    repo.shell_workflow("fan", steps)


def with_all_slots_taken(repo: Repo, gate: Path, done: Path) -> tuple[Proc, Popen[str]]:
    """A server, and a run of `fan_out` of which eight steps are under way."""
    fan_out(repo, gate, done)
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker", "--concurrency", "8")
    run = repo.start("workflow", "run", "fan", "--json")
    repo.until(lambda: len(repo.json("worker", "list")["workers"][0]["activeDispatchIds"]) == 8)
    return server, run


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def test_a_full_disk_holds_everything_up_and_loses_nothing(small: Repo) -> None:
    repo, gate, done = small, small.base / "gate", small.base / "done"
    fan_out(repo, gate, done)
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker", "--concurrency", "8")
    late = repo.token("w2")
    run = repo.start("workflow", "run", "fan", "--json")
    repo.until(lambda: len(repo.json("worker", "list")["workers"][0]["activeDispatchIds"]) == 8)

    ballast = fill(repo)
    gate.touch()
    repo.until(lambda: len(lines(done)) >= 8, "steps that end on the worker")
    repo.until(lambda: not asked(repo, "/")[2]["takesWork"], "the server says so")
    health = asked(repo, "/health")[2]
    assert health["status"] == "degraded"
    assert health["takesWork"] is False
    assert "swamp_degraded 1" in metrics(repo)
    status, _, refused = asked(repo, "/api/v1/runs", {"workflow": "fan"})
    assert (status, refused["code"]) == (503, "degraded")

    assert repo.swamp("worker", "token", "create", "w3", "--duration", "1h", code=1).stderr
    (repo.base / "w2.token").write_text(late)
    newcomer = repo.worker("w2", "--label", "pool=worker", wait=False)
    # The events of runs found it out; now the journal does.
    repo.until(lambda: bool(re.search("journal.* full", asked(repo, "/health")[2]["degraded"])))
    began = time.monotonic()
    status, headers, listed = asked(repo, "/api/v1/runs")
    assert time.monotonic() - began < 8, "reads answer, and do not wait for the disk (10 s)"
    assert (status, [one["status"] for one in listed["runs"]]) == (200, ["running"])
    assert "full" in headers["Swamp-Degraded"]
    note = repo.swamp("run", "list").stderr
    assert "degraded" in note

    assert "degraded" in repo.swamp("doctor", code=1).stdout
    assert run.poll() is None
    assert len(lines(done)) <= STEPS

    ballast.unlink()
    run.communicate(timeout=60)
    assert run.returncode == 0
    newcomer.lines.kind("enrolled")
    assert sorted(lines(done), key=int) == [str(number) for number in range(STEPS)], "each once"
    # The files of records are tried again once a second at most.
    repo.until(lambda: asked(repo, "/health")[2]["status"] == "ok", "the files have followed")
    assert server.terminate() == 0
    log = server.log()
    assert log.count("the journal takes writes again") == 1
    assert len(re.findall(r"the journal \S+ cannot be written", log)) == 1
    assert "Traceback" not in log
    assert {record["status"]["state"] for record in repo.records("steps").values()} == {"succeeded"}


def test_a_read_only_repository_is_read_and_not_served(repo: Repo) -> None:
    repo.shell_workflow("w", {"step": "true"})
    (repo.path / "vaults/local_encryption").mkdir()
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    repo.swamp("workflow", "run", "w")
    repo.procs.pop().stop()
    server.terminate()
    with_disk = repo.json("run", "list")
    for left in (repo.path / ".swamp").glob("*.db-*"):
        left.unlink()  # As a clean stop leaves it: nothing that SQLite could read a WAL by.
    if not mounted(repo.path, "--bind", str(repo.path)):
        pytest.skip("mounting read-only needs root and the right to mount")
    try:
        assert mounted(repo.path, "-o", "remount,bind,ro")
        assert repo.json("run", "list") == with_disk
        assert repo.swamp("run", "list").stderr == "", "from the index, not by passing over it"
        assert repo.json("worker", "list", "--all")["count"] == 1
        assert repo.json("worker", "queue") == []
        assert repo.swamp("workflow", "validate").stderr == ""
        for command in (["serve", "--port", str(repo.port)], ["workflow", "run", "w"]):
            refused = repo.swamp(*command, code=1).stderr
            assert "this repository cannot be written" in refused
            assert "Read-only file system" in refused
        doctor = repo.json("doctor", code=1)
        (error,) = [one for one in doctor["findings"] if one["level"] == "error"]
        assert error["check"] == "permissions"
        assert error["message"].endswith("cannot be written: the file system is mounted read-only")
        due = repo.json("run", "prune", "--keep", "0", "--dry-run")
        assert due["pruned"] == [run["runId"] for run in with_disk["runs"]]
        refused = repo.swamp("vault", "create", "local_encryption", "main", code=1).stderr
        assert refused.endswith("/vaults/local_encryption/main.yaml: Read-only file system\n")
    finally:
        unmount(repo.path)


def test_a_client_that_leaves_the_event_stream_is_no_error(repo: Repo) -> None:
    go = repo.base / "go"
    chatty = f"until [ -e {go} ]; do echo line; sleep 0.005; done"
    repo.shell_workflow("w", {"step": chatty})
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    run = repo.start("workflow", "run", "w", "--quiet")
    repo.until(lambda: bool(repo.json("run", "list")["runs"]))
    name = repo.json("run", "list")["runs"][0]["runId"]
    for _ in range(5):
        stream = urllib.request.urlopen(f"{repo.url}/api/v1/runs/{name}/events?follow=1")
        stream.readline()
        stream.close()
    time.sleep(0.3)
    go.touch()
    assert run.wait(30) == 0
    server.terminate()
    assert "Traceback" not in server.log()
    assert "Error handling" not in server.log()


def test_a_full_disk_ends_no_server_whatever_is_missing_there(small: Repo) -> None:
    repo = small
    server = repo.serve()
    fill(repo)
    shutil.rmtree(repo.path / "datastore/desired/tokens")
    shutil.rmtree(repo.path / "datastore/desired/workers")
    ballast = fill(repo)  # What these have left.
    repo.until(lambda: asked(repo, "/health")[2]["status"] == "degraded", "the server says so")
    assert "No space left on device" in asked(repo, "/health")[2]["degraded"]
    for _ in range(3):
        refused = repo.swamp("worker", "token", "create", "w1", "--duration", "1h", code=1).stderr
        assert "the server's disk refuses: " in refused
    assert server.process.poll() is None
    ballast.unlink()
    repo.until(lambda: asked(repo, "/health")[2]["status"] == "ok", "it goes on by itself")
    repo.token("w2")
    fill(repo)
    assert server.terminate() == 0, "nothing waits for the disk"
    assert "Traceback" not in server.log()


def test_a_disk_that_becomes_read_only_ends_no_server(repo: Repo) -> None:
    server = repo.serve()
    if not mounted(repo.path, "--bind", str(repo.path)):
        pytest.skip("mounting read-only needs root and the right to mount")
    try:
        assert mounted(repo.path, "-o", "remount,bind,ro")
        # Through the folder below the mount: what is gone there is not to be made again.
        below = Path(f"/proc/{server.process.pid}/cwd/datastore/desired")
        shutil.rmtree(below / "workers")
        repo.until(lambda: asked(repo, "/health")[2]["status"] == "degraded", "the server says so")
        assert "Read-only file system" in asked(repo, "/health")[2]["degraded"]
    finally:
        unmount(repo.path)
    repo.until(lambda: asked(repo, "/health")[2]["status"] == "ok", "it goes on by itself")
    assert server.terminate() == 0
    assert "Traceback" not in server.log()


def test_pruning_on_a_full_disk_says_what_becomes_of_it(small: Repo) -> None:
    """Regression: it was advised, hung for 30 s, and a question was "noted"."""
    repo = small
    repo.shell_workflow("w", {"one": "true"})
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    for _ in range(2):
        repo.swamp("workflow", "run", "w")
    ballast = fill(repo)
    began = time.monotonic()
    refused = repo.swamp("run", "prune", "--keep", "0", code=1).stderr
    assert "noted, and in force once the disk takes writes again" in refused
    assert time.monotonic() - began < 15
    assert repo.json("run", "prune", "--keep", "0", "--dry-run")["dryRun"] is True
    (advice,) = [one for one in repo.json("doctor", code=1)["findings"] if one["check"] == "disk"]
    assert "e.g. with `swamp run prune`" not in advice["wayOut"]
    assert "the server goes on by itself" in advice["wayOut"]
    ballast.unlink()
    repo.until(lambda: not repo.records("runs"), "what was noted")
    assert repo.json("run", "list")["runs"] == []
    assert server.terminate() == 0

    ballast = fill(repo)
    assert "the disk is full, make room on it" in repo.swamp("run", "prune", code=1).stderr
    (advice,) = [one for one in repo.json("doctor", code=1)["findings"] if one["check"] == "disk"]
    assert "start the server again" in advice["wayOut"]


def test_a_private_folder_that_is_none_shows_in_health(repo: Repo) -> None:
    """Regression: the log told that nothing could be restored, and health said ok."""
    server = repo.serve()
    private, away = repo.path / ".swamp", repo.base / "away"
    private.rename(away)
    private.write_text("x")
    said = "what was removed from .swamp/ cannot be restored yet"
    repo.until(lambda: said in (asked(repo, "/health")[2]["degraded"] or ""), said)
    assert "swamp_degraded 1" in metrics(repo)
    private.unlink()
    away.rename(private)
    repo.until(lambda: asked(repo, "/health")[2]["status"] == "ok", "it goes on by itself")
    assert server.terminate() == 0


def test_a_socket_that_cannot_be_had_again_shows_in_health(repo: Repo) -> None:
    server = repo.serve()
    path = repo.path / ".swamp" / "serve.sock"
    path.unlink()
    path.mkdir()
    repo.until(lambda: asked(repo, "/health")[2]["status"] == "degraded", "the server says so")
    assert "serve.sock cannot be listened on" in asked(repo, "/health")[2]["degraded"]
    path.rmdir()
    repo.until(lambda: asked(repo, "/health")[2]["status"] == "ok", "it goes on by itself")
    assert server.terminate() == 0


def test_a_server_that_starts_on_a_full_disk_waits_for_room(small: Repo) -> None:
    """Regression: exit code 1, and "the journal cannot be read: disk I/O error"."""
    repo, gate, done = small, small.base / "gate", small.base / "done"
    server, run = with_all_slots_taken(repo, gate, done)
    assert server.terminate() == 0
    ballast = fill(repo)
    for again in range(2):
        server = repo.serve(wait=False)
        repo.until(lambda: is_degraded(repo), "it answers, and says that it is degraded")
        assert "Nothing is damaged" in server.log(), again
        told = asked(repo, "/health")[2]
        assert (told["status"], told["takesWork"]) == ("degraded", False)
        assert told["degraded"].startswith("the disk is full, make room on it")
        status, _, refused = asked(repo, "/api/v1/runs", {"workflow": "fan"})
        assert (status, refused["code"]) == (503, "degraded")
        findings = {one["check"]: one for one in repo.json("doctor", code=1)["findings"]}
        assert findings["server"]["message"].startswith("none answers here")
        assert findings["lock"]["wayOut"].startswith("make room on the disk")
        assert "the server goes on by itself then" in findings["disk"]["wayOut"]
        assert server.terminate() == 0, "it is stopped in order"
        assert "Traceback" not in server.log()
    refused = repo.swamp("worker", "token", "create", "w2", "--duration", "1h", code=1).stderr
    assert refused.startswith("Error: the disk is full, make room on it and try again")
    assert "Nothing is damaged" in refused

    server = repo.serve(wait=False)
    repo.until(lambda: is_degraded(repo), "it answers, and says that it is degraded")
    gate.touch()
    ballast.unlink()
    run.communicate(timeout=60)
    assert run.returncode == 0, "it is taken on by itself"
    assert sorted(lines(done), key=int) == [str(number) for number in range(STEPS)], "each once"
    # The files of records are tried again once a second at most.
    repo.until(lambda: asked(repo, "/health")[2]["status"] == "ok", "the files have followed")
    assert server.terminate() == 0


@pytest.mark.parametrize("full_before", [True, False])
def test_a_server_that_was_killed_starts_on_a_full_disk_or_waits(
    small: Repo, full_before: bool
) -> None:
    """Its journal has room for some, or none.

    Regression: it ended for want of a folder for steps of its own, or never listened.
    """
    repo, gate, done = small, small.base / "gate", small.base / "done"
    server, run = with_all_slots_taken(repo, gate, done)
    if full_before:
        fill(repo)
    server.process.kill()
    server.wait()
    ballast = fill(repo)
    for room in (0, 16_384, 65_536, 262_144):
        with ballast.open("ab") as file:
            file.truncate(ballast.stat().st_size - room)
        server = repo.serve(wait=False)
        repo.until(lambda: is_degraded(repo), "it answers, and says that it is degraded")
        assert server.process.poll() is None
        server.process.kill()
        server.wait()
        ballast = fill(repo)
    server = repo.serve(wait=False)
    repo.until(lambda: is_degraded(repo), "it answers, and says that it is degraded")
    gate.touch()
    ballast.unlink()
    run.communicate(timeout=60)
    assert run.returncode == 0
    assert sorted(lines(done), key=int) == [str(number) for number in range(STEPS)], "each once"
    repo.until(lambda: asked(repo, "/health")[2]["status"] == "ok", "it goes on by itself")
    assert server.terminate() == 0
