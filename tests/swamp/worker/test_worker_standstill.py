"""A worker that was stopped, or whose machine slept, does not trust what it finds when it wakes.

And one that was awake all the time is not taken for such a one.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable

import pytest
from fake_orchestrator import Gate, Orchestrator, RunningWorker, Socket, gone, shell, started

from swamp.protocol import Accepted, Cancel, Ping, Pong, ResultFrame
from swamp.worker import link, real_time

Start = Callable[..., RunningWorker]


def time_goes_by(monkeypatch: pytest.MonkeyPatch, passed_s: float = 3600.0) -> None:
    """Without the worker: timers stand still as well, while a machine sleeps."""
    before = real_time.now_s
    monkeypatch.setattr(real_time, "now_s", lambda: before() + passed_s)


async def stood_still(
    monkeypatch: pytest.MonkeyPatch, socket: Socket, passed_s: float = 3600.0
) -> Ping:
    """Let the worker find that time has gone by since it last looked; what it then asks."""
    await socket.send(Ping(n=1))
    await socket.expect(Pong)
    time_goes_by(monkeypatch, passed_s)
    await socket.send(shell("d1", "sleep 20"))
    return await socket.expect(Ping)


async def test_what_waited_in_the_socket_of_a_stopped_worker_is_not_run_on_a_dead_socket(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a worker that was stopped for longer than its grace ran steps once more."""
    worker = start()
    socket = await orchestrator.enrolled()
    await worker.until("enrolled")
    await stood_still(monkeypatch, socket)
    socket.cut()
    await worker.until("disconnected")
    again = await orchestrator.enrolled()
    assert (again.enroll.running, again.enroll.finished) == ([], [])
    await again.send(shell("d2", "true"))
    assert (await again.expect(Accepted)).dispatch == "d2"
    await again.result("d2")
    assert worker.kinds().count("dispatch_started") == 1


