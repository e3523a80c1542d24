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

SLACK_S = 2.8
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
        return self.repo.records(kind).get(name) or {"spec": {}, "status": {}}

    def log(self) -> str:
        return self.server.log()

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
    server.repo.until(
        lambda: [state(r) for r in server.repo.records("runs").values()] == ["failed"]
    )
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


def test_what_is_asked_while_the_server_is_stopped_counts_at_its_start(waiting: Any) -> None:
    server, name, _ = waiting
    repo = server.repo
    assert server.server.terminate() == 0
    server.desire("pending", name, "cancel: true")
    server.desire("workers", "w1", "schedulable: false", "note: before its first enrollment")
    repo.serve()
    repo.until(lambda: [state(r) for r in repo.records("steps").values()] == ["cancelled"])
    repo.worker("w1", "--label", "pool=worker")
    listed = repo.json("worker", "list")["workers"][0]
    assert (listed["status"], listed["note"]) == ("cordoned", "before its first enrollment")
    assert repo.records("leases") == {}


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
    server.repo.until(lambda: state(only_run(server)) == "failed", "the run's end")
    by = f"was cancelled by datastore/desired/leases/{name}.yaml"
    assert by in only_run(server)["status"]["failure"]
    assert by in server.repo.swamp("run", "list").stdout


def only_run(server: Any) -> Any:
    return server.record("runs", only(server.repo.records("runs")))


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
    server.soon(
        lambda: server.record("workers", "w1")["spec"].get("schedulable") is False, "cordon"
    )
    listed = repo.json("worker", "list")["workers"][0]
    assert (listed["status"], listed["note"]) == ("cordoned", "kernel update")
    assert "kernel update" in repo.swamp("worker", "list").stdout

    file.unlink()
    server.soon(lambda: "missing" in server.record("workers", "w1")["status"]["desired"], "note")
    listed = repo.json("worker", "list")["workers"][0]
    assert (listed["status"], listed["desiredFile"]) == ("cordoned", "missing")
    assert "File missing in datastore/desired/ for w1" in repo.swamp("worker", "list").stdout

    server.desire("workers", "w1", "schedulable: true")
    server.soon(
        lambda: server.record("workers", "w1")["spec"].get("schedulable") is True, "uncordon"
    )
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


# -- definitions -------------------------------------------------------------------------------


def test_definitions_change_for_the_next_run_and_not_for_this_one(repo: Repo) -> None:
    wait = f"echo old; until [ -e {repo.base / 'go'} ]; do sleep 0.02; done"
    repo.shell_workflow("one", {"first": wait, "second": "echo old"})
    server = Server(repo)
    worker = repo.worker("w1", "--label", "pool=worker", "--concurrency", "1")
    first = repo.start("workflow", "run", "one", "--server", repo.url)
    worker.lines.kind("dispatch_started")
    path = repo.path / "workflows/one.yaml"
    good = path.read_text().replace("echo old", "echo new")
    path.write_text(good)
    (repo.base / "go").touch()
    assert first.wait(30) == 0
    assert _outputs(repo) == ["old\n", "old\n"]
    repo.swamp("workflow", "run", "one", "--server", repo.url)
    assert _outputs(repo) == ["new\n", "new\n", "old\n", "old\n"]

    path.write_text(good + "  - name: [broken\n")
    repo.until(lambda: "workflows/one.yaml:" in server.log(), "the line in the log")
    problem = _problems(repo)[0]
    assert (problem["path"], problem["line"] > 1) == ("workflows/one.yaml", True)
    warned = repo.swamp("workflow", "run", "one", "--server", repo.url).stderr
    assert warned.startswith("Warning: workflows/one.yaml:")
    assert _outputs(repo).count("new\n") == 4, "the last good version stays in force"
    path.write_text(good)
    server.soon(lambda: _problems(repo) == [], "the problem's end")


def _outputs(repo: Repo) -> list[str]:
    steps = repo.records("steps").values()
    return sorted(step["status"]["outcome"]["stdout"] for step in steps)


def _problems(repo: Repo) -> list[dict[str, Any]]:
    import urllib.request

    with urllib.request.urlopen(f"{repo.url}/api/v1/problems") as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


# -- all of it at once, while a fan-out runs ---------------------------------------------------


