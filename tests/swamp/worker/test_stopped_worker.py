"""A worker that is stopped between taking a step and beginning it does not begin it any more."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from fake_orchestrator import Orchestrator, shell

from swamp.protocol import Accepted, ResultFrame

PROGRAM = """
import asyncio, os, signal, sys, threading
from pathlib import Path
from swamp.execute.execution import Execution
from swamp.execute.leftovers import Leftovers
from swamp.worker.connect import run_worker
from swamp.worker.guarding import Guard
from swamp.worker.options import WorkerOptions
from swamp.worker.runners import Runners
from swamp.worker.worker import Worker

url, cache, where = sys.argv[1:]
put_off = threading.Event()

def stop_before(owner, name):
    function = getattr(owner, name)
    def stopped(*arguments):
        setattr(owner, name, function)
        os.kill(os.getpid(), signal.SIGSTOP)
        return function(*arguments)
    setattr(owner, name, stopped)

if where == "taken":
    stop_before(Runners, "take")
elif where == "run":
    stop_before(Execution, "run")
elif where == "asked":
    stop_before(Guard, "too_late")
elif where == "forked":
    stop_before(Execution, "_spawn")
elif where == "noted":
    stop_before(Guard, "spawned")
else:
    # The disk takes until the worker has said that it lives on.
    make, say = Leftovers._make, Worker._put_off
    def slow(self):
        put_off.clear()
        os.kill(os.getpid(), signal.SIGSTOP)
        put_off.wait()
        return make(self)
    def said(*arguments):
        say(*arguments)
        put_off.set()
    Leftovers._make, Worker._put_off = slow, said

options = WorkerOptions(url=url, token="t.s", cache_dir=Path(cache))
sys.exit(asyncio.run(run_worker(options, lambda event: None)))
"""


def stopped(pid: int) -> None:
    """Returns once our child is stopped."""
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


@pytest.mark.parametrize("where", ["taken", "run", "folder", "asked", "forked", "noted"])
async def test_whatever_moment_it_is_stopped_in(
    orchestrator: Orchestrator, tmp_path: Path, where: str
) -> None:
    """Regression: the same step was begun elsewhere meanwhile, and then here as well."""
    orchestrator.grace_s, orchestrator.heartbeat_s = 1.0, 1.0
    ended = tmp_path / "ended"
    cache = str(tmp_path / "cache")
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, orchestrator.url, cache, where
    )
    try:
        socket = await orchestrator.enrolled()
        await socket.send(shell("d1", f"sleep 2; touch {ended}"))
        async with asyncio.timeout(10):
            await asyncio.to_thread(stopped, worker.pid)
        await asyncio.sleep(orchestrator.grace_s + orchestrator.heartbeat_s / 2)
        os.kill(worker.pid, signal.SIGCONT)
        frame: Accepted | ResultFrame = await socket.expect(Accepted)
        while isinstance(frame, Accepted):
            frame = await socket.expect(Accepted | ResultFrame)  # type: ignore[arg-type]
        assert frame.outcome.reason == "worker_lost"
        assert not ended.exists()
    finally:
        worker.kill()
        await worker.wait()
