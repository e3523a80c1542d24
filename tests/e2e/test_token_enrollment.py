"""Enrollment tokens: their allowance, their ends, and one live process per machine."""

from __future__ import annotations

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import Proc, Repo


def connect(repo: Repo, token: str, cache: str, *arguments: str) -> Proc:
    """A worker on a machine of its own, the one that `cache` stands for."""
    repo.env["SWAMP_WORKER_TOKEN"] = token
    return repo._proc(
        "worker", "connect", f"ws://127.0.0.1:{repo.port}", "--json",
        "--cache-dir", str(repo.base / f"cache-{cache}"), *arguments,
    )  # fmt: skip


def stopped(worker: Proc, code: int) -> str:
    """Why the worker stopped, with that exit code."""
    assert worker.wait() == code, worker.log_path.read_text()
    return str(worker.lines.kind("stopped")["reason"])


def test_ten_at_once_bind_exactly_the_three_that_are_allowed(repo: Repo) -> None:
    repo.serve()
    token = repo.token("fleet", "--max-enrollments", "3")
    workers = [connect(repo, token, str(number)) for number in range(10)]

    def settled(worker: Proc) -> str:
        found = worker.lines.wait(lambda event: event.get("kind") in ("enrolled", "stopped"))
        return str(found["kind"])

    with ThreadPoolExecutor(10) as pool:
        kinds = list(pool.map(settled, workers))
    assert sorted(kinds) == ["enrolled"] * 3 + ["stopped"] * 7
    for worker, kind in zip(workers, kinds, strict=True):
        if kind == "stopped":
            assert stopped(worker, 3) == (
                "the enrollment allowance of token 'fleet' is exhausted (3 of 3 used)"
            )
    listed = repo.json("worker", "list")["workers"]
    assert len(listed) == 3
    assert {one["labels"]["fleet"] for one in listed} == {"fleet"}
    names = {one["name"] for one in listed}
    assert all(re.fullmatch(r"fleet-[0-9a-f]{16}", name) for name in names)
    assert repo.json("worker", "token", "list")[0]["bindingCount"] == 3

    # The same machine comes back under the same name, and takes no other place.
    again = kinds.index("enrolled")
    name = workers[again].lines.kind("enrolled")["workerId"]
    assert workers[again].terminate() == 0
    back = connect(repo, token, str(again), "--label", "fleet=mine")
    assert back.lines.kind("enrolled")["workerId"] == name
    mine = {one["name"]: one["labels"] for one in repo.json("worker", "list")["workers"]}
    assert mine[name] == {"fleet": "mine"}
    assert repo.json("worker", "token", "list")[0]["bindingCount"] == 3


def test_each_refusal_has_one_line_and_says_why(repo: Repo) -> None:
    repo.serve()
    revoked, short, right = repo.token("gone"), repo.token("w2"), repo.token("w3")
    repo.swamp("worker", "token", "revoke", "gone")
    file = repo.path / "datastore/desired/tokens/w2.yaml"
    file.write_text(re.sub(r"expiresAt: .*", 'expiresAt: "2020-01-01T00:00:00.000Z"',
                           file.read_text()))  # fmt: skip
    for token, reason in (
        ("nobody.secret", "enrollment token 'nobody' does not exist"),
        (revoked, "enrollment token 'gone' has been revoked"),
        (short, "enrollment token 'w2' has expired (2020-01-01T00:00:00.000Z)"),
        (right[:-1], "the secret does not match enrollment token 'w3'"),
    ):
        worker = connect(repo, token, "a")
        assert stopped(worker, 3) == reason
        assert len(worker.log_path.read_text().splitlines()) == 1
    assert repo.json("worker", "list", "--all")["count"] == 0


def test_the_end_of_a_token_cuts_its_worker_and_its_steps_end_by_the_rules(repo: Repo) -> None:
    repo.serve("--grace", "2s")
    repo.shell_workflow("slow", {"s": "sleep 60"})
    worker = repo.worker("w1", "--label", "pool=worker")
    other = repo.worker("w2", "--label", "pool=other")
    run = repo.start("workflow", "run", "slow")
    worker.lines.kind("dispatch_started")
    file = repo.path / "datastore/desired/tokens/w1.yaml"
    begun = time.monotonic()
    file.write_text(file.read_text() + "  revoked: true\n")
    assert stopped(worker, 3) == "enrollment token 'w1' has been revoked"
    # An event, and not the rescan after 30 s.
    assert time.monotonic() - begun < 15
    repo.until(lambda: len(repo.records("pending")) == 2, "the next episode of the step")
    assert [
        (one["status"]["state"], one["status"]["reason"]) for one in repo.records("leases").values()
    ] == [("expired", "worker lost: token 'w1' was revoked")]
    assert other.process.poll() is None
    run.kill()
    run.communicate()

    short = repo.json("worker", "token", "create", "w3", "--duration", "2s")["token"]
    third = connect(repo, short, "w3")
    third.lines.kind("enrolled")
    assert re.match(r"enrollment token 'w3' has expired", stopped(third, 3))


def test_a_second_process_of_a_machine_waits_while_the_first_one_answers(repo: Repo) -> None:
    repo.serve()
    first = repo.worker("w1")
    token = (repo.base / "w1.token").read_text()
    second = connect(repo, token, "w1")
    lost = second.lines.kind("disconnected")
    assert "connected already, from another process that is alive" in lost["reason"]
    assert first.lines.kinds("disconnected") == []
    instance = repo.json("worker", "list")["workers"][0]["instanceUuid"]

    first.process.send_signal(signal.SIGSTOP)
    # It does not answer for 2 s at the second one's next attempt: that takes its place.
    second.lines.kind("enrolled")
    listed = repo.json("worker", "list")["workers"]
    assert len(listed) == 1
    assert listed[0]["instanceUuid"] != instance
    first.process.send_signal(signal.SIGCONT)


def test_a_worker_that_dies_while_it_enrolls_leaves_nothing(repo: Repo, tmp_path: Path) -> None:
    """Beside what `test_hostile_workers` shows for each way of leaving."""
    repo.serve()
    token = repo.token("fleet", "--max-enrollments", "unlimited")
    for number in range(8):
        worker = connect(repo, token, f"x{number}")
        worker.lines.kind("connecting")
        worker.terminate(signal.SIGKILL)
    repo.until(lambda: repo.json("worker", "list")["count"] == 0, "all to be gone")
    assert connect(repo, token, "y").lines.kind("enrolled")
    bound = repo.json("worker", "token", "list")[0]
    assert bound["bindingCount"] == len(bound["bindings"])
