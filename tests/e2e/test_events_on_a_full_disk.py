"""The events of runs have no room, while the journal and the files of records have."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import pytest
from harness import Repo
from small_disk import fill_folder, mounted, unmount

QUEUE_TIMEOUT_S = 3.0


def test_what_waits_fails_by_no_limit_while_results_cannot_be_taken(repo: Repo) -> None:
    """Regression: results that waited for their events kept the slots; everything behind them
    failed, as no worker had been free, and nothing said why."""
    events, gate = repo.path / ".swamp" / "events", repo.base / "gate"
    events.mkdir(parents=True, exist_ok=True)
    if not mounted(events, "-t", "tmpfs", "-o", "size=256k", "none"):
        pytest.skip("mounting a small disk needs root and the right to mount")
    try:
        _hold_and_go_on(repo, events, gate)
    finally:
        unmount(events)


def _hold_and_go_on(repo: Repo, events: Path, gate: Path) -> None:
    step = f"until [ -e {gate} ]; do sleep 0.05; done; seq 5000"
    repo.shell_workflow("w", {f"s{number}": step for number in range(4)})
    server = repo.serve("--queue-timeout", f"{QUEUE_TIMEOUT_S:g}s")
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
