"""People edit files while the server runs: each edit does what it says, or is reported and kept."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Proc, Repo

WITHIN_S = 0.2
"""How soon an edit takes effect, as promised."""

SLACK_S = 0.8
"""What a machine that is busy with other tests may add."""


class Server:
    """A repository whose server and worker run; edits and what follows from them."""

    def __init__(self, repo: Repo, *arguments: str) -> None:
        self.repo = repo
        self.server = repo.serve(*arguments)

    def desire(self, kind: str, name: str, *fields: str, comment: str = "") -> Path:
        """Save a desired file as a plain editor does."""
        lines = "".join(f"  {field}\n" for field in fields)
        return self.repo.write(f"datastore/desired/{kind}/{name}.yaml", f"{comment}spec:\n{lines}")

    def record(self, kind: str, name: str) -> Any:
        return self.repo.records(kind).get(name, {})

    def log(self) -> str:
        return self.server.log_path.read_text()

    def soon(self, true: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> float:
        """Wait until it is true, which must be in time; how long it took."""
        start = time.monotonic()
        self.repo.until(true, what)
        took = time.monotonic() - start
        assert took < within_s + SLACK_S, f"{what}: {took:.3f} s"
        return took


def git(repo: Repo, *arguments: str, code: int | None = 0) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false",
         *arguments],
        cwd=repo.path, capture_output=True, text=True,
    )  # fmt: skip
    assert code in (None, done.returncode), done.stderr
    return done.stdout


def state(record: Any) -> str | None:
    found = record.get("status", {}).get("state")
    return None if found is None else str(found)


def only(records: dict[str, Any]) -> str:
    assert len(records) == 1, list(records)
    return next(iter(records))


@pytest.fixture
def waiting(repo: Repo) -> tuple[Server, str, subprocess.Popen[str]]:
    """A server and a run whose only step waits for a worker: its dispatch id."""
    repo.shell_workflow("one", {"step": "true"})
    server = Server(repo)
    run = repo.start("workflow", "run", "one", "--server", repo.url)
    repo.until(lambda: [state(r) for r in repo.records("pending").values()] == ["waiting"])
    return server, only(repo.records("pending")), run


# -- waiting dispatches, leases, runs ----------------------------------------------------------


def test_a_waiting_dispatch_is_given_another_priority_and_timeout(waiting: Any) -> None:
    server, name, _ = waiting
    file = server.desire("pending", name, "priority: 1", "queueTimeout: 0")
    server.soon(lambda: server.record("pending", name)["spec"]["priority"] == 1, "the priority")
    spec = server.record("pending", name)["spec"]
    assert "waitLimitS" not in spec and spec["limitFrom"] == "edit"
    assert re.fullmatch("[0-9a-f]{16}", spec["desired"])
    entry = server.repo.json("worker", "queue")[0]
    assert (entry["priority"], entry["limitFrom"], "limitS" in entry) == (1, "edit", False)

    file.unlink()
    server.soon(lambda: "missing" in server.record("pending", name)["spec"]["desired"], "the note")
    assert server.record("pending", name)["spec"]["priority"] == 1

    server.desire("pending", name, "queueTimeout: 0.01")
    server.soon(lambda: state(server.record("pending", name)) == "timed_out", "the time-out")
    server.repo.until(lambda: [state(r) for r in server.repo.records("runs").values()] == ["failed"])
    failure = only(server.repo.records("runs"))
    assert "an edit of its desired file" in server.record("runs", failure)["status"]["failure"]


def test_a_waiting_dispatch_is_cancelled_for_good(waiting: Any) -> None:
    server, name, run = waiting
    file = server.desire("pending", name, "cancel: true")
    server.soon(lambda: state(server.record("pending", name)) == "cancelled", "the cancel")
    assert run.wait(30) == 1
    file.write_text("spec: {priority: 2}\n")
    server.repo.until(lambda: "ends are final" in server.log(), "the line in the log")
    assert state(server.record("pending", name)) == "cancelled"
    assert server.repo.records("leases") == {}


@pytest.fixture
def running(repo: Repo) -> tuple[Server, str, Proc]:
    """A server and a worker that executes a step which ends when `go` is there."""
    wait = f"until [ -e {repo.base / 'go'} ]; do sleep 0.02; done"
    repo.shell_workflow("one", {"step": wait})
    server = Server(repo)
    worker = repo.worker("w1", "--label", "pool=worker")
    repo.start("workflow", "run", "one", "--server", repo.url)
    worker.lines.kind("dispatch_started")
    repo.until(lambda: [state(r) for r in repo.records("leases").values()] == ["active"])
    return server, only(repo.records("leases")), worker


def test_a_lease_is_ended_by_its_file(running: Any) -> None:
    server, name, worker = running
    server.desire("leases", name, "cancel: true", comment="# wrong branch\n")
    server.soon(lambda: server.record("leases", name)["spec"]["cancel"], "the wish")
    worker.lines.kind("dispatch_finished")
    server.repo.until(lambda: state(server.record("leases", name)) == "failed", "the lease's end")
    server.repo.until(lambda: [state(r) for r in server.repo.records("steps").values()] == ["cancelled"])


def test_a_run_is_cancelled_by_its_file_and_stays_so(running: Any) -> None:
    server, name, worker = running
    run = name.partition(".")[0]
    file = server.desire("runs", run, "cancel: true", "cancelReason: wrong branch")
    server.soon(lambda: server.record("runs", run)["spec"]["cancel"], "the wish")
    assert server.record("runs", run)["spec"]["cancelReason"] == "wrong branch"
    file.write_text("spec: {cancel: false}\n")
    worker.lines.kind("dispatch_finished")
    server.repo.until(lambda: state(server.record("runs", run)) == "cancelled", "the run's end")
    assert server.record("runs", run)["status"]["failure"] == "wrong branch"
    server.repo.until(lambda: "ends are final" in server.log(), "the line in the log")


# -- workers and tokens ------------------------------------------------------------------------


def test_a_worker_is_cordoned_with_a_note_until_its_file_says_otherwise(repo: Repo) -> None:
    server = Server(repo)
    repo.worker("w1", "--label", "pool=worker")
    file = server.desire("workers", "w1", "schedulable: false", 'note: "kernel update"')
    server.soon(lambda: server.record("workers", "w1")["spec"]["schedulable"] is False, "cordon")
    listed = repo.json("worker", "list")["workers"][0]
    assert (listed["status"], listed["note"]) == ("cordoned", "kernel update")
    assert "kernel update" in repo.swamp("worker", "list").stdout

    file.unlink()
    server.soon(lambda: "missing" in server.record("workers", "w1")["status"]["desired"], "note")
    listed = repo.json("worker", "list")["workers"][0]
    assert (listed["status"], listed["desiredFile"]) == ("cordoned", "missing")
    assert "File missing in datastore/desired/ for w1" in repo.swamp("worker", "list").stdout

    server.desire("workers", "w1", "schedulable: true")
    server.soon(lambda: server.record("workers", "w1")["spec"]["schedulable"] is True, "uncordon")
    assert "note" not in repo.json("worker", "list")["workers"][0]


def test_a_token_revoked_by_file_cuts_its_worker_and_stays_revoked(repo: Repo) -> None:
    server = Server(repo)
    git(repo, "init", "-q")
    worker = repo.worker("w1", "--label", "pool=worker")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "a token")
    file = repo.path / "datastore/desired/tokens/w1.yaml"
    before = file.read_text()
    file.write_text(before + "  revoked: true  # laptop stolen\n")
    server.soon(lambda: state(server.record("tokens", "w1")) == "revoked", "the revocation")
    server.soon(lambda: state(server.record("workers", "w1")) == "disconnected", "the cut")
    assert worker.wait() != 0

    git(repo, "checkout", "-q", "--", "datastore/desired")
    assert file.read_text() == before
    repo.until(lambda: "'revoked' of EnrollmentToken 'w1' cannot be taken back" in server.log())
    assert repo.json("worker", "token", "list")[0]["state"] == "revoked"


def test_a_command_changes_only_what_it_must(repo: Repo) -> None:
    server = Server(repo)
    repo.token("w1")
    file = repo.path / "datastore/desired/tokens/w1.yaml"
    written = file.read_text().replace("spec:", "# asked for by Kim, see T-17\nspec:  # sparse")
    file.write_text(written + "  note:   'for the build pool'\n")
    before = file.read_text()
    server.soon(lambda: "note" in server.record("tokens", "w1")["spec"], "the note")
    repo.swamp("worker", "token", "revoke", "w1")
    assert file.read_text() == before + "  revoked: true\n"
    file.write_text(before)
    repo.until(lambda: "cannot be taken back" in server.log(), "the stale save's line")