class FanOut(Server):
    """A server that executes a fan-out of steps that end one after the other once `go` is there."""

    STEPS = 40

    def __init__(self, repo: Repo) -> None:
        git(repo, "init", "-q")
        wait = f"until [ -e {repo.base / 'go'} ]; do sleep 0.05; done; sleep 0.1"
        repo.shell_workflow("fan", {f"s{n}": wait for n in range(self.STEPS)})
        super().__init__(repo)
        self.workers = [
            repo.worker(name, "--label", "pool=worker", "--concurrency", "2")
            for name in ("w1", "w2")
        ]
        for name in ("w1", "w2"):
            self.desire("workers", name, "schedulable: true", comment="# as it should be\n")
        git(repo, "add", "-A")
        git(repo, "commit", "-qm", "first")
        self.run = repo.start("workflow", "run", "fan", "--server", repo.url)
        for worker in self.workers:
            worker.lines.kind("dispatch_started", 2)
        repo.until(lambda: self.leases() == ["active"] * 4, "the leases")

    def leases(self) -> list[str | None]:
        return [state(lease) for lease in self.repo.records("leases").values()]

    def finish(self) -> None:
        """The run ends well: each step ran once, nothing was lost, nothing crashed."""
        (self.repo.base / "go").touch()
        output, _ = self.run.communicate(timeout=60)
        assert self.run.returncode == 0, output
        started = [len(w.lines.kinds("dispatch_started")) for w in self.workers]
        assert sum(started) == self.STEPS
        self.repo.until(
            lambda: [state(r) for r in self.repo.records("runs").values()] == ["succeeded"]
        )
        ends = [state(step) for step in self.repo.records("steps").values()]
        assert ends == ["succeeded"] * self.STEPS
        assert "Traceback" not in self.log() and self.server.process.poll() is None
        assert self.server.terminate() == 0
        assert "boot_sweep" not in self.repo.serve().lines.kinds()


@pytest.fixture
def fan(repo: Repo) -> FanOut:
    return FanOut(repo)


def test_git_moves_many_desired_files_under_a_running_fan_out(fan: FanOut) -> None:
    repo = fan.repo
    for number in range(200):
        fan.desire("workers", f"x{number}", f"note: before {number}")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "many")
    fan.desire("workers", "w1", "schedulable: false", "note: later")
    for number in range(200):
        fan.desire("workers", f"x{number}", f"note: after {number}")
    git(repo, "commit", "-qam", "later")
    fan.soon(lambda: _schedulable(fan, "w1") is False, "the edit", 0.4)
    git(repo, "checkout", "-q", "HEAD~1")
    fan.soon(lambda: _schedulable(fan, "w1") is True, "the way back", 0.4)
    git(repo, "checkout", "-q", "-")
    fan.soon(lambda: _schedulable(fan, "w1") is False, "the way forth", 0.4)

    fan.desire("workers", "w2", "schedulable: false")
    fan.soon(lambda: _schedulable(fan, "w2") is False, "an edit")
    git(repo, "stash", "-q")
    fan.soon(lambda: _schedulable(fan, "w2") is True, "the stash")
    git(repo, "stash", "pop", "-q")
    fan.soon(lambda: _schedulable(fan, "w2") is False, "the pop")

    git(repo, "commit", "-qam", "mine")
    git(repo, "checkout", "-qb", "theirs", "HEAD~1")
    fan.desire("workers", "w2", "schedulable: true", "note: theirs")
    git(repo, "commit", "-qam", "theirs")
    git(repo, "merge", "-q", "-", code=1)
    repo.until(lambda: "datastore/desired/workers/w2.yaml" in fan.log(), "the conflict's line")
    assert "merge" in _problems(repo)[0]["problem"]
    fan.desire("workers", "w1", "schedulable: true")
    fan.desire("workers", "w2", "schedulable: true")
    fan.soon(lambda: _problems(repo) == [], "the mended file")
    fan.finish()


def _schedulable(fan: Server, worker: str) -> Any:
    return fan.record("workers", worker)["spec"].get("schedulable")


def test_git_clean_takes_all_that_git_ignores_and_nothing_is_lost(fan: FanOut) -> None:
    repo = fan.repo
    fan.desire("workers", "w2", "schedulable: false", "note: not committed")
    fan.soon(lambda: _schedulable(fan, "w2") is False, "an edit")
    git(repo, "clean", "-qfd")
    inodes = {name: (repo.path / ".swamp" / name).stat().st_ino for name in ("lock", "journal.db")}
    # Its exit code tells of files that went by themselves meanwhile.
    git(repo, "clean", "-qfdx", code=None)
    for name in ("lock", "journal.db", "index.db", "serve.sock"):
        repo.until((repo.path / ".swamp" / name).exists, name)
        repo.until(
            lambda name=name: f"{name.partition('.')[0]}" in fan.log(), f"a line about {name}"
        )
    assert inodes["lock"] != (repo.path / ".swamp/lock").stat().st_ino
    refused = repo.swamp("serve", "--port", "0", code=1)
    assert f"pid {fan.server.process.pid}" in refused.stderr
    repo.until(lambda: len(repo.json("worker", "list")["workers"]) == 2, "the socket")
    repo.until(lambda: len(repo.records("leases")) == 4, "the records")
    run = only(repo.records("runs"))
    log = repo.path / f".swamp/events/{run}.jsonl"
    repo.until(log.exists, "the events")
    assert [json.loads(line)["seq"] for line in log.read_text().splitlines()][:3] == [1, 2, 3]
    # The folders are watched again.
    fan.desire("workers", "w2", "schedulable: true")
    fan.soon(lambda: _schedulable(fan, "w2") is True, "an edit afterwards", 1.5)
    fan.finish()


