"""When a worker dies by SIGKILL, nothing that it ran stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from fake_orchestrator import Orchestrator, RunningWorker, shell

from swamp.protocol import Accepted, Output
from swamp.worker import guarding
from swamp.worker.group_table import GroupTable, groups_in
from swamp.worker.guard import follow

PROGRAM = """
import asyncio, sys
from swamp.worker.connect import run_worker
from swamp.worker.options import WorkerOptions
from pathlib import Path
options = WorkerOptions(url=sys.argv[1], token="t.s", cache_dir=Path(sys.argv[2]))
sys.exit(asyncio.run(run_worker(options, lambda event: print(event, flush=True))))
"""


async def worker_process(url: str, cache: Path) -> Process:
    """A worker in a process of its own."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, url, str(cache), stdout=PIPE
    )


@pytest.fixture
async def worker(orchestrator: Orchestrator, tmp_path: Path) -> AsyncIterator[Process]:
    process = await worker_process(orchestrator.url, tmp_path / "cache")
    yield process
    if process.returncode is None:
        process.kill()
        await process.wait()


def test_guard_knows_the_family_and_ignores_a_line_that_was_cut() -> None:
    left = follow([b"begin f\n", b"x\n", b"begin g"])
    assert left.family == "f"


def test_table_holds_the_groups_that_were_entered_and_not_left() -> None:
    table = GroupTable()
    first, second, third = (table.enter(group) for group in (12, 13, 14))
    table.leave(second)
    assert groups_in(table.handle) == [12, 14]
    assert table.enter(15) == second, "the file stays as small as can be"
    assert groups_in(table.handle) == [12, 15, 14]
    for entry in (first, second, third):
        table.leave(entry)
    assert groups_in(table.handle) == []
    table.close()


def only_child(pid: int) -> int:
    """The one child of the process, by whichever of its threads."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    (child,) = [int(word) for words in lists for word in words.split()]
    return child


async def end_of(pid: int) -> None:
    """Returns when the process has ended."""
    descriptor = os.pidfd_open(pid)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def test_killed_worker_takes_its_runners_along(
    orchestrator: Orchestrator, worker: Process
) -> None:
    assert worker.stdout is not None
    socket = await orchestrator.enrolled()
    await socket.send(
        shell(
            "d1",
            "trap '' TERM\n"
            "setsid sh -c 'echo $$; exec sleep 600' &\n"
            "sleep 0.1; echo $$ $PPID; while :; do sleep 1; done",
        )
    )
    await socket.expect(Accepted)
    while len(socket.text("d1").split()) < 3:
        await socket.expect(Output)
    stray, runner, parent = map(int, socket.text("d1").split())
    assert parent == worker.pid
    waits = [asyncio.ensure_future(end_of(pid)) for pid in (stray, runner)]
    worker.send_signal(signal.SIGKILL)
    async with asyncio.timeout(2):
        await asyncio.gather(*waits)
    # Its streams are closed too: no guard holds them open.
    async with asyncio.timeout(2):
        await worker.stdout.read()
    await worker.wait()


async def test_what_a_worker_left_that_was_killed_with_its_guard_ends_before_the_next_enrolls(
    orchestrator: Orchestrator, worker: Process, start: Callable[..., RunningWorker], tmp_path: Path
) -> None:
    socket = await orchestrator.enrolled()
    guard = only_child(worker.pid)
    await socket.send(
        shell("d1", "setsid sh -c 'echo $$; exec sleep 600' &\nsleep 0.1; echo $$; exec sleep 600")
    )
    while len(socket.text("d1").split()) < 2:
        await socket.expect(Accepted | Output)  # type: ignore[arg-type]
    runners = list(map(int, socket.text("d1").split()))
    waits = [asyncio.ensure_future(end_of(pid)) for pid in runners]
    try:
        # First stopped, so that neither sees the other's end.
        os.kill(guard, signal.SIGSTOP)
        worker.kill()
        await worker.wait()
        os.kill(guard, signal.SIGKILL)
        assert not any(wait.done() for wait in waits), "nobody is left to end them"
        after = start(cache_dir=tmp_path / "cache")
        await orchestrator.dialled()
        async with asyncio.timeout(1):
            await asyncio.gather(*waits)
    finally:
        for pid in runners:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    warning = after.events[0]
    assert warning["kind"] == "warning" and "ended the 2 processes" in warning["message"]
    left = sorted(path.name.partition("-")[0] for path in (tmp_path / "cache").iterdir())
    assert left == ["machine", "scratch"], "its own folder alone"


async def test_guard_that_was_killed_is_replaced_and_knows_what_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guarding, "_RESTART_S", 0.01)
    async with guarding.Guard().running() as guard:
        runner = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
        guard.begin("d1")
        guard.spawned("d1", runner.pid)
        first = guard.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        while guard.pid == first:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await runner.wait() == -signal.SIGKILL


async def test_drained_worker_process_leaves_no_guard(
    orchestrator: Orchestrator, worker: Process
) -> None:
    assert worker.stdout is not None
    await orchestrator.enrolled()
    while b"enrolled" not in await worker.stdout.readline():
        pass
    guard = asyncio.ensure_future(end_of(only_child(worker.pid)))
    worker.send_signal(signal.SIGTERM)
    async with asyncio.timeout(5):
        assert await worker.wait() == 0
        await guard
