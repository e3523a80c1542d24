"""Runs a worker in this process: its folders, its guard, its signals."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from datastore.regular_file import NO_FILE_MORE
from swamp.execute.execution import Host
from swamp.execute.removal import remove_tree
from swamp.execute.scratch import Scratch, take_scratch
from swamp.open_files import raise_limit
from swamp.stop_signals import stop_signals
from swamp.traces import Traces, open_traces
from swamp.worker.guarding import Guard
from swamp.worker.machine import next_process
from swamp.worker.options import BadOptions, WorkerOptions
from swamp.worker.worker import EXIT_DRAINED, Worker

_FILES_OF_A_WORKER, _FILES_OF_A_SLOT = 48, 4
"""Open files: two pipes and a process for each step, and what starting one takes for a moment."""
_FILES_WITHIN_S, _AGAIN_S = 30.0, 1.0
"""How long, and how often, it is tried to start a step where no file more may be open."""
_LEFT = (
    "an earlier worker of this cache folder was killed with its guard: ended the {} processes left"
)


async def run_worker(
    options: WorkerOptions,
    report: Callable[[dict[str, Any]], None],
    randomness: random.Random | None = None,
) -> int:
    """Work until the end; the exit code: 0 drained, 1 cut off, 3 refused for good, 4 forced.

    `report` gets each event as a dictionary, `kind` first. SwampError when it cannot even start.
    """
    _have_room(options.concurrency)
    async with _folders(options.cache_dir) as (cache, scratch), _traces() as traces:
        machine = await asyncio.to_thread(next_process, cache)
        if scratch.killed:
            report({"kind": "warning", "message": _LEFT.format(scratch.killed)})
        if scratch.warning is not None:
            report({"kind": "warning", "message": scratch.warning})
        guard = Guard(options.ca_cert)
        again = partial(_once_files_may_be_open, report)
        host = Host(scratch.folder, guard, traces=traces, family=scratch.family, came_room=again)
        worker = Worker(options, machine, host, report, randomness or random.Random())
        async with guard.running():
            with _signals_to(worker):
                code = await worker.run()
                if code == EXIT_DRAINED:
                    guard.over()
                return code


def _have_room(slots: int) -> None:
    """Have as many open files as the slots may need; BadOptions where the machine refuses."""
    wanted = _FILES_OF_A_WORKER + _FILES_OF_A_SLOT * slots
    allowed = raise_limit(wanted)
    if allowed < wanted:
        fits = max(0, allowed - _FILES_OF_A_WORKER) // _FILES_OF_A_SLOT
        raise BadOptions(
            f"{slots} steps at once need up to {wanted} open files, but this process may have"
            f" {allowed}: raise that (ulimit -n)"
            + (f", or take --concurrency {fits}" if fits else "")
        )


async def _once_files_may_be_open(
    report: Callable[[dict[str, Any]], None], error: OSError, waited_s: float
) -> bool:
    """Whether a step that could not be started is tried again: for a while, as that may pass.

    A worker has the files that its slots need. If it is refused one all the same, the machine has
    none, for a moment say: that is no fault of the step.
    """
    if error.errno not in NO_FILE_MORE or waited_s >= _FILES_WITHIN_S:
        return False
    if not waited_s:
        why = f"{os.strerror(error.errno)}; it is tried again for {_FILES_WITHIN_S:.0f} s"
        report({"kind": "warning", "message": f"a step cannot be started just now: {why}"})
    await asyncio.sleep(_AGAIN_S)
    return True


@contextmanager
def _signals_to(worker: Worker) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = stop_signals()
    for number in numbers:
        take = worker.hang_up if number == signal.SIGHUP else worker.signal
        loop.add_signal_handler(number, take)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _traces() -> AsyncIterator[Traces | None]:
    """Traces if the environment asks for them; what waits is exported at the end."""
    traces = await asyncio.to_thread(open_traces, "swamp-worker")
    try:
        yield traces
    finally:
        if traces is not None:
            await asyncio.to_thread(traces.close)


@asynccontextmanager
async def _folders(cache_dir: Path | None) -> AsyncIterator[tuple[Path, Scratch]]:
    """The cache folder, and inside of it one for the scratch folders of this process alone.

    What dead workers of the cache folder left running is killed before.
    """
    own = cache_dir is None
    cache = cache_dir or Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="swamp-worker-"))
    try:
        scratch = await asyncio.to_thread(take_scratch, cache)
    except OSError as error:
        raise BadOptions(f"the cache folder {cache} cannot be used: {error.strerror}") from error
    try:
        yield cache, scratch
    finally:
        await asyncio.to_thread(scratch.remove)
        if own:
            await asyncio.to_thread(remove_tree, cache)
