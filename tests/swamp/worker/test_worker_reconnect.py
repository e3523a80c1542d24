"""Losing the socket loses nothing; what has no lease any more is killed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_orchestrator import (
    Gate,
    Orchestrator,
    RunningWorker,
    gone,
    refusal,
    shell,
    started,
)

from swamp.protocol import (
    Accepted,
    Ack,
    Drain,
    Output,
    OutputAck,
    ResultFrame,
)
from swamp.worker import link

Start = Callable[..., RunningWorker]


async def test_output_goes_on_after_each_cut_with_no_piece_twice_or_missing(
    orchestrator: Orchestrator, start: Start, gate: Gate
) -> None:
    worker = start()
    program = f'for part in 1 2 3 4; do seq -f "$part-%g" 20000; read x < {gate}; done'
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", program))
    await socket.expect(Accepted)
    stored: list[Output] = []
    for _ in range(3):
        stored.append(await socket.expect(Output))
        await socket.send(OutputAck(dispatch="d1", seq=stored[-1].seq))
        socket.cut()
        await worker.until("disconnected", len(stored))
        gate.let_through()
        socket = await orchestrator.enrolled(keep={"d1": len(stored)})
        assert (socket.enroll.running, socket.enroll.finished) == (["d1"], [])
    gate.let_through()
    result = await socket.result("d1")
    stored += socket.outputs
    assert [o.seq for o in stored] == list(range(1, len(stored) + 1))
    expected = "".join(f"{part}-{i}\n" for part in range(1, 5) for i in range(1, 20001))
    assert b"".join(o.raw() for o in stored).decode() == expected
    assert result.outcome.ok
    assert worker.kinds().count("dispatch_started") == 1
    assert (await worker.until("enrolled", 2))["reconnect"] is True


@pytest.mark.parametrize("enrolled", [False, True])
async def test_a_socket_that_goes_while_its_ping_is_answered_is_lost_like_any_other(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch, enrolled: bool
) -> None:
    """Regression: where a proxy sends pings, that ended the worker, and all that it ran."""
    worker = start()
    socket = await (orchestrator.enrolled() if enrolled else orchestrator.dialled())
    if enrolled:
        await started(socket, "d1", "exec sleep 60")
    socket.ping_and_cut()
    await worker.until("disconnected")
    again = await orchestrator.dialled()
    assert again.enroll.running == (["d1"] if enrolled else [])


async def test_result_is_kept_until_acknowledged_over_sockets(
    orchestrator: Orchestrator, start: Start
) -> None:
    start()
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", "echo x"))
    await socket.expect(Accepted)
    first = await socket.result("d1", ack=False)
    socket.cut()
    again = await orchestrator.enrolled(keep={"d1": 1})
    assert (again.enroll.running, again.enroll.finished) == ([], ["d1"])
    assert await again.result("d1") == first
    assert again.outputs == []
    again.cut()
    assert (await orchestrator.enrolled()).enroll.finished == []


async def test_result_that_nobody_asked_to_keep_comes_alone(
    orchestrator: Orchestrator, start: Start
) -> None:
    start()
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", "echo x"))
    await socket.expect(ResultFrame | Accepted)  # type: ignore[arg-type]
    await socket.result("d1", ack=False)
    socket.cut()
    again = await orchestrator.enrolled()
    assert (await again.expect(ResultFrame)).dispatch == "d1"
    assert again.outputs == []


async def test_a_result_that_comes_after_its_lease_has_ended_is_told_to_be_refused(
    orchestrator: Orchestrator, start: Start, gate: Gate
) -> None:
    worker = start()
    socket = await orchestrator.enrolled()
    await started(socket, "d1", f"read x < {gate}")
    socket.cut()
    away = await orchestrator.dialled()
    gate.let_through()
    assert (await worker.until("dispatch_finished"))["status"] == "success"
    assert "warning" not in worker.kinds()
    away.cut()
    await orchestrator.enrolled(kill=["d1"])
    message = "the result of d1 came too late and is refused: its lease had ended"
    assert await worker.until("warning") == {
        "kind": "warning", "message": message, "dispatchId": "d1"
    }  # fmt: skip


async def test_runners_without_a_lease_are_killed_and_not_reported(
    orchestrator: Orchestrator, start: Start
) -> None:
    worker = start(concurrency=3)
    socket = await orchestrator.enrolled()
    listed = await started(socket, "listed", "trap '' TERM; while :; do sleep 1; done")
    forgotten = await started(socket, "forgotten", "exec sleep 60")
    kept = await started(socket, "kept", "exec sleep 60")
    socket.cut()
    again = await orchestrator.enrolled(keep={"kept": 1}, kill=["listed"])
    assert again.enroll.running == ["forgotten", "kept", "listed"]
    assert (await worker.until("dispatch_finished", 2))["error"] == (
        "Command was killed: the server had given the step up meanwhile"
    )
    assert gone(listed) and gone(forgotten) and not gone(kept)
    await again.send(shell("d4", "true"))
    await again.expect(Accepted)
    assert (await again.expect(ResultFrame)).dispatch == "d4"


async def test_finished_result_in_the_kill_list_is_dropped(
    orchestrator: Orchestrator, start: Start
) -> None:
    worker = start()
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", "true"))
    await socket.expect(Accepted)
    await socket.result("d1", ack=False)
    socket.cut()
    again = await orchestrator.enrolled(kill=["d1"])
    late = await worker.until("warning")
    assert late["dispatchId"] == "d1"
    assert "came too late and is refused (unless it had arrived before)" in late["message"]
    await again.send(Drain())
    await again.expect(Drain)
    assert await worker.exit_code() == 0


async def test_cut_off_beyond_the_grace_kills_the_runners(
    orchestrator: Orchestrator, start: Start
) -> None:
    orchestrator.grace_s = 0.5
    worker = start()
    socket = await orchestrator.enrolled()
    pid = await started(socket, "d1", "exec sleep 60")
    socket.cut()
    silent = await orchestrator.dialled()
    assert silent.enroll.running == ["d1"]
    finished = await worker.until("dispatch_finished")
    assert finished["status"] == "error"
    assert finished["error"] == (
        "Command was killed: the server was out of reach for the whole grace window"
    )
    assert gone(pid)
    silent.cut()
    assert (await orchestrator.enrolled()).enroll.running == []


async def test_what_is_cut_off_while_the_orchestrator_answers_is_not_kept(
    orchestrator: Orchestrator, start: Start
) -> None:
    """Regression: it was told to keep what it had just killed, and that never ended."""
    orchestrator.grace_s = 0.5
    worker = start()
    socket = await orchestrator.enrolled()
    await started(socket, "d1", "exec sleep 60")
    socket.cut()
    slow = await orchestrator.dialled()
    assert slow.enroll.running == ["d1"]
    await worker.until("dispatch_finished")
    await slow.send(orchestrator.welcome(keep={"d1": 1}))
    assert (await orchestrator.enrolled()).enroll.running == []


async def test_return_within_the_grace_ends_the_countdown(
    orchestrator: Orchestrator, start: Start
) -> None:
    orchestrator.grace_s = 0.3
    worker = start()
    socket = await orchestrator.enrolled()
    pid = await started(socket, "d1", "sleep 0.6; echo done")
    socket.cut()
    again = await orchestrator.enrolled(keep={"d1": 1})
    assert (await again.result("d1")).outcome.stdout == f"{pid}\ndone\n"
    assert (await worker.until("dispatch_finished"))["status"] == "success"


async def test_temporary_refusals_do_not_extend_the_grace(
    orchestrator: Orchestrator, start: Start
) -> None:
    orchestrator.grace_s = 0.5
    worker = start()
    socket = await orchestrator.enrolled()
    pid = await started(socket, "d1", "exec sleep 60")
    socket.cut()
    while "dispatch_finished" not in worker.kinds():
        next_socket = await orchestrator.dialled()
        await next_socket.send(refusal(permanent=False, retry_after_ms=50))
    assert gone(pid)


async def test_a_server_that_keeps_its_leases_extends_the_grace(
    orchestrator: Orchestrator, start: Start
) -> None:
    """It refuses only as its disk does. Regression: after the grace window all runners died."""
    orchestrator.grace_s = 0.5
    worker = start()
    socket = await orchestrator.enrolled()
    pid = await started(socket, "d1", "exec sleep 60")
    socket.cut()
    for _ in range(6):
        next_socket = await orchestrator.dialled()
        assert next_socket.enroll.running == ["d1"]
        await next_socket.send(refusal(permanent=False, retry_after_ms=200, grace_s=0.5))
    again = await orchestrator.enrolled(keep={"d1": 1})
    assert "dispatch_finished" not in worker.kinds()
    again.cut()
    while "dispatch_finished" not in worker.kinds():
        next_socket = await orchestrator.dialled()
        await next_socket.send(refusal(permanent=False, retry_after_ms=50))
    assert gone(pid)


async def test_what_was_cancelled_meanwhile_is_stopped_before_the_worker_is_let_in(
    orchestrator: Orchestrator, start: Start
) -> None:
    """The disk refuses writes. Regression: it cost the worker all else that it ran."""
    worker = start(concurrency=2)
    socket = await orchestrator.enrolled()
    cancelled = await started(socket, "d1", "exec sleep 60")
    kept = await started(socket, "d2", "exec sleep 60")
    socket.cut()
    await (await orchestrator.dialled()).send(
        refusal(permanent=False, retry_after_ms=50, cancel=["d1", "unknown"])
    )
    await worker.until("dispatch_finished")
    assert gone(cancelled) and not gone(kept)
    next_socket = await orchestrator.dialled()
    while next_socket.enroll.running != ["d2"]:
        await next_socket.send(refusal(permanent=False, retry_after_ms=50))
        next_socket = await orchestrator.dialled()
    assert next_socket.enroll.finished == ["d1"]


async def test_permanent_refusal_at_the_return_kills_the_runners(
    orchestrator: Orchestrator, start: Start
) -> None:
    worker = start()
    socket = await orchestrator.enrolled()
    pid = await started(socket, "d1", "exec sleep 60")
    socket.cut()
    await (await orchestrator.dialled()).send(refusal(permanent=True))
    assert await worker.exit_code() == 3
    assert gone(pid)


async def test_silent_orchestrator_is_left(orchestrator: Orchestrator, start: Start) -> None:
    orchestrator.heartbeat_s = 0.4
    worker = start()
    await orchestrator.enrolled()
    reason = (await worker.until("disconnected"))["reason"]
    assert reason.startswith("nothing received for 1.")
    assert (await orchestrator.enrolled()).enroll.token == "t.s"


async def test_orchestrator_that_does_not_read_is_left(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SEND_TIMEOUT_S", 0.3)
    monkeypatch.setattr(link, "CLOSE_TIMEOUT_S", 60)
    worker = start(concurrency=12)
    socket = await orchestrator.enrolled()
    socket.stop_reading()
    await socket.send(*(shell(f"d{n}", "exec cat /dev/zero") for n in range(12)))
    assert "read nothing for 0.3 s" in (await worker.until("disconnected"))["reason"]
    assert len((await orchestrator.enrolled()).enroll.running) == 12


async def test_draining_worker_comes_back_to_hand_its_result_over(
    orchestrator: Orchestrator, start: Start, gate: Gate
) -> None:
    worker = start()
    socket = await orchestrator.enrolled()
    await started(socket, "d1", f"read x < {gate}")
    await socket.send(Drain())
    await socket.expect(Drain)
    socket.cut()
    await worker.until("disconnected")
    gate.let_through()
    await worker.until("dispatch_finished")
    again = await orchestrator.enrolled(keep={"d1": 1})
    assert (await again.expect(Drain)).reason == "shutdown"
    await again.expect(ResultFrame)
    await again.send(Ack(dispatch="d1"))
    assert await worker.exit_code() == 0


async def test_without_reconnect_a_loss_is_the_end(
    orchestrator: Orchestrator, start: Start
) -> None:
    worker = start(reconnect=False)
    socket = await orchestrator.enrolled()
    pid = await started(socket, "d1", "exec sleep 60")
    await socket.close()
    assert await worker.exit_code() == 1
    assert worker.events[-1] == {"kind": "stopped", "reason": "closed by the orchestrator"}
    assert gone(pid)


async def test_unreachable_orchestrator_is_tried_again(start: Start) -> None:
    worker = start(url="ws://127.0.0.1:9")
    await worker.until("connecting", 3)
    assert "no connection to ws://127.0.0.1:9" in (await worker.until("disconnected"))["reason"]


async def test_a_worker_with_work_comes_back_often_enough_for_its_window(
    orchestrator: Orchestrator, start: Start, gate: Gate
) -> None:
    orchestrator.grace_s = 6.0
    worker = start()
    socket = await orchestrator.enrolled()
    await started(socket, "d1", f"read x < {gate}")
    for count in range(1, 6):
        socket.cut()
        await worker.until("retrying", count)
        socket = await orchestrator.enrolled(keep={"d1": 1})
    delays_ms = [event["delayMs"] for event in worker.events if event["kind"] == "retrying"]
    # These workers wait a hundredth of what they may: a sixth of the window, and no longer.
    assert max(delays_ms) <= 10
    gate.let_through()
    assert (await socket.result("d1")).outcome.ok
