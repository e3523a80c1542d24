"""Everything is a record: what files tell during and after a run, with and without a server."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import Repo
from ruamel.yaml import YAML


def test_records_tell_the_story_during_and_after_a_run(repo: Repo) -> None:
    go = repo.base / "go"
    wait = f"until [ -e {go} ]; do sleep 0.02; done; echo done"
    repo.shell_workflow("two", {"first": wait, "second": "true"})
    server = repo.serve()
    worker = repo.worker("w1", "--label", "pool=worker")
    run = repo.start("workflow", "run", "two", "--server", repo.url)
    worker.lines.kind("dispatch_started")
    repo.until(lambda: len(repo.records("steps")) == 1, "the step's record")
    repo.until(lambda: _states(repo, "pending") == ["dispatched", "waiting"], "a waiting record")
    assert _states(repo, "workers") == ["connected"]
    assert _states(repo, "tokens") == ["enrolled"]
    assert _states(repo, "runs") == ["running"]
    assert _states(repo, "steps") == ["running"]
    repo.until(lambda: _states(repo, "leases") == ["active"], "an active lease")
    lease = next(iter(repo.records("leases").values()))
    assert lease["spec"]["worker"] == "w1"
    waiting = next(p for p in repo.records("pending").values() if p["status"]["state"] == "waiting")
    assert waiting["status"]["reason"] == "0 of 1 workers fit: 1 full"

    listed = repo.json("worker", "list")["workers"][0]
    assert (listed["status"], listed["capacity"], len(listed["activeDispatchIds"])) == (
        "busy",
        1,
        1,
    )
    queue = repo.json("worker", "queue")
    assert [(q["requirement"], q["stepName"]) for q in queue] == [("pool=worker", "second")]

    go.touch()
    assert run.wait(30) == 0
    assert server.terminate() == 0
    assert sorted(_states(repo, "leases")) == ["completed", "completed"]
    assert _states(repo, "runs") == ["succeeded"]
    stories = list((repo.path / "datastore" / "history" / "two").glob("*.yaml"))
    assert len(stories) == 1
    story = yaml.safe_load(stories[0].read_text())
    assert story["state"] == "succeeded"
    assert [step["worker"] for step in story["jobs"][0]["steps"]] == ["w1", "w1"]
    assert story["jobs"][0]["steps"][1]["waitedS"] > 0


def _states(repo: Repo, kind: str) -> list[str]:
    records = repo.records(kind).values()
    return sorted(str(record.get("status", {}).get("state")) for record in records)


def test_every_record_reads_the_same_by_two_independent_parsers(repo: Repo) -> None:
    odd = "printf 'no\\n 12:30\\n# x: [y\\n\\tTab é ✓ \\001 end'; printf 'yes' >&2"
    repo.shell_workflow("odd", {"step": odd})
    repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    repo.swamp("workflow", "run", "odd", "--server", repo.url)
    for proc in reversed(repo.procs):
        proc.terminate()
    files = sorted((repo.path / "datastore").rglob("*.yaml"))
    assert len(files) >= 7
    for path in files:
        text = path.read_text()
        other = YAML(typ="safe", pure=True).load(text)
        assert json.loads(json.dumps(other)) == yaml.safe_load(text), path
    step = next(iter(repo.records("steps").values()))
    assert step["status"]["outcome"]["stdout"].startswith("no\n 12:30\n# x: [y\n\tTab é ✓ \x01 end")
    assert list(step) == ["apiVersion", "kind", "metadata", "spec", "status"]


def test_lists_are_the_same_with_the_server_stopped(repo: Repo) -> None:
    repo.shell_workflow("good", {"step": "true"})
    repo.shell_workflow("bad", {"step": "exit 3"})
    server = repo.serve()
    worker = repo.worker("w1", "--label", "pool=worker")
    repo.swamp("workflow", "run", "good", "--server", repo.url)
    repo.swamp("workflow", "run", "bad", "--server", repo.url, code=1)
    worker.terminate()
    repo.until(lambda: repo.json("worker", "list")["count"] == 0, "the worker's end")
    commands = (
        ["worker", "list", "--all"],
        ["worker", "queue"],
        ["worker", "token", "list"],
        ["run", "list"],
    )
    runs = [run["runId"] for run in repo.json("run", "list")["runs"]]
    asked = [*commands, *(["run", "show", run] for run in runs)]
    with_server = [repo.json(*command) for command in asked]
    server.terminate()
    assert [repo.json(*command) for command in asked] == with_server


FOREIGN = {
    "runs": {"workflow": "w", "workflowId": "x", "definition": {"name": "w", "jobs": []}},
    "pending": {
        "run": "r", "workflow": "w", "job": "j", "step": "s", "episode": 1,
        "call": {"modelType": "command/shell", "model": "m", "method": "execute",
                 "arguments": {"run": "touch STARTED"}},
        "placement": {"labels": {"pool": "worker"}},
    },
    "leases": {
        "run": "r", "workflow": "w", "job": "j", "step": "s", "worker": "w1", "instance": "i",
        "model": "m", "method": "execute",
    },
}  # fmt: skip
STATUS: dict[str, dict[str, Any]] = {
    "runs": {"state": "running", "startedAt": "2026-01-01T00:00:00.000Z"},
    "pending": {"state": "waiting", "queuedAt": "2026-01-01T00:00:00.000Z"},
    "leases": {"state": "bound", "boundAt": "2026-01-01T00:00:00.000Z"},
}
TITLES = {"runs": "Run", "pending": "PendingDispatch", "leases": "Lease"}


def _foreign(kind: str, name: str) -> str:
    document = {
        "apiVersion": "swamp/v1",
        "kind": TITLES[kind],
        "metadata": {"name": name, "uid": name, "createdAt": "2026-01-01T00:00:00.000Z"},
        "spec": FOREIGN[kind],
        "status": STATUS[kind],
    }
    return json.dumps(document)


@pytest.mark.parametrize("running", [True, False])
def test_a_file_that_the_server_did_not_write_starts_nothing(repo: Repo, running: bool) -> None:
    repo.shell_workflow("good", {"step": "true"})
    if running:
        repo.serve()
        worker = repo.worker("w1", "--label", "pool=worker")
    for kind in FOREIGN:
        repo.write(f"datastore/observed/{kind}/r.j.s.1.yaml", _foreign(kind, "r.j.s.1"))
        repo.write(f"datastore/desired/{kind}/r.j.s.1.yaml", _foreign(kind, "r.j.s.1"))
    if not running:
        server = repo.serve()
        worker = repo.worker("w1", "--label", "pool=worker")
        swept = [e for e in server.lines.events if e.get("kind") == "boot_sweep"]
        assert swept and swept[0]["counts"]["foreign"] == 3
    repo.swamp("workflow", "run", "good", "--server", repo.url)
    assert worker.lines.kinds("dispatch_") == ["dispatch_started", "dispatch_finished"]
    assert repo.json("worker", "queue") == []
    assert [
        run["workflowName"] for run in repo.json("run", "list", "--status", "succeeded")["runs"]
    ] == ["good"]


def test_git_sees_only_what_people_wrote_and_history(repo: Repo) -> None:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments],
            cwd=repo.path, check=True, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout

    git("init", "-q")
    repo.shell_workflow("good", {"step": "true"})
    token = repo.token("w1")
    (repo.base / "w1.token").write_text(token)
    git("add", "-A")
    git("commit", "-qm", "all")
    assert "datastore/desired/tokens/w1.yaml" in git("ls-files")
    assert token.partition(".")[2] not in git("grep", "-h", "")
    server = repo.serve()
    worker = repo.worker("w1", "--label", "pool=worker")
    repo.swamp("workflow", "run", "good", "--server", repo.url)

    def status() -> list[str]:
        return git("status", "--short", "--untracked-files=all").split()

    repo.until(lambda: status() != [], "the story, which is a little later than the run's end")
    assert status()[::2] == ["??"]
    assert Path(status()[1]).parts[:3] == ("datastore", "history", "good")
    worker.terminate(signal.SIGTERM)
    server.terminate(signal.SIGTERM)
