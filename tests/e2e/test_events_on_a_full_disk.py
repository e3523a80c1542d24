"""The events of runs have no room, while the journal and the files of records have."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Repo
from small_disk import fill_folder, mounted, unmount

QUEUE_TIMEOUT_S = 3.0


@pytest.fixture
def events(repo: Repo) -> Iterator[Path]:
    """The folder of events, on a small disk of its own."""
    folder = repo.path / ".swamp" / "events"
    folder.mkdir(parents=True, exist_ok=True)
    if not mounted(folder, "-t", "tmpfs", "-o", "size=256k", "none"):
        pytest.skip("mounting a small disk needs root and the right to mount")
    try:
        yield folder
    finally:
        unmount(folder)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_waits_fails_by_no_limit_while_results_cannot_be_taken(
    repo: Repo, events: Path, restarted: bool
) -> None:
    """Regression: results that waited for their events kept the slots; everything behind them
    failed, as no worker had been free, and nothing said why. Where the server was started again
    meanwhile, it failed still: then, all that time counted."""
    gate = repo.base / "gate"
    step = f"until [ -e {gate} ]; do sleep 0.05; done; seq 5000"
    repo.shell_workflow("w", {f"s{number}": step for number in range(4)})
    limit = ("--queue-timeout", f"{QUEUE_TIMEOUT_S:g}s")
    server = repo.serve(*limit)
    worker = repo.worker("w1", "--label", "pool=worker")
    run = repo.start("workflow", "run", "w", "--json")
    worker.lines.kind("dispatch_started")
    ballast = fill_folder(events)
    gate.touch()
    worker.lines.kind("dispatch_finished")
    repo.until(lambda: not _health(repo)["takesWork"], "the server says so")
    assert "events of runs cannot be written" in _health(repo)["degraded"]
    over_s = time.monotonic() + 2 * QUEUE_TIMEOUT_S
    repo.until(lambda: time.monotonic() > over_s)
    waiting = repo.json("worker", "queue")
    assert waiting and {one["reasonCode"] for one in waiting} == {"degraded"}
    status, refused = repo.posted("/api/v1/runs", json.dumps({"workflow": "w"}).encode())
    assert (status, refused["code"]) == (503, "degraded")
    # Regression: it waited for a slot, and said after minutes that there was no verdict.
    assert "nothing new is taken on" in repo.swamp("worker", "verify", "w1", code=1).stdout
    if restarted:
        server.stop()
        server = repo.serve(*limit)
    ballast.unlink()
    out, _ = run.communicate(timeout=60)
    view = json.loads(out[out.index("{\n") :])
    steps = view["jobs"][0]["steps"]
    assert [one["status"] for one in steps] == ["succeeded"] * 4
    assert _health(repo)["takesWork"]
    assert server.terminate() == 0


def _health(repo: Repo) -> dict[str, object]:
    with urllib.request.urlopen(f"{repo.url}/health", timeout=8) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def test_that_time_is_no_waiting_for_the_next_server_either(repo: Repo, events: Path) -> None:
    """Regression: it counted the time from when the step began to wait until the server's end."""
    repo.shell_workflow("w", {"s": "true"}, f"queueTimeout: {2 * QUEUE_TIMEOUT_S:g}\n")
    server = repo.serve()
    waiting = [repo.start("workflow", "run", "w", "--json")]
    repo.until(lambda: len(repo.json("worker", "queue")) == 1, "the first one")
    ballast = fill_folder(events)
    waiting.append(repo.start("workflow", "run", "w", "--json"))
    repo.until(lambda: not _health(repo)["takesWork"], "the server says so")
    over_s = time.monotonic() + 3 * QUEUE_TIMEOUT_S
    repo.until(lambda: time.monotonic() > over_s)
    ballast.unlink()
    assert server.terminate() == 0
    repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    for run in waiting:
        run.communicate(timeout=60)
    assert {one["status"]["state"] for one in repo.records("runs").values()} == {"succeeded"}


def test_prune_makes_room_for_events(repo: Repo, events: Path) -> None:
    """Regression: what it was to remove waited behind the events that found no room, for ever."""
    repo.shell_workflow("w", {"s": "seq 100"})
    repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    repo.swamp("workflow", "run", "w")
    (first,) = events.iterdir()
    fill_folder(events)
    run = repo.start("workflow", "run", "w", "--json")
    repo.until(lambda: not _health(repo)["takesWork"], "the server says so")
    repo.swamp("run", "prune", "--keep", "0")
    assert not first.exists()
    repo.until(lambda: bool(_health(repo)["takesWork"]), "there is room")
    run.communicate(timeout=60)
    assert run.returncode == 0
