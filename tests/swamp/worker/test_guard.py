"""When a worker dies by SIGKILL, nothing that it ran stays behind."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_orchestrator import Orchestrator, RunningWorker, Socket, shell

from swamp.execute.calls import ShellCall
from swamp.execute.execution import Execution, Host, Order
from swamp.execute.processes import MARK_VARIABLE
from swamp.protocol import Accepted, Output, Ping, Pong
from swamp.worker import guard as guard_module
from swamp.worker import guarding, real_time
from swamp.worker.group_table import GroupTable, entries_in, limit_in, note_given_up
from swamp.worker.guard import AWAKE_S, LOOK_S, MARKS_AGAIN_S, Legacy, Limit, follow, lines_of

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
    reading, writing = os.pipe()
    os.write(writing, b"begin f\nx\nbegin g")
    os.close(writing)
    left = Legacy()
    follow(left, lines_of(reading, lambda: None))
    os.close(reading)
    assert left.family == "f"


def test_table_holds_the_groups_that_were_entered_and_not_left() -> None:
    table = GroupTable()
    first, second, third = (_entered(table, group, group - 10) for group in (12, 13, 14))
    table.leave(second)
    assert _held(table) == [(12, 2), (14, 4)]
    assert table.expect(5) == second, "the file stays as small as can be"
    assert _held(table) == [(12, 2), (None, 5), (14, 4)]
    table.enter(second, 15)
    assert _held(table) == [(12, 2), (15, 5), (14, 4)]
    table.forget_group(first)
    assert _held(table) == [(None, 2), (15, 5), (14, 4)]
    for entry in (first, second, third):
        table.leave(entry)
    assert _held(table) == []
    table.close()


def _entered(table: GroupTable, group: int, number: int) -> int:
    entry = table.expect(number)
    table.enter(entry, group)
    return entry


def _held(table: GroupTable) -> list[tuple[int | None, int]]:
    return [(one.group, one.number) for one in entries_in(table.handle)]


def test_what_a_guard_gave_up_is_told_of_that_execution_alone() -> None:
    table = GroupTable()
    assert limit_in(table.handle) is None
    table.set_limit(12.5)
    assert limit_in(table.handle) == 12.5
    first, second = table.expect(1), _entered(table, 13, 2)
    entry = entries_in(table.handle)[0]
    note_given_up(table.handle, entry)
    table.enter(first, 12)
    assert (table.was_given_up(first, 1), table.was_given_up(second, 2)) == (True, False)
    table.leave(first)
    assert table.expect(3) == first
    note_given_up(table.handle, entry)
    assert not table.was_given_up(first, 3), "another one took its place"
    table.set_limit(None)
    assert limit_in(table.handle) is None
    table.close()


class Looking:
    """A guard's look at the clock, which the test sets."""

    def __init__(self) -> None:
        self.table = GroupTable()
        self.now_s = 1000.0
        self.killed: list[int] = []
        self.limit = Limit(self.table.handle, lambda: self.now_s, self.killed.append)

    def after(self, passed_s: float, each_s: float = LOOK_S) -> list[int]:
        """Whom it killed in that time, looking as often as it does, or each time later."""
        until_s = self.now_s + passed_s
        while self.now_s < until_s:
            self.now_s = min(self.now_s + each_s, until_s)
            self.limit.look(Legacy("f"))
        killed, self.killed[:] = list(self.killed), []
        return killed


def test_guard_gives_up_what_a_stopped_worker_runs_once_its_moment_has_come() -> None:
    guard = Looking()
    _entered(guard.table, 12, 1)
    assert guard.after(1000.0) == [], "nothing has a limit before the worker says so"
    guard.table.set_limit(guard.now_s + 10.0)
    assert guard.after(9.0) == []
    guard.table.set_limit(guard.now_s + 10.0)
    assert guard.after(9.0) == [], "the worker lives"
    assert guard.after(2.0) == [12]
    assert guard.after(20.0) == [], "once is enough"
    _entered(guard.table, 13, 2)
    assert guard.after(2.0) == [13]


def test_guard_that_stood_still_itself_leaves_it_to_its_worker_first() -> None:
    guard = Looking()
    _entered(guard.table, 12, 1)
    guard.table.set_limit(guard.now_s + 10.0)
    guard.now_s += 3600.0
    assert guard.after(AWAKE_S - LOOK_S) == []
    guard.table.set_limit(guard.now_s + 10.0)
    assert guard.after(9.0) == [], "the worker woke as well"
    assert guard.after(2.0) == [12]


def test_guard_that_looks_too_late_each_time_gives_up_after_a_while() -> None:
    """Regression: on a busy machine it took itself for one that had slept, and never gave up."""
    guard = Looking()
    _entered(guard.table, 12, 1)
    guard.table.set_limit(guard.now_s + 60.0)
    late_s = 2.5 * LOOK_S
    assert guard.after(60.0 + AWAKE_S - late_s, late_s) == []
    assert guard.after(AWAKE_S, late_s) == [12]


def test_sleep_of_the_machine_is_no_time_for_its_worker_to_find_out() -> None:
    guard = Looking()
    _entered(guard.table, 12, 1)
    guard.table.set_limit(guard.now_s + 10.0)
    for _ in range(3):
        guard.now_s += 3600.0
        assert guard.after(2 * LOOK_S) == []
    assert guard.after(AWAKE_S) == [12]


