"""A worker shows that it works, end to end, when it is asked to or before it gets steps."""

from __future__ import annotations

from typing import Any

from harness import Repo
from proxy import Proxy

NOTHING: dict[str, Any] = {}


def listed(repo: Repo, name: str = "w1") -> dict[str, Any]:
    """What `worker list` says of a worker."""
    workers = repo.json("worker", "list", "--all")["workers"]
    return next((one for one in workers if one["name"] == name), NOTHING)


def left_of_probes(repo: Repo) -> list[str]:
    """Every file that speaks of a probe: records, events, outputs."""
    places = ("datastore/observed/pending", "datastore/observed/leases", ".swamp/data")
    found = [path for place in places for path in (repo.path / place).rglob("*")]
    found += (repo.path / ".swamp").rglob("*.jsonl")
    return [str(path) for path in found if "probe" in str(path) and path.is_file()]


def test_workers_that_work_are_verified_and_get_steps_then(repo: Repo) -> None:
    repo.serve("--verify-on-enroll")
    repo.shell_workflow("w", {"s": "echo done"})
    run = repo.start("workflow", "run", "w")
    workers = [repo.worker(name, "--label", "pool=worker") for name in ("w1", "w2")]
    assert run.wait(30) == 0
    run.communicate()
    repo.until(lambda: {listed(repo, w)["status"] for w in ("w1", "w2")} == {"idle"}, "both")
    for worker in workers:
        assert worker.lines.kind("dispatch_started")["modelType"] == "swamp/fleet-probe"
    assert "verifiedAt" in repo.records("workers")["w1"]["status"]

    answer = repo.json("worker", "verify")
    assert (answer["total"], answer["passed"], answer["failed"]) == (2, 2, 0)
    for verdict, name in zip(answer["workers"], ("w1", "w2"), strict=True):
        assert verdict.items() >= {"name": name, "status": "pass"}.items()
        assert verdict["probeMarkerOk"] and verdict["outputOk"] and verdict["dataPlaneOk"]
        assert verdict["platform"] == listed(repo, name)["platform"]
        assert verdict["arch"] == listed(repo, name)["arch"]
    said = repo.swamp("worker", "verify", "w2").stdout
    assert said.startswith("w2: pass (") and said.endswith("1 of 1 passed\n")
    assert repo.json("worker", "verify", "--label", "pool=none", code=1)["total"] == 0
    assert "no worker 'w9'" in repo.swamp("worker", "verify", "w9", code=1).stderr
    repo.until(lambda: not left_of_probes(repo), f"nothing to stay: {left_of_probes(repo)}")
    assert [one["workflowName"] for one in repo.json("run", "list")["runs"]] == ["w"]


def test_a_worker_that_cannot_reach_the_data_plane_gets_no_step_until_it_can(
    repo: Repo, proxy: Proxy
) -> None:
    repo.serve("--verify-on-enroll")
    proxy.let_through(1)
    worker = repo.worker("w1", "--label", "pool=worker", port=proxy.port)
    repo.until(lambda: "verifyFailureReason" in listed(repo), "the verdict")
    assert listed(repo)["status"] == "unverified"
    assert "the data plane: no answer from 127.0.0.1" in listed(repo)["verifyFailureReason"]
    assert "probe failed: the data plane" in repo.swamp("worker", "list").stdout

    repo.shell_workflow("w", {"s": "echo done"})
    run = repo.start("workflow", "run", "w")
    repo.until(
        lambda: [one["reasonCode"] for one in repo.json("worker", "queue")] == ["unverified"],
        "the step to wait",
    )
    waiting = repo.json("worker", "queue")[0]["queueId"]
    verdicts = repo.json("worker", "queue", "--explain", waiting)["workers"]
    assert [one["verdict"] for one in verdicts] == ["unverified"]

    failed = repo.json("worker", "verify", "w1", code=1)
    assert (failed["passed"], failed["failed"]) == (0, 1)
    assert failed["workers"][0]["status"] == "fail"
    assert failed["workers"][0]["dataPlaneOk"] is False
    assert failed["workers"][0]["outputOk"] and failed["workers"][0]["probeMarkerOk"]
    assert run.poll() is None
    kinds = [event["kind"] for event in worker.lines.events]
    assert kinds.count("dispatch_started") == 2, "two probes and nothing else"

    proxy.let_through(None)
    assert repo.json("worker", "verify", "w1")["passed"] == 1
    assert run.wait(30) == 0
    run.communicate()
    assert listed(repo)["status"] == "idle"
    assert "verifyFailureReason" not in listed(repo)
