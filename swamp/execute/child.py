"""A child process whose end the kernel tells the event loop, without a thread or a signal.

Unlike the processes of asyncio it has no transports of its own: its streams are the caller's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache

from swamp.execute.processes import Birth


class Child:
    """A started child; it leads a session and a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self.birth = Birth.of(process.pid)
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        pidfd = _pidfd(process.pid)
        if pidfd is None:
            threading.Thread(target=self._wait_blocking, daemon=True).start()
        else:
            self._loop.add_reader(pidfd, self._reap, pidfd)

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.returncode if self._ended.is_set() else None

    async def wait(self) -> int:
        """The exit code, once it has ended."""
        await self._ended.wait()
        return self._process.returncode

    def _reap(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._process.wait()
        self._ended.set()

    def _wait_blocking(self) -> None:
        self._process.wait()
        with suppress(RuntimeError):
            # The loop may be closed by now: then nobody waits any more.
            self._loop.call_soon_threadsafe(self._ended.set)


def start_child(
    command: Sequence[str],
    directory: str,
    environment: Mapping[str, str],
    output: tuple[int, int],
) -> Child:
    """Start it with nothing to read and its two output streams; OSError when that fails."""
    process = subprocess.Popen(
        command,
        stdin=_nothing(),
        stdout=output[0],
        stderr=output[1],
        cwd=directory,
        env=environment,
        start_new_session=True,
    )
    try:
        return Child(process)
    except BaseException:
        # Nobody would be told of its end, nor know that it is there.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


@cache
def _nothing() -> int:
    """/dev/null, opened once for all children."""
    return os.open(os.devnull, os.O_RDONLY)


def _pidfd(pid: int) -> int | None:
    if sys.platform == "linux":
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None
