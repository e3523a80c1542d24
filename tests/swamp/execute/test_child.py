"""A child that cannot be attended to does not live on."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from datastore.kinds import Call
from swamp.execute import child
from swamp.execute.calls import ShellCall
from swamp.execute.execution import Execution, Host, Order


async def _nowhere(stream: str, data: bytes) -> None:
    pass


async def test_a_process_whose_end_nobody_would_be_told_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: where neither a file nor a thread more may be had once it is started, the step
    had failed, and its process ran on without anybody who knew of it."""
    started: list[subprocess.Popen[bytes]] = []
    popen, start = subprocess.Popen, threading.Thread.start

    def noted(*given: Any, **options: Any) -> Any:
        started.append(popen(*given, **options))
        return started[-1]

    def no_file(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def no_thread(thread: threading.Thread) -> None:
        if getattr(thread, "_target").__name__ == "_wait_blocking":  # noqa: B009
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(child.subprocess, "Popen", noted)
    monkeypatch.setattr(os, "pidfd_open", no_file)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    call = Call(
        model_type="command/shell", model="m", method="execute", arguments={"run": "exec sleep 600"}
    )
    order = Order("r1.j.s.1", ShellCall.parse(call), dict(os.environ))
    with pytest.raises(RuntimeError, match="thread"):
        await Execution(order, _nowhere, Host(tmp_path)).run()
    (process,) = started
    try:
        assert process.returncode == -9
    finally:
        process.kill()
        process.wait()
