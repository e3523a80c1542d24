"""Whatever a command does, it ends with the right outcome and leaves no process behind."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datastore.kinds import Call, Outcome
from open_file_limit import no_file_more
from swamp.execute import leftovers
from swamp.execute.calls import ShellCall
from swamp.execute.environment import runner_environment
from swamp.execute.execution import Execution, Host, Order, Patience, Unwatched
from swamp.execute.streams import OutputLimits

PATH = {"PATH": os.environ["PATH"]}
FOREVER = "exec sleep 600"


class Bench:
    """Runs commands and remembers every piece of output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pieces: list[tuple[str, bytes]] = []
        self.arrived = asyncio.Condition()

    def execution(self, run: str, host: Host | None = None, **arguments: object) -> Execution:
        timeout_s = arguments.pop("step_timeout_s", None)
        call = Call(
            model_type="command/shell",
            model="m",
            method="execute",
            arguments={"run": run, **arguments},
        )
        shell = ShellCall.parse(call)
        environment = runner_environment(PATH, {}, shell.env)
        order = Order("r1.j.s.1", shell, environment, timeout_s)  # type: ignore[arg-type]
        return Execution(order, self.sink, host or Host(self.folder))

    async def run(self, run: str, host: Host | None = None, **arguments: object) -> Outcome:
        return await self.execution(run, host, **arguments).run()

    async def sink(self, stream: str, data: bytes) -> None:
        async with self.arrived:
            self.pieces.append((stream, data))
            self.arrived.notify_all()

    async def until(self, text: bytes) -> None:
        async with self.arrived:
            await self.arrived.wait_for(lambda: text in self.raw("stdout"))

    def raw(self, stream: str) -> bytes:
        return b"".join(data for name, data in self.pieces if name == stream)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def quick(folder: Path, kill_after_s: float = 0.3, drain_s: float = 0.3) -> Host:
    return Host(folder, patience=Patience(kill_after_s, drain_s))


