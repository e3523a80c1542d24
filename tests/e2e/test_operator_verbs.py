"""What operators ask by commands: a person's file says it, and it holds over restarts."""

from __future__ import annotations

import subprocess

from harness import Repo


def _placed(repo: Repo, name: str, pool: str) -> None:
    repo.shell_workflow(name, {"step": "true"})
    path = repo.path / f"workflows/{name}.yaml"
    path.write_text(path.read_text().replace("pool: worker", f"pool: {pool}"))


def _waits(repo: Repo) -> list[tuple[str, str]]:
    return [(one["workflowName"], one["reasonCode"]) for one in repo.json("worker", "queue")]


def test_a_paused_queue_waits_says_why_and_goes_on(repo: Repo) -> None:
    _placed(repo, "a", "a")
    _placed(repo, "b", "b")
    server = repo.serve()
    worker = repo.worker("w1", "--label", "pool=a")
    repo.worker("w2", "--label", "pool=b")
    paused = repo.json("queue", "pause", "--label", "pool=a", "--note", "disk swap")
    assert (paused["inForce"], paused["labels"]) == (True, {"pool": "a"})
    file = repo.path / paused["path"]
    assert "note: disk swap" in file.read_text()
    run = repo.start("workflow", "run", "a")
    repo.swamp("workflow", "run", "b")
    repo.until(lambda: _waits(repo) == [("a", "paused")], "the paused step")
    assert repo.json("worker", "queue")[0]["reason"] == "the queue is paused (pool-a): disk swap"
    demand = {one["requirement"]: one for one in repo.json("worker", "demand")}
    assert (demand["pool=a"]["blocked"], demand["pool=a"]["freeSlots"]) == (1, 1)

    server.terminate()
    assert [one["state"] for one in repo.json("queue", "list")] == ["paused"]
    repo.serve()
    worker.lines.kind("enrolled", 2)
    repo.until(lambda: _waits(repo) == [("a", "paused")], "the step paused over a restart")
    file.unlink()
    repo.swamp("worker", "list")
    assert _waits(repo) == [("a", "paused")], "a file that is gone changes nothing"
    refused = repo.swamp("queue", "resume", code=1)
    assert "nothing is paused for the whole queue; paused now: pool=a (pool-a)" in refused.stderr
    resumed = repo.json("queue", "resume", "--label", "pool=a")
    assert resumed["state"] == "resumed"
    assert [one["name"] for one in repo.json("queue", "list")] == ["pool-a"]
    assert run.wait(30) == 0


def test_everything_can_be_paused_with_the_server_stopped(repo: Repo) -> None:
    _placed(repo, "a", "a")
    asked = repo.swamp("queue", "pause", "--note", "later")
    assert "at the next start of `swamp serve`" in asked.stdout
    repo.serve()
    repo.worker("w1", "--label", "pool=a")
    run = repo.start("workflow", "run", "a")
    repo.until(lambda: _waits(repo) == [("a", "paused")], "the paused step")
    repo.write(
        "datastore/desired/pauses/all.yaml",
        (repo.path / "datastore/desired/pauses/all.yaml").read_text().replace("true", "false"),
    )
    assert run.wait(30) == 0, "an editor resumes as well as the command"


def test_a_cordoned_worker_gets_nothing_and_its_note_is_told(repo: Repo) -> None:
    _placed(repo, "a", "a")
    repo.serve()
    worker = repo.worker("w1", "--label", "pool=a")
    repo.swamp("worker", "cordon", "w1", "--note", "bad disk")
    listed = repo.json("worker", "list")["workers"][0]
    assert (listed["status"], listed["note"]) == ("cordoned", "bad disk")
    run = repo.start("workflow", "run", "a")
    repo.until(lambda: _waits(repo) == [("a", "cordoned")], "the waiting step")
    assert "1 cordoned (bad disk)" in repo.json("worker", "queue")[0]["reason"]
    told = repo.json("worker", "queue", "--explain", "a/job/step")
    assert told["workers"] == [{"worker": "w1", "verdict": "cordoned", "detail": "bad disk"}]
    file = repo.path / "datastore/desired/workers/w1.yaml"
    file.write_text(file.read_text() + "# mine\n")
    repo.swamp("worker", "uncordon", "--label", "pool=a")
    assert run.wait(30) == 0
    assert file.read_text().endswith("# mine\n")
    assert worker.lines.kinds("dispatch_")[0] == "dispatch_started"


def test_wrong_asks_are_told_in_one_line(repo: Repo) -> None:
    repo.serve()
    for arguments, code, said in (
        (["worker", "cordon", "nobody"], 1, "no worker 'nobody' is known here"),
        (["worker", "cordon"], 2, "either a worker's name or --label"),
        (["queue", "pause", "--label", "pool"], 2, "expected KEY=VALUE"),
    ):
        done: subprocess.CompletedProcess[str] = repo.swamp(*arguments, code=code)
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_an_ask_of_nobody_and_a_broken_file_are_told_as_events(repo: Repo) -> None:
    server = repo.serve()
    repo.write("datastore/desired/workers/nosuch.yaml", "spec: {schedulable: false}\n")
    told = server.lines.wait(lambda event: "nosuch" in str(event.get("message")))
    assert told["kind"] == "warning"
    assert told["message"] == (
        "datastore/desired/workers/nosuch.yaml changes nothing for now: there is no Worker 'nosuch'"
    )
    repo.write("workflows/tab.yaml", "name: a\njobs:\n\t- x\n")
    told = server.lines.wait(lambda event: "tab.yaml:3:1" in str(event.get("message")))
    assert "indent with spaces" in told["message"]