def test_what_a_guard_gave_up_is_ended_when_it_begins_after_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: a worker stopped as it began a process began it when it went on."""
    marks: list[set[str]] = []
    monkeypatch.setattr(guard_module, "kill_marked", marks.append)
    guard = Looking()
    entry = guard.table.expect(1)
    guard.table.set_limit(guard.now_s + 1.0)
    assert guard.after(LOOK_S) == [] and marks == [{"f.1"}]
    guard.table.set_limit(guard.now_s + 1000.0)
    assert guard.after(2 * MARKS_AGAIN_S) == [] and len(marks) == 3, "it may have no group yet"
    guard.table.enter(entry, 12)
    assert guard.after(2 * MARKS_AGAIN_S) == [12], "once: its number is a stranger's later"
    guard.table.forget_group(entry)
    assert guard.after(LOOK_S) == [] and marks == [{"f.1"}] * 5
    guard.table.leave(entry)
    assert guard.after(2 * MARKS_AGAIN_S) == [] and len(marks) == 5


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


async def stray_and_runner(socket: Socket) -> list[int]:
    """The processes of a dispatch that goes on: one that left its group, and its shell."""
    await socket.send(
        shell("d1", "setsid sh -c 'echo $$; exec sleep 600' &\nsleep 0.1; echo $$; exec sleep 600")
    )
    while len(socket.text("d1").split()) < 2:
        await socket.expect(Accepted | Output)  # type: ignore[arg-type]
    return list(map(int, socket.text("d1").split()))


async def test_what_a_stopped_worker_runs_ends_with_its_grace_window(
    orchestrator: Orchestrator, worker: Process
) -> None:
    """Also what left the group; and what the worker says of it once it goes on is no failure."""
    orchestrator.grace_s, orchestrator.heartbeat_s = 0.5, 0.5
    socket = await orchestrator.enrolled()
    waits = [asyncio.ensure_future(end_of(pid)) for pid in await stray_and_runner(socket)]
    worker.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(20):
        await asyncio.gather(*waits)
    worker.send_signal(signal.SIGCONT)
    again = await orchestrator.dialled()
    assert again.enroll.finished == ["d1"] and not again.enroll.running
    await again.send(orchestrator.welcome({"d1": 0}))
    result = await again.result("d1")
    assert (result.outcome.reason, result.outcome.ok) == ("worker_lost", False)


async def test_a_worker_that_is_stopped_before_it_has_noted_a_group_leaves_nothing() -> None:
    """Regression: what it had started a moment before ran on beside those who began it anew."""
    async with guarding.Guard().running() as guard:
        guard.begin("d")
        guard.expect("d.1")
        marked = {**os.environ, MARK_VARIABLE: "d.1"}
        runner = await asyncio.create_subprocess_exec("sleep", "600", env=marked)
        guard.give_up_at(real_time.now_s())
        assert await runner.wait() == -signal.SIGKILL
        assert guard.gave_up("d.1")


async def _nowhere(stream: str, data: bytes) -> None:
    pass


async def test_what_was_taken_before_a_standstill_is_not_begun_after_it(tmp_path: Path) -> None:
    """Regression: it was run once more, by a worker that was stopped or slept in that moment."""
    async with guarding.Guard().running() as guard:
        guard.begin_before(real_time.now_s() + 60)
        host = Host(tmp_path, watch=guard)
        order = Order("d1", ShellCall(run="true"), dict(os.environ))
        assert (await Execution(order, _nowhere, host).run()).ok
        guard.begin_before(real_time.now_s())
        outcome = await Execution(order, _nowhere, host).run()
    assert (outcome.reason, outcome.exit_code) == ("worker_lost", None)


async def test_a_stopped_worker_does_not_take_its_own_silence_for_the_servers(
    orchestrator: Orchestrator, worker: Process
) -> None:
    orchestrator.heartbeat_s = 0.4
    socket = await orchestrator.enrolled()
    await socket.expect(Ping)
    worker.send_signal(signal.SIGSTOP)
    await asyncio.sleep(3.5 * orchestrator.heartbeat_s)
    worker.send_signal(signal.SIGCONT)
    asked = await socket.expect(Ping)
    await socket.send(Pong(n=asked.n), shell("d1", "true"))
    await socket.expect(Accepted)
    assert (await socket.result("d1")).outcome.ok


async def test_what_a_worker_left_that_was_killed_with_its_guard_ends_before_the_next_enrolls(
    orchestrator: Orchestrator, worker: Process, start: Callable[..., RunningWorker], tmp_path: Path
) -> None:
    socket = await orchestrator.enrolled()
    guard = only_child(worker.pid)
    runners = await stray_and_runner(socket)
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
    assert left == ["machine", "scratch", "starts"], "its own folder alone"


async def test_guard_that_was_killed_is_replaced_and_knows_what_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guarding, "_RESTART_S", 0.01)
    async with guarding.Guard().running() as guard:
        runner = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
        guard.begin("d")
        guard.expect("d.1")
        guard.spawned("d.1", runner.pid)
        first = guard.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        while guard.pid == first:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await runner.wait() == -signal.SIGKILL


async def test_worker_whose_guard_is_stopped_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: it waited for the end of its guard for ever."""
    monkeypatch.setattr(guarding, "END_WITHIN_S", 0.1)
    async with asyncio.timeout(5):
        async with guarding.Guard().running() as guard:
            assert guard.pid is not None
            ended = asyncio.ensure_future(end_of(guard.pid))
            os.kill(guard.pid, signal.SIGSTOP)
        await ended


async def test_guard_that_cannot_be_replaced_yet_costs_no_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: where no process more may be for a moment, the worker ended with its runners."""
    monkeypatch.setattr(guarding, "_RESTART_S", 0.01)
    start, refused = asyncio.create_subprocess_exec, asyncio.Event()

    async def refuse_once(*command: Any, **options: Any) -> Process:
        if not refused.is_set():
            refused.set()
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return await start(*command, **options)

    async with guarding.Guard().running() as guard:
        first = guard.pid
        assert first is not None
        monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse_once)
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(5):
            await refused.wait()
            while guard.pid in (None, first):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


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