def gone(pid: int) -> bool:
    """Whether the process ended; a zombie has ended, whoever has to reap it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


async def test_success_tells_output_and_duration(bench: Bench) -> None:
    outcome = await bench.run("echo out; echo err >&2; sleep 0.05")
    assert (outcome.ok, outcome.reason, outcome.exit_code) == (True, "completed", 0)
    assert (outcome.stdout, outcome.stderr, outcome.error) == ("out\n", "err\n", None)
    assert outcome.duration_ms >= 50
    assert (bench.raw("stdout"), bench.raw("stderr")) == (b"out\n", b"err\n")


async def test_exit_codes_have_their_reasons(bench: Bench) -> None:
    seven = await bench.run("exit 7")
    assert (seven.ok, seven.reason, seven.exit_code, seven.signal) == (False, "failed", 7, None)
    assert seven.error == "Command exited with code 7"
    missing = await bench.run("no-such-command-here")
    assert (missing.reason, missing.exit_code) == ("not_found", 127)
    assert missing.error == "Command not found (exit code 127)"
    assert (await bench.run("/")).reason == "failed"


async def test_ignored_exit_code_is_success_and_still_told(bench: Bench) -> None:
    outcome = await bench.run("exit 7", ignoreExitCode=True)
    assert (outcome.ok, outcome.reason, outcome.exit_code) == (True, "completed", 7)


async def test_signal_is_not_an_exit_code(bench: Bench) -> None:
    outcome = await bench.run("kill -9 $$", ignoreExitCode=True)
    assert (outcome.ok, outcome.reason) == (False, "signalled")
    assert (outcome.exit_code, outcome.signal) == (None, signal.SIGKILL)
    assert outcome.error == "Command was killed by signal 9 (SIGKILL)"


async def test_timeout_of_the_call_and_of_the_step(bench: Bench) -> None:
    outcome = await bench.run(FOREVER, timeout=150)
    assert (outcome.reason, outcome.signal) == ("timed_out", signal.SIGTERM)
    assert outcome.error == "Command timed out after 150 ms"
    nearer = await bench.run(FOREVER, timeout=60_000, step_timeout_s=0.1)
    assert nearer.error == "Command timed out after 100 ms"


async def test_timeout_kills_a_child_that_ignores_term(bench: Bench) -> None:
    outcome = await bench.run(
        "trap '' TERM; echo deaf; while :; do sleep 1; done", quick(bench.folder), timeout=200
    )
    assert (outcome.reason, outcome.signal) == ("timed_out", signal.SIGKILL)
    assert outcome.stdout == "deaf\n"


async def test_cancel_gives_the_child_time_to_end_by_itself(bench: Bench) -> None:
    execution = bench.execution(
        "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    )
    running = asyncio.ensure_future(execution.run())
    await bench.until(b"up")
    execution.stop("cancelled")
    execution.stop("timed_out")
    outcome = await running
    assert (outcome.ok, outcome.reason, outcome.exit_code) == (False, "cancelled", 0)
    assert outcome.stdout == "up\nbye\n"


@pytest.mark.parametrize("stop", [Execution.stop, Execution.kill])
async def test_what_is_stopped_before_the_spawn_never_begins(
    bench: Bench, stop: Callable[[Execution, str], None]
) -> None:
    witness = bench.folder / "begun"
    execution = bench.execution(f"touch {witness}")
    stop(execution, "cancelled")
    outcome = await execution.run()
    assert (outcome.ok, outcome.reason, outcome.signal) == (False, "cancelled", None)
    assert outcome.error == "Command was cancelled"
    assert not witness.exists()


async def test_cancel_leaves_nothing_of_group_and_setsid(bench: Bench) -> None:
    execution = bench.execution(
        "setsid sh -c 'echo $$; trap \"\" TERM; while :; do sleep 1; done' &\n"
        "sh -c 'echo $$; trap \"\" TERM; while :; do sleep 1; done' & echo ready $$; wait",
        quick(bench.folder),
    )
    running = asyncio.ensure_future(execution.run())
    await bench.until(b"ready")
    while len(bench.raw("stdout").split()) < 4:
        async with bench.arrived:
            await bench.arrived.wait()
    pids = [int(word) for word in bench.raw("stdout").split() if word != b"ready"]
    execution.stop("cancelled")
    assert (await running).reason == "cancelled"
    assert len(pids) == 3
    assert [pid for pid in pids if not gone(pid)] == []


async def test_stopped_background_process_may_finish_what_it_does(bench: Bench) -> None:
    mark = bench.folder / "flushed"
    service = f"trap 'sleep 0.3; touch {mark}; exit' TERM; echo up; exec >/dev/null 2>&1; "
    service += "while :; do sleep 0.05; done"
    execution = bench.execution(
        '{ eval "$SERVICE"; } & exec sleep 60 >/dev/null 2>&1', env={"SERVICE": service}
    )
    running = asyncio.ensure_future(execution.run())
    await bench.until(b"up")
    execution.stop("cancelled")
    assert (await running).signal == signal.SIGTERM
    assert mark.exists()


async def test_background_process_cannot_hold_the_step_open(bench: Bench) -> None:
    outcome = await bench.run("sleep 60 & echo $!; exit 3", quick(bench.folder))
    assert (outcome.reason, outcome.exit_code) == ("failed", 3)
    note = "output truncated: a background process kept the stream open"
    assert note in outcome.stderr and note.encode() in bench.raw("stderr")
    assert outcome.duration_ms < 3000
    assert gone(int(outcome.stdout))


async def test_endless_background_output_cannot_hold_the_step_open(bench: Bench) -> None:
    outcome = await bench.run("yes & exit 0", quick(bench.folder))
    assert outcome.ok and "output truncated" in outcome.stderr
    assert outcome.duration_ms < 3000


async def test_quiet_background_processes_end_with_the_step(bench: Bench) -> None:
    outcome = await bench.run(
        "sleep 60 >/dev/null 2>&1 & echo $!; setsid sleep 60 >/dev/null 2>&1 & echo $!"
    )
    assert outcome.ok and outcome.stderr == ""
    assert all(gone(int(pid)) for pid in outcome.stdout.split())


async def test_output_of_a_finished_child_survives_a_slow_sink(bench: Bench) -> None:
    async def slow(stream: str, data: bytes) -> None:
        await asyncio.sleep(0.25)
        await bench.sink(stream, data)

    bench_sink, bench.sink = bench.sink, slow  # type: ignore[method-assign]
    execution = bench.execution("head -c 190000 /dev/zero", quick(bench.folder, drain_s=0.2))
    bench.sink = bench_sink  # type: ignore[method-assign]
    assert (await execution.run()).stderr == ""
    assert len(bench.raw("stdout")) == 190_000


async def test_five_megabytes_without_newline_arrive_complete_and_in_order(bench: Bench) -> None:
    program = "import sys\nfor n in range(500_000): sys.stdout.write(f'{n:010d}')"
    outcome = await bench.run(f'{sys.executable} -c "$PROGRAM"', env={"PROGRAM": program})
    assert bench.raw("stdout") == b"".join(b"%010d" % n for n in range(500_000))
    assert max(len(data) for _, data in bench.pieces) <= 64 << 10
    assert len(outcome.stdout.encode()) < (16 << 10) + 100
    assert outcome.stdout.startswith("0000000000") and outcome.stdout.endswith("0000499999")
    assert f"\n… {5_000_000 - (16 << 10)} bytes cut …\n" in outcome.stdout


async def test_characters_are_never_split_and_invalid_bytes_pass(bench: Bench) -> None:
    program = (
        "import sys,time\n"
        "for b in b'a\\xe2\\x82\\xac\\xff\\xf0\\x9f\\x98':\n"
        "  sys.stdout.buffer.write(bytes([b])); sys.stdout.flush(); time.sleep(0.01)"
    )
    outcome = await bench.run(f'{sys.executable} -c "$PROGRAM"', env={"PROGRAM": program})
    assert bench.raw("stdout") == b"a\xe2\x82\xac\xff\xf0\x9f\x98"
    assert all(b"\xe2" not in data or b"\xe2\x82\xac" in data for _, data in bench.pieces)
    assert outcome.stdout == "a€\ufffd\ufffd"


async def test_output_limit_is_said_once_and_does_not_block_the_child(bench: Bench) -> None:
    host = Host(bench.folder, limits=OutputLimits(total_bytes=1 << 20))
    outcome = await bench.run("head -c 3000000 /dev/zero | tr '\\0' x; echo end", host)
    note = b"\n[swamp] output limit of 1 MiB reached, the rest is cut\n"
    assert bench.raw("stdout") == b"x" * (1 << 20) + note
    assert outcome.ok and outcome.stdout.endswith("xend\n")


async def test_start_failures_are_outcomes(bench: Bench) -> None:
    missing = await bench.run("true", workingDir="/no/such/folder")
    assert (missing.ok, missing.reason) == (False, "start_failed")
    assert missing.error is not None and "'/no/such/folder'" in missing.error
    big = await bench.run("true", env={"A": "x", "BIG": "x" * 200_000})
    assert big.reason == "start_failed"
    assert big.error is not None and "env BIG, has 200000 bytes" in big.error
    file = bench.folder / "file"
    file.touch()
    nowhere = await bench.run("true", Host(file / "missing"))
    assert nowhere.reason == "start_failed"


class Room:
    """What a host is asked where something is refused: the test says when to try again."""

    def __init__(self, *, again: bool = True) -> None:
        self.again = again
        self.asked = asyncio.Queue[tuple[int | None, float]]()
        self.answer = asyncio.Event()

    async def was_asked(self) -> int | None:
        """Why, once it is."""
        async with asyncio.timeout(5):
            return (await self.asked.get())[0]

    async def came(self, error: OSError, waited_s: float) -> bool:
        self.asked.put_nowait((error.errno, waited_s))
        await self.answer.wait()
        return self.again


async def test_a_command_waits_until_files_may_be_opened(bench: Bench) -> None:
    """Regression: it failed with `start_failed`, for what had passed a moment later."""
    room = Room()
    with no_file_more():
        running = asyncio.create_task(
            bench.run("echo $$; echo ran >> ../ran", Host(bench.folder, came_room=room.came))
        )
        assert await room.was_asked() == errno.EMFILE
    open_files = len(os.listdir("/proc/self/fd"))
    room.answer.set()
    outcome = await running
    assert (outcome.ok, outcome.error) == (True, None)
    assert (bench.folder / "ran").read_text() == "ran\n", "once"
    assert len(os.listdir("/proc/self/fd")) <= open_files + 1, "that of /proc/loadavg"


async def test_a_command_may_fit_by_its_pipes_and_not_by_what_starting_it_takes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room()
    room.answer.set()
    popen, refusals = subprocess.Popen, [errno.EMFILE, errno.ENFILE]

    def refuse(*given: Any, **options: Any) -> Any:
        if refusals:
            number = refusals.pop(0)
            raise OSError(number, os.strerror(number))
        return popen(*given, **options)

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    outcome = await bench.run("echo ran", Host(bench.folder, came_room=room.came))
    assert (outcome.stdout, bench.raw("stdout")) == ("ran\n", b"ran\n")
    asked = [room.asked.get_nowait() for _ in range(2)]
    assert [number for number, _ in asked] == [errno.EMFILE, errno.ENFILE]
    assert asked[0][1] == 0.0 < asked[1][1]
    assert len(os.listdir("/proc/self/fd")) <= before + 2


@pytest.mark.parametrize("stopped", ["cancelled", "timed_out"])
async def test_who_waits_for_files_can_be_cancelled_and_times_out(
    bench: Bench, stopped: str
) -> None:
    room = Room()
    execution = bench.execution(
        "echo ran > ../ran", Host(bench.folder, came_room=room.came), step_timeout_s=0.05
    )
    with no_file_more():
        running = asyncio.create_task(execution.run())
        await room.was_asked()
    if stopped == "cancelled":
        execution.stop(stopped)
    else:
        async with asyncio.timeout(5):
            while execution._stopped is None:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
    room.answer.set()
    outcome = await running
    assert (outcome.ok, outcome.reason) == (False, stopped)
    assert (
        outcome.error
        == {
            "cancelled": "Command was cancelled",
            "timed_out": "Command timed out after 50 ms, before it could be started",
        }[stopped]
    )
    assert not (bench.folder / "ran").exists()


async def test_who_is_told_to_try_no_more_has_failed(bench: Bench) -> None:
    room = Room(again=False)
    room.answer.set()
    with no_file_more():
        outcome = await bench.run("true", Host(bench.folder, came_room=room.came))
    assert (outcome.ok, outcome.reason) == (False, "start_failed")
    assert outcome.error == "Command could not be started: Too many open files"


async def test_a_scratch_folder_that_was_tidied_away_is_made_again(bench: Bench) -> None:
    root = bench.folder / f"scratch-{'0' * 32}"
    outcomes = [await bench.run("pwd", Host(root)) for _ in range(2)]
    assert [outcome.ok for outcome in outcomes] == [True, True]
    # Not by the same name: nobody holds its lock any more.
    assert root.name not in os.listdir(bench.folder)


async def test_scratch_folder_is_own_and_removed(bench: Bench) -> None:
    host = Host(bench.folder)
    outcomes = [await bench.run("pwd; ls -A; echo x > left-over", host) for _ in range(3)]
    for outcome in outcomes:
        folder = Path(outcome.stdout.strip())
        assert folder.parent == bench.folder, "its own folder, and nothing in it"
        assert folder.name not in os.listdir(bench.folder)
    assert len({outcome.stdout for outcome in outcomes}) == 3


async def test_child_sees_exactly_the_given_environment_and_no_terminal(bench: Bench) -> None:
    outcome = await bench.run("env; cat", env={"A": "1"})
    names = {line.partition("=")[0] for line in outcome.stdout.splitlines()}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {
        "PATH",
        "A",
        "SWAMP_DISPATCH",
        "SWAMP_RUNNER",
    }
    assert "SWAMP_DISPATCH=r1.j.s.1" in outcome.stdout


async def test_cancelled_task_leaves_no_process(bench: Bench) -> None:
    running = asyncio.ensure_future(bench.run(f"echo $$; {FOREVER}"))
    await bench.until(b"\n")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert gone(int(bench.raw("stdout")))


class Heard(Unwatched):
    """What a watch is told of the group."""

    def __init__(self) -> None:
        self.groups: list[int | None] = []

    def spawned(self, mark: str, group: int) -> None:
        self.groups.append(group)

    def emptied(self, mark: str) -> None:
        self.groups.append(None)


@pytest.mark.parametrize("run", ["touch left", "touch left; sleep 600 >&- 2>&- &"])
async def test_group_is_nobodys_while_the_folder_is_removed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    """Regression: its number, a stranger's by then, was killed if that took long."""
    watch, remove, go_on = Heard(), leftovers.remove_tree, threading.Event()
    removing, loop = asyncio.Event(), asyncio.get_running_loop()
    killed: list[int] = []

    def slow(path: str) -> None:
        loop.call_soon_threadsafe(removing.set)
        go_on.wait()
        remove(path)

    monkeypatch.setattr(leftovers, "remove_tree", slow)
    execution = bench.execution(run, Host(bench.folder, watch))
    task = asyncio.create_task(execution.run())
    try:
        async with asyncio.timeout(5):
            await removing.wait()
        assert len(watch.groups) == 2 and watch.groups[1] is None
        monkeypatch.setattr(os, "killpg", lambda group, number: killed.append(group))
        execution.kill("worker_lost")
        assert killed == []
    finally:
        go_on.set()
    assert (await task).ok


def test_environment_rules() -> None:
    own = {"PATH": "/own", "LANG": "C", "SWAMP_WORKER_TOKEN": "t.s", "swamp_x": "1"}
    shipped = {"PATH": "/server", "Home": "/root", "LANG": "de", "SSH_AUTH_SOCK": "s", "B": "2"}
    extra = {"PATH": "/call", "C": "3"}
    assert runner_environment(own, shipped, extra) == {
        "PATH": "/call",
        "LANG": "de",
        "B": "2",
        "C": "3",
    }
    assert runner_environment(own, shipped, {})["PATH"] == "/own"