async def test_what_came_with_the_answer_to_the_enrollment_is_held_as_well(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    socket = await orchestrator.dialled()
    time_goes_by(monkeypatch)
    await socket.send_together(orchestrator.welcome(), shell("d1", "true"))
    asked = await socket.expect(Ping)
    assert "dispatch_started" not in worker.kinds()
    await socket.send(Pong(n=asked.n))
    assert (await socket.expect(Accepted)).dispatch == "d1"


async def test_what_waited_is_run_in_order_once_the_socket_has_proved_good(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(concurrency=2)
    socket = await orchestrator.enrolled()
    asked = await stood_still(monkeypatch, socket)
    await socket.send(Cancel(dispatch="d1"), shell("d2", "true"), Pong(n=asked.n))
    assert {(await socket.expect(Accepted)).dispatch for _ in "12"} == {"d1", "d2"}
    outcomes = {}
    for _ in "12":
        result = await socket.expect(ResultFrame)
        outcomes[result.dispatch] = result.outcome.reason
    assert outcomes == {"d1": "cancelled", "d2": "completed"}


async def test_what_runs_goes_on_after_a_standstill_only_while_the_server_answers(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: on a socket that the network had forgotten, it ran for 85 s beside its heir."""
    orchestrator.heartbeat_s = 0.2
    worker = start()
    socket = await orchestrator.enrolled()
    pid = await started(socket, "d1", "exec sleep 60")
    time_goes_by(monkeypatch)
    lost = await worker.until("disconnected")
    assert re.search("no answer for .* since this machine stood still", lost["reason"])
    finished = await worker.until("dispatch_finished")
    assert "out of reach for the whole grace window" in finished["error"]
    assert gone(pid)


async def test_a_machine_that_slept_while_it_was_cut_off_has_no_grace_left(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    socket = await orchestrator.enrolled()
    pid = await started(socket, "d1", "exec sleep 60")
    socket.cut()
    await orchestrator.dialled()
    time_goes_by(monkeypatch)
    assert (await worker.until("dispatch_finished"))["status"] == "error"
    assert gone(pid)


async def test_what_runs_is_offered_once_more_by_a_machine_that_slept_for_too_long(
    orchestrator: Orchestrator, start: Start, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The orchestrator may have slept as well: it alone knows what it gave up."""
    start()
    socket = await orchestrator.enrolled()
    await started(socket, "d1", f"read x < {gate}")
    time_goes_by(monkeypatch)
    socket.cut()
    again = await orchestrator.enrolled(keep={"d1": 1})
    assert again.enroll.running == ["d1"]
    gate.let_through()
    assert (await again.result("d1")).outcome.ok


async def test_who_waits_for_the_answer_to_its_enrollment_does_not_stand_still(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: who had waited at the gate for long was in doubt, and soon lost its socket."""
    monkeypatch.setattr(link, "LOOK_S", 0.1)
    orchestrator.heartbeat_s = 0.8
    start()
    socket = await orchestrator.dialled()
    await asyncio.sleep(0.8)
    await socket.send_together(orchestrator.welcome(), shell("d1", "true"))
    assert (await socket.expect(Accepted)).dispatch == "d1"


async def lively(socket: Socket, for_s: float) -> None:
    """Talk to the worker for so long."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + for_s
    number = 100
    while loop.time() < until_s:
        number += 1
        await socket.send(Ping(n=number))
        while (await socket.expect(Pong)).n != number:
            pass


async def test_a_socket_that_was_good_for_long_leaves_the_whole_grace_window(
    orchestrator: Orchestrator, start: Start
) -> None:
    orchestrator.grace_s = 2.0
    worker = start()
    socket = await orchestrator.enrolled()
    await started(socket, "d1", "exec sleep 60")
    await lively(socket, 2.2)
    socket.cut()
    again = await orchestrator.enrolled(keep={"d1": 1})
    assert again.enroll.running == ["d1"]
    assert "dispatch_finished" not in worker.kinds()


async def test_a_socket_that_has_proved_good_is_kept(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    orchestrator.heartbeat_s = 0.4
    worker = start()
    socket = await orchestrator.enrolled()
    asked = await stood_still(monkeypatch, socket)
    await socket.send(Pong(n=asked.n))
    await socket.expect(Accepted)
    await lively(socket, 1.0)
    assert "disconnected" not in worker.kinds()


async def test_what_waited_in_a_dead_socket_does_not_lengthen_the_grace_window(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    orchestrator.grace_s, orchestrator.heartbeat_s = 60.0, 0.4
    worker = start()
    socket = await orchestrator.enrolled()
    pid = await started(socket, "d0", "exec sleep 60")
    await stood_still(monkeypatch, socket)
    socket.cut()
    await orchestrator.dialled()
    assert (await worker.until("dispatch_finished"))["status"] == "error"
    assert gone(pid)


async def test_a_standstill_of_a_heartbeat_is_noticed(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    socket = await orchestrator.enrolled()
    await stood_still(monkeypatch, socket, orchestrator.heartbeat_s)


@pytest.mark.parametrize("look", range(4, 13))
async def test_a_standstill_is_noticed_whichever_look_at_the_clock_was_the_last_before_it(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """Regression: right after some looks it was taken for time that had passed awake."""
    looks, slept = itertools.count(1), asyncio.Event()
    clock = real_time.now_s

    def now_s() -> float:
        seen_s = clock() + (3600.0 if slept.is_set() else 0.0)
        if next(looks) == look:
            slept.set()
        return seen_s

    monkeypatch.setattr(real_time, "now_s", now_s)
    orchestrator.heartbeat_s = 0.3
    worker = start()
    socket = await orchestrator.enrolled()
    async with asyncio.timeout(5):
        await slept.wait()
    await socket.send(shell("d1", "sleep 20"))
    await worker.until("disconnected")
    assert "dispatch_started" not in worker.kinds()


async def test_the_answer_to_what_was_asked_before_a_standstill_proves_nothing_after_it(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_s = link.Link.ends_s

    def late(self: link.Link, grace_s: float) -> float:
        """The machine sleeps right before it is told that its worker lives."""
        monkeypatch.setattr(link.Link, "ends_s", ends_s)
        time_goes_by(monkeypatch)
        slept.set()
        return ends_s(self, grace_s)

    slept = asyncio.Event()
    orchestrator.heartbeat_s = 2.0
    worker = start()
    socket = await orchestrator.enrolled()
    asked = await stood_still(monkeypatch, socket)
    monkeypatch.setattr(link.Link, "ends_s", late)
    async with asyncio.timeout(5):
        await slept.wait()
    await socket.send(Pong(n=asked.n))
    while (asked_anew := await socket.expect(Ping)).n == asked.n:
        pass
    assert "dispatch_started" not in worker.kinds()
    await socket.send(Pong(n=asked_anew.n))
    assert (await socket.expect(Accepted)).dispatch == "d1"


async def test_a_standstill_while_the_answer_to_the_enrollment_waits_is_noticed(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "LOOK_S", 0.05)
    worker = start()
    socket = await orchestrator.dialled()
    time_goes_by(monkeypatch)
    # Nothing tells of a look at the clock.
    await asyncio.sleep(0.3)
    await socket.send_together(orchestrator.welcome(), shell("d1", "true"))
    await socket.expect(Ping)
    assert "dispatch_started" not in worker.kinds()