def test_a_restart_after_git_clean_goes_on_with_everything(fan: FanOut) -> None:
    repo = fan.repo
    before = repo.records("leases").keys()
    # Its exit code tells of files that went by themselves meanwhile.
    git(repo, "clean", "-qfdx", code=None)
    repo.until(lambda: ".swamp/journal" in fan.log(), "the journal's line")
    repo.until(lambda: repo.records("leases").keys() == before, "the records")
    fan.server.process.kill()
    fan.server.wait()
    fan.server = repo.serve()
    repo.until(
        lambda: fan.leases() == ["active"] * 4,
        "the leases after the restart",
    )
    (repo.base / "go").touch()
    repo.until(lambda: [state(r) for r in repo.records("runs").values()] == ["succeeded"])
    assert sum(len(w.lines.kinds("dispatch_started")) for w in fan.workers) == fan.STEPS


def _sed(path: Path) -> None:
    subprocess.run(["sed", "-i", "s/true/false/", str(path)], check=True)


def _vim(path: Path) -> None:
    """Vim with its defaults: the old file becomes a backup, the new one is written in its place."""
    text = path.read_text()
    path.rename(path.with_name(path.name + "~"))
    path.write_text(text.replace("true", "false"))
    path.with_name(path.name + "~").unlink()


def _vscode(path: Path) -> None:
    """Truncated, and written in place a little later."""
    text = path.read_text()
    with path.open("w") as file:
        file.flush()
        time.sleep(0.03)
        file.write(text.replace("true", "false"))


def _atomic(path: Path) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(path.read_text().replace("true", "false"))
    os.replace(new, path)


@pytest.mark.parametrize("save", [_sed, _vim, _vscode, _atomic])
def test_every_editor_saves_in_its_own_way(repo: Repo, save: Callable[[Path], None]) -> None:
    server = Server(repo)
    repo.worker("w1", "--label", "pool=worker")
    file = server.desire("workers", "w1", "schedulable: true  # ok")
    server.soon(lambda: "desired" in server.record("workers", "w1")["status"], "the first save")
    save(file)
    server.soon(lambda: _schedulable(server, "w1") is False, "the save")
    file.touch()
    assert file.read_text() == "spec:\n  schedulable: false  # ok\n"
    assert _problems(repo) == [] and "w1.yaml" not in server.log()


def test_odd_files_are_reported_and_kept(fan: FanOut) -> None:
    repo = fan.repo
    desired = repo.path / "datastore/desired/workers"
    text = "metadata: {name: w1}\nspec: {schedulable: false}\n"
    (desired / "copy-of-w1.yaml").write_text(text)
    repo.until(lambda: "copy-of-w1.yaml" in fan.log(), "two files with one name")
    (desired / "w1.yaml").rename(desired / "w9.yaml")
    fan.soon(lambda: "missing" in fan.record("workers", "w1")["status"]["desired"], "the rename")
    (repo.path / "workflows/again.yaml").write_text((repo.path / "workflows/fan.yaml").read_text())
    repo.until(lambda: "workflows/again.yaml" in fan.log(), "two workflows with one name")
    assert _schedulable(fan, "w1") is True
    assert (desired / "copy-of-w1.yaml").read_text() == text
    fan.finish()


def test_what_is_done_to_observed_is_put_back(fan: FanOut) -> None:
    repo = fan.repo
    observed = repo.path / "datastore/observed"
    worker = observed / "workers/w1.yaml"
    text = worker.read_text()
    worker.write_text(text.replace("schedulable: true", "schedulable: false"))
    fan.soon(lambda: worker.read_text() == text, "the edit put back", 1.0)
    line = "workers/w1.yaml was edited and is put back: what is asked of it goes into"
    repo.until(lambda: line in fan.log(), "the line that says where to edit")

    lease = next((observed / "leases").glob("*.yaml"))
    lease.unlink()
    fan.soon(lease.exists, "a live record", 1.0)
    (observed / "runs/mine.yaml").write_text("metadata: {name: mine}\n")
    repo.until(lambda: "mine.yaml was not written by the server" in fan.log(), "a foreign file")
    (observed / "runs/mine.yaml").unlink()
    subprocess.run(["rm", "-rf", str(observed / "workers"), str(observed / "steps")], check=True)
    fan.soon(worker.exists, "a whole folder", 2.0)
    assert (observed / "steps/.gitignore").exists() and (observed / "workers/.gitignore").exists()
    time.sleep(1.2)  # The folder is watched again after a second.
    worker.write_text("gone: wrong\n")
    fan.soon(lambda: worker.read_text() == text, "an edit in the new folder", 1.0)
    subprocess.run(["rm", "-rf", str(repo.path / "datastore/desired/workers")], check=True)
    repo.until((repo.path / "datastore/desired/workers/.gitignore").exists, "the desired folder")
    fan.desire("workers", "w2", "note: there again")
    fan.soon(lambda: fan.record("workers", "w2")["spec"].get("note") == "there again", "it", 1.5)
    fan.finish()
    finished = next((observed / "steps").glob("*.yaml"))
    finished.unlink()
    repo.until(finished.exists, "a finished record")
