"""A server or worker whose output nobody reads any more works on, and ends in order."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from harness import SWAMP, Repo


@pytest.mark.parametrize("with_stderr", [True, False])
def test_a_worker_whose_pipe_was_closed_works_on_and_drains(repo: Repo, with_stderr: bool) -> None:
    repo.shell_workflow("w", {"step": "true"})
    repo.serve()
    log = repo.base / "worker.log"
    reads, writes = os.pipe()
    with log.open("w") as kept:
        worker = subprocess.Popen(
            [
                *SWAMP, "worker", "connect", f"ws://127.0.0.1:{repo.port}",
                "--token", repo.token("w1"), "--label", "pool=worker",
            ],
            cwd=repo.path,
            env=repo.env,
            stdin=subprocess.DEVNULL,
            stdout=writes,
            stderr=writes if with_stderr else kept,
        )  # fmt: skip
    os.close(writes)
    try:
        os.read(reads, 1)
        os.close(reads)
        repo.until(lambda: bool(repo.json("worker", "list")["workers"]), "it enrolls")
        for _ in range(2):
            repo.swamp("workflow", "run", "w")
        leases = repo.records("leases").values()
        assert [lease["status"]["state"] for lease in leases] == ["completed"] * 2
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    finally:
        worker.kill()
        worker.wait()
    said = log.read_text().splitlines()
    gone = "Whoever read stdout has gone: nothing more is printed there"
    assert said == ([] if with_stderr else [gone])
