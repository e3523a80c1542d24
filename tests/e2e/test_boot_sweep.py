"""After a crash every record tells the truth again, runs go on, and nothing runs twice."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from harness import Proc, Repo


def _swept(server: Proc) -> list[dict[str, Any]]:
    return [event for event in server.lines.events if event.get("kind") == "boot_sweep"]


def _local(repo: Repo, name: str, run: str) -> None:
    repo.write(
        f"workflows/{name}.yaml",
        f"name: {name}\njobs:\n  - name: j\n    steps:\n      - name: s\n        task: {{type:"
        f" model_method, modelType: command/shell, modelName: {name}, methodName: execute,"
        f" inputs: {{run: {json.dumps(run)}}}}}\n",
    )


def _placed(repo: Repo, name: str, pool: str, run: str) -> None:
    repo.shell_workflow(name, {"s": f"echo {name} >> {repo.base / 'ran'}; {run}"})
    path = repo.path / f"workflows/{name}.yaml"
    path.write_text(path.read_text().replace("pool: worker", f"pool: {pool}"))


def _leases(repo: Repo) -> dict[str, str]:
    return {
        record["spec"]["workflow"]: record["status"]["state"]
        for record in repo.records("leases").values()
    }


def test_kill_9_with_records_of_all_kinds(repo: Repo) -> None:
    go = repo.base / "go"
    until_go = f"until [ -e {go} ]; do sleep 0.05; done"
    _placed(repo, "waits", "late", "true")
    _placed(repo, "active", "a", until_go)
    _placed(repo, "bound", "frozen", "true")
    _placed(repo, "done", "a", "true")
    _local(repo, "here", "sleep 60")
    server = repo.serve()
    active = repo.worker("w1", "--label", "pool=a", "--concurrency", "2")
    frozen = repo.worker("w2", "--label", "pool=frozen")
    repo.swamp("workflow", "run", "done")
    frozen.process.send_signal(signal.SIGSTOP)
    runs = {
        name: repo.start("workflow", "run", name) for name in ("waits", "active", "bound", "here")
    }
    expected = {"done": "completed", "active": "active", "bound": "bound"}
    repo.until(lambda: _leases(repo) == expected, "leases in all states")
    states = lambda kind: sorted(r["status"]["state"] for r in repo.records(kind).values())  # noqa: E731
    repo.until(lambda: "waiting" in states("pending") and "running" in states("steps"), "the rest")
    server.terminate(signal.SIGKILL)

    again = repo.serve()
    assert len(_swept(again)) == 1, "one line with a count for each"
    assert _swept(again)[0]["counts"] == {
        "disconnected": 2, "orphaned": 1, "recovering": 2, "local": 1,
    }  # fmt: skip
    active.lines.kind("enrolled", 2)
    repo.until(lambda: _leases(repo)["active"] == "active", "the lease active again")
    frozen.process.send_signal(signal.SIGCONT)
    repo.worker("w3", "--label", "pool=late")
    go.touch()
    codes = {name: run.wait(60) for name, run in runs.items()}
    assert codes == {"waits": 0, "active": 0, "bound": 0, "here": 1}
    ran = (repo.base / "ran").read_text().split()
    assert sorted(ran) == ["active", "bound", "done", "waits"], "each ran exactly once"
    errors = [
        step["status"]["error"]
        for step in repo.records("steps").values()
        if step["spec"]["workflow"] == "here"
    ]
    assert errors == ["orchestrator restart: it ran on the server itself"]


def test_without_recovery_active_leases_end_at_once(repo: Repo) -> None:
    _placed(repo, "long", "a", repo.long_at_first)
    server = repo.serve()
    repo.worker("w1", "--label", "pool=a")
    run = repo.start("workflow", "run", "long", "--json")
    repo.until_begun()
    server.terminate(signal.SIGKILL)
    again = repo.serve("--recover-leases", "0")
    assert _swept(again)[0]["counts"]["expired"] == 1
    out, _ = run.communicate(timeout=30)
    step = json.loads(out[out.index("{\n") :])["jobs"][0]["steps"][0]
    assert step["status"] == "succeeded"
    ended = [record["status"] for record in repo.records("leases").values()]
    reasons = sorted((status["state"], status["reason"]) for status in ended)
    # The worker may be busy for a moment, with killing the runner whose lease has ended.
    assert [one for one in reasons if one[0] != "refused"] == [
        ("completed", "completed"),
        ("expired", "orchestrator restart"),
    ]


def test_a_corrupt_record_is_a_warning_that_names_it(repo: Repo) -> None:
    server = repo.serve()
    server.terminate()
    repo.write("datastore/observed/leases/broken.yaml", "kind: [\n")
    again = repo.serve()
    warnings = [e["message"] for e in again.lines.events if e.get("kind") == "warning"]
    # A rescan, which may be done by now, adds that it ignores the file.
    assert [one.partition(":")[0] for one in warnings if ":" in one] == [
        "datastore/observed/leases/broken.yaml"
    ]
    assert repo.json("worker", "list")["count"] == 0


def test_journal_and_index_may_go_after_a_clean_stop(repo: Repo) -> None:
    _placed(repo, "done", "a", "true")
    _placed(repo, "waits", "late", "true")
    server = repo.serve()
    worker = repo.worker("w1", "--label", "pool=a")
    repo.swamp("workflow", "run", "done")
    waiting = repo.start("workflow", "run", "waits")
    repo.until(lambda: repo.json("worker", "queue") != [], "the waiting step")
    waiting.kill()
    waiting.wait()
    worker.terminate()
    server.terminate()
    before = {kind: repo.records(kind) for kind in ("runs", "steps", "leases", "tokens")}
    (repo.path / ".swamp/journal.db").unlink()
    second = repo.serve()
    assert _swept(second)[0]["counts"] == {"orphaned": 1}
    assert repo.json("worker", "queue") != [], "the run goes on"
    second.terminate()
    assert {kind: repo.records(kind) for kind in before} == before
    for name in ("journal.db", "index.db"):
        (repo.path / ".swamp" / name).unlink()
    third = repo.serve()
    # The run, its waiting dispatch: what was live is ended, and counted.
    assert _swept(third)[0]["counts"]["foreign"] >= 2
    assert repo.json("worker", "queue") == []
    states = {r["workflowName"]: r["status"] for r in repo.json("run", "list")["runs"]}
    assert states == {"done": "succeeded", "waits": "failed"}
    assert repo.records("tokens") == before["tokens"]
    clean = third.terminate()
    assert clean == 0
    assert _swept(repo.serve()) == [], "a clean boot says nothing"


def test_a_token_stays_valid_without_journal_and_index_and_that_is_what_is_said(
    repo: Repo,
) -> None:
    server = repo.serve()
    token = repo.token("w1")
    repo.until(lambda: "w1" in repo.records("tokens"), "the token's record")
    server.terminate()
    for name in ("journal.db", "index.db"):
        for path in (repo.path / ".swamp").glob(f"{name}*"):
            path.unlink()
    file = repo.path / "datastore/observed/tokens/w1.yaml"
    hour_ago = time.time() - 3600
    os.utime(file, (hour_ago, hour_ago))
    found = [one for one in repo.json("doctor")["findings"] if one["check"] == "orphans"]
    assert [one["message"].split()[0] for one in found] == ["datastore/observed/tokens/w1.yaml"]
    assert "takes it over" in found[0]["wayOut"]

    server = repo.serve()
    (repo.base / "w1.token").write_text(token)
    repo.worker("w1")
    assert "tokens/w1.yaml was not written by this server and is taken over" in server.log()
    assert "is ignored" not in server.log()
    assert _swept(server) == []
    assert [one["level"] for one in repo.json("doctor")["findings"] if one["level"] != "ok"] == []


def test_a_run_that_nobody_vouches_for_ends_like_every_other_and_is_told(repo: Repo) -> None:
    _placed(repo, "nobody", "late", "true")
    server = repo.serve()
    follower = repo.start("workflow", "run", "nobody")
    repo.until(lambda: repo.json("worker", "queue") != [], "the waiting step")
    server.terminate()
    for path in (repo.path / ".swamp").glob("index.db*"):
        path.unlink()
    second = repo.serve()
    out, _ = follower.communicate(timeout=30)
    assert "cancelled s" in out
    assert "neither its journal nor its index knew of it" in out
    assert "Traceback" not in out
    run = repo.json("run", "list")["runs"][0]
    assert run["status"] == "failed"
    assert run["durationMs"] > 0
    log = repo.path / ".swamp/events" / f"{run['runId']}.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["kind"] for event in events[-3:]] == [
        "step_cancelled", "job_completed", "run_completed",
    ]  # fmt: skip
    assert events[-1]["failure"].startswith("ended at a start of the server: neither its journal")
    story = repo.path / "datastore/history/nobody" / f"{run['runId']}.yaml"
    repo.until(story.exists, "the story")
    assert "state: orphaned" in story.read_text()
    assert repo.json("run", "watch", run["runId"], code=1)["status"] == "failed"

    # A kill between the sweep and the event: the next start tells it, and once.
    second.terminate(signal.SIGKILL)
    log.write_text("".join(json.dumps(event) + "\n" for event in events[:-3]))
    repo.serve()
    assert "Failed workflow nobody in" in repo.swamp("run", "watch", run["runId"], code=1).stdout
    again = [json.loads(line)["key"] for line in log.read_text().splitlines()]
    assert again == [event["key"] for event in events]
    log.unlink()
    assert "Failed workflow nobody in" in repo.swamp("run", "watch", run["runId"], code=1).stdout
