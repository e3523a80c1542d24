"""Drain and forget: sticky, honest about work in flight, and with their way back."""

from __future__ import annotations

from harness import Repo


def status(repo: Repo, name: str = "w1") -> tuple[str, int]:
    """What the list says of a worker: its status, and how much it runs."""
    for one in repo.json("worker", "list", "--all")["workers"]:
        if one["name"] == name:
            return one["status"], len(one["activeDispatchIds"])
    return "unknown", 0


def test_a_drained_worker_finishes_leaves_and_stays_away_until_it_is_taken_back(
    repo: Repo,
) -> None:
    repo.serve()
    gate = repo.base / "gate"
    repo.shell_workflow("w", {"s": f"until [ -e {gate} ]; do sleep 0.05; done; echo done"})
    worker = repo.worker("w1", "--label", "pool=worker", "--concurrency", "2")
    first = repo.start("workflow", "run", "w")
    worker.lines.kind("dispatch_started")
    drained = repo.json("worker", "drain", "w1", "--note", "new kernel")
    assert drained["workers"][0]["inForce"]
    told = worker.lines.kind("draining")
    assert (told["reason"], told["detail"]) == ("shutdown", "drained by an operator: new kernel")
    assert status(repo) == ("draining", 1)
    repo.shell_workflow("next", {"s": "true"})
    second = repo.start("workflow", "run", "next")
    repo.until(
        lambda: [one["reasonCode"] for one in repo.json("worker", "queue")] == ["draining"],
        "the second run to wait",
    )
    assert "new kernel" in repo.json("worker", "queue")[0]["reason"]
    gate.touch()
    assert first.wait(30) == 0
    assert worker.wait() == 0
    repo.until(lambda: status(repo) == ("disconnected", 0), "the worker to be gone")

    # Whenever it comes back, it leaves again.
    again = repo.worker("w1", "--label", "pool=worker")
    assert again.wait() == 0
    assert again.lines.kinds("dispatch_") == []
    assert second.poll() is None

    file = repo.path / "datastore/desired/workers/w1.yaml"
    file.write_text(file.read_text() + "# mine\n")
    repo.swamp("worker", "uncordon", "w1")
    assert "# mine" in file.read_text()
    repo.worker("w1", "--label", "pool=worker")
    assert second.wait(30) == 0
    for run in (first, second):
        run.communicate()


def test_drain_by_label_and_without_a_server(repo: Repo) -> None:
    server = repo.serve()
    workers = [repo.worker(name, "--label", "rack=7") for name in ("w1", "w2")]
    other = repo.worker("w3", "--label", "rack=8")
    assert repo.json("worker", "drain", "--label", "rack=7")["count"] == 2
    assert [worker.wait() for worker in workers] == [0, 0]
    server.terminate()
    repo.swamp("worker", "drain", "w3")
    repo.serve()
    assert other.wait() == 0


def test_a_forgotten_worker_makes_room_for_another_machine(repo: Repo) -> None:
    server = repo.serve()
    worker = repo.worker("w1")
    refused = repo.swamp("worker", "forget", "w1", code=1).stderr
    assert "is connected: drain it first" in refused
    worker.terminate()
    repo.until(lambda: status(repo)[0] == "disconnected", "the worker to be gone")
    assert repo.json("worker", "forget", "w1") == {"name": "w1", "token": "w1"}
    assert status(repo) == ("unknown", 0)
    token = repo.json("worker", "token", "list")[0]
    assert (token["state"], token["bindingCount"]) == ("unused", 0)
    assert "no worker 'w1'" in repo.swamp("worker", "forget", "w1", code=1).stderr
    repo.until(lambda: not repo.records("workers"), "its file to be gone")

    other = repo.worker("w1", "--cache-dir", str(repo.base / "another-machine"))
    assert repo.json("worker", "drain", "w1")["workers"][0]["inForce"]
    assert other.wait() == 0
    repo.until(lambda: status(repo)[0] == "disconnected", "the second machine to be gone")
    assert repo.json("worker", "forget", "w1") == {"name": "w1", "token": "w1"}
    assert not (repo.path / "datastore/desired/workers/w1.yaml").exists()

    # What was asked of the one before is not asked of this one.
    third = repo.worker("w1", "--cache-dir", str(repo.base / "a-third-machine"))
    assert status(repo) == ("idle", 0)
    third.terminate()
    server.terminate()
    assert repo.json("worker", "forget", "w1")["name"] == "w1"
    assert repo.json("worker", "list", "--all")["count"] == 0
