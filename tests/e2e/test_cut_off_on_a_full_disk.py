"""A worker that loses its socket while the disk is full loses nothing that it runs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from harness import Repo
from proxy import Proxy
from small_disk import fill

GRACE_S = 6.0


def is_running(pid: Path) -> bool:
    try:
        os.kill(int(pid.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_kept_out_stops_what_was_cancelled_and_goes_on_with_the_rest(
    small: Repo, proxy: Proxy
) -> None:
    """Regression: for the step that nobody waited for, the other one was lost, and began again."""
    repo, gate, pids = small, small.base / "gate", small.base
    repo.shell_workflow(
        "stays",
        {"step": f"echo $$ >> {pids}/stays; until [ -e {gate} ]; do sleep 0.05; done"},
    )
    repo.shell_workflow("goes", {"step": f"echo $$ > {pids}/goes; exec sleep 600"})
    server = repo.serve("--grace", f"{GRACE_S:g}s")
    worker = repo.worker("w1", "--label", "pool=worker", "--concurrency", "2", port=proxy.port)
    stays = repo.start("workflow", "run", "stays", "--json")
    repo.start("workflow", "run", "goes")
    worker.lines.kind("dispatch_started", 2)
    repo.until(lambda: (pids / "stays").exists() and (pids / "goes").exists(), "both steps")
    of = {run["workflowName"]: run["runId"] for run in repo.json("run", "list")["runs"]}

    ballast = fill(repo)
    proxy.refuse()
    proxy.cut()
    worker.lines.kind("disconnected")
    repo.swamp("run", "cancel", of["goes"], code=None)
    proxy.refuse(False)
    repo.until(lambda: not is_running(pids / "goes"), "the end of what was cancelled")
    over_s = time.monotonic() + 2 * GRACE_S
    repo.until(lambda: time.monotonic() > over_s)
    assert is_running(pids / "stays"), "its window has been put off"
    ballast.unlink()
    worker.lines.kind("enrolled", 2)
    gate.touch()
    out, _ = stays.communicate(timeout=60)
    step = json.loads(out[out.index("{\n") :])["jobs"][0]["steps"][0]
    assert (step["status"], step["episodes"]) == ("succeeded", 1)
    assert len((pids / "stays").read_text().split()) == 1
    assert repo.json("run", "show", of["goes"])["status"] == "cancelled"
    assert server.terminate() == 0
    assert "Traceback" not in server.log()
