"""Dispatch, capacity, cancel and drain, as the orchestrator sees them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_orchestrator import Gate, Orchestrator, RunningWorker, Socket, refusal, shell

from datastore.errors import SwampError
from datastore.kinds import Call
from swamp.execute.streams import Pump
from swamp.protocol import (
    Accepted,
    Ack,
    Cancel,
    Drain,
    Output,
    OutputAck,
    Ping,
    Pong,
    Refused,
    ResultFrame,
)
from swamp.worker import connect
from swamp.worker.connect import run_worker
from swamp.worker.options import WorkerOptions, data_url, socket_url

Start = Callable[..., RunningWorker]


async def accepted(socket: Socket, *dispatches: str) -> None:
    for dispatch in dispatches:
        assert (await socket.expect(Accepted)).dispatch == dispatch


async def test_enrolls_with_what_it_was_given(orchestrator: Orchestrator, start: Start) -> None:
    worker = start(labels={"pool": "a"}, concurrency=3)
    socket = await orchestrator.enrolled()
    enroll = socket.enroll
    assert (enroll.token, enroll.labels, enroll.capacity) == ("t.s", {"pool": "a"}, 3)
    assert (enroll.running, enroll.finished) == ([], [])
    assert await worker.until("enrolled") == {
        "kind": "enrolled",
        "workerId": "w1",
        "reconnect": False,
    }
    assert worker.events[0] == {"kind": "connecting", "url": orchestrator.url, "attempt": 1}


async def test_dispatch_is_accepted_streamed_and_settled(
    orchestrator: Orchestrator, start: Start
) -> None:
    worker = start()
    socket = await orchestrator.enrolled()
    dispatch = shell("d1", 'echo "$A"; echo no >&2; exit 7', env={"A": "hello"})
    await socket.send(dispatch)
    await accepted(socket, "d1")
    result = await socket.result("d1")
    assert (result.outcome.reason, result.outcome.exit_code) == ("failed", 7)
    assert {o.stream: o.text for o in socket.outputs} == {"stdout": "hello\n", "stderr": "no\n"}
    assert [o.seq for o in socket.outputs] == [1, 2]
    assert await worker.until("dispatch_started") == {
        "kind": "dispatch_started",
        "dispatchId": "d1",
        "modelType": "command/shell",
        "methodName": "execute",
        "workflowName": "wf",
        "stepName": "d1",
    }
    finished = await worker.until("dispatch_finished")
    assert (finished["status"], finished["error"]) == ("error", "Command exited with code 7")
    assert (finished["workflowName"], finished["stepName"]) == ("wf", "d1")


async def test_frames_of_one_message_are_taken_in_order(
    orchestrator: Orchestrator, start: Start
) -> None:
    start(concurrency=2)
    socket = await orchestrator.dialled()
    await socket.send_together(orchestrator.welcome(), shell("a.1", "true"), Ping(n=7))
    await socket.expect(Accepted)
    assert (await socket.expect(Pong)).n == 7
    await socket.result("a.1", ack=False)
    await socket.send_together(Ack(dispatch="a.1"), shell("b.1", "true"), Ping(n=8))
    assert (await socket.expect(Accepted)).dispatch == "b.1"
    await socket.result("b.1")


async def test_call_that_cannot_be_is_a_result(orchestrator: Orchestrator, start: Start) -> None:
    start()
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", "true", workingdir="/"))
    await accepted(socket, "d1")
    outcome = (await socket.result("d1")).outcome
    assert outcome.reason == "start_failed"
    assert outcome.error is not None and "did you mean 'workingDir'" in outcome.error


async def test_environment_of_two_runners_does_not_mix(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWAMP_WORKER_TOKEN", "t.s")
    monkeypatch.setenv("OWN", "worker")
    start(concurrency=2)
    socket = await orchestrator.enrolled()
    for name in ("a", "b"):
        shipped = {"WHO": name, "PATH": "/nowhere", "OWN": f"server-{name}"}
        await socket.send(shell(name, "env").model_copy(update={"environment": shipped}))
    await accepted(socket, "a", "b")
    for _ in range(2):
        frame = await socket.expect(ResultFrame)
        lines = frame.outcome.stdout.splitlines()
        assert f"WHO={frame.dispatch}" in lines and f"OWN=server-{frame.dispatch}" in lines
        assert "PATH=/nowhere" not in lines
        swamp = [line for line in lines if line.startswith("SWAMP_")]
        assert f"SWAMP_DISPATCH={frame.dispatch}" in swamp
        assert {line.partition("=")[0] for line in swamp} == {"SWAMP_DISPATCH", "SWAMP_RUNNER"}


async def test_beyond_capacity_is_busy_and_a_freed_slot_is_free(
    orchestrator: Orchestrator, start: Start, gate: Gate
) -> None:
    start(concurrency=2)
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", f"read x < {gate}"), shell("d2", "exec sleep 60"))
    await accepted(socket, "d1", "d2")
    await socket.send(shell("d3", "true"))
    refused = await socket.expect(Refused)
    assert (refused.dispatch, refused.reason) == ("d3", "worker_busy")
    gate.let_through()
    await socket.result("d1", ack=False)
    await socket.send(shell("d4", "true"))
    await accepted(socket, "d4")
    await socket.result("d4")


async def test_known_dispatch_is_answered_and_not_started_again(
    orchestrator: Orchestrator, start: Start, tmp_path: Path
) -> None:
    worker = start()
    socket = await orchestrator.enrolled()
    dispatch = shell("d1", f"echo x >> {tmp_path}/starts")
    await socket.send(dispatch, dispatch)
    await accepted(socket, "d1", "d1")
    first = await socket.result("d1", ack=False)
    await socket.send(dispatch)
    await accepted(socket, "d1")
    assert await socket.result("d1") == first
    assert (tmp_path / "starts").read_text() == "x\n"
    assert worker.kinds().count("dispatch_started") == 1


async def test_cancel_stops_the_runner_and_its_result_follows(
    orchestrator: Orchestrator, start: Start
) -> None:
    start()
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", "echo up; exec sleep 60"))
    await accepted(socket, "d1")
    await socket.expect(Output)
    await socket.send(Cancel(dispatch="d1"), Cancel(dispatch="unknown"))
    outcome = (await socket.result("d1")).outcome
    assert (outcome.reason, outcome.signal, outcome.stdout) == ("cancelled", 15, "up\n")


async def test_ping_is_answered_while_output_is_not_taken(
    orchestrator: Orchestrator, start: Start
) -> None:
    start()
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", "exec yes"))
    await accepted(socket, "d1")
    while len(socket.text("d1")) < 900_000:
        await socket.expect(Output)
    await socket.send(Ping(n=9))
    assert (await socket.expect(Pong)).n == 9


async def test_unacknowledged_output_stops_the_child_and_not_the_worker(
    orchestrator: Orchestrator, start: Start
) -> None:
    start(concurrency=2)
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", "head -c 3000000 /dev/zero | tr '\\0' x"))
    await accepted(socket, "d1")
    await socket.send(shell("d2", "true"))
    await accepted(socket, "d2")
    assert (await socket.expect(ResultFrame)).dispatch == "d2"
    while len(socket.text("d1")) < 900_000:
        await socket.expect(Output)
    await socket.send(shell("d3", "sleep 0.1"))
    await accepted(socket, "d3")
    assert (await socket.expect(ResultFrame)).dispatch == "d3"
    assert len(socket.text("d1")) < 1_200_000
    await socket.send(OutputAck(dispatch="d1", seq=socket.outputs[-1].seq))
    await socket.result("d1")
    assert socket.text("d1") == "x" * 3_000_000
    assert [o.seq for o in socket.outputs] == list(range(1, len(socket.outputs) + 1))


async def test_first_signal_drains_and_waits_for_the_acknowledgement(
    orchestrator: Orchestrator, start: Start, gate: Gate
) -> None:
    worker = start(concurrency=2)
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", f"read x < {gate}"))
    await accepted(socket, "d1")
    os.kill(os.getpid(), signal.SIGTERM)
    assert (await socket.expect(Drain)).reason == "signal"
    await socket.send(shell("d2", "true"))
    assert (await socket.expect(Refused)).reason == "worker_draining"
    gate.let_through()
    assert (await socket.result("d1", ack=False)).outcome.ok
    assert not worker.task.done()
    await socket.send(Ack(dispatch="d1"))
    assert await worker.exit_code() == 0
    assert worker.events[-2:] == [
        {"kind": "drain_complete"},
        {"kind": "stopped", "reason": "signal"},
    ]
    await socket.closed.wait()


async def test_second_signal_kills_and_hands_the_results_over(
    orchestrator: Orchestrator, start: Start
) -> None:
    worker = start()
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", "echo up; exec sleep 60"))
    await accepted(socket, "d1")
    await socket.expect(Output)
    os.kill(os.getpid(), signal.SIGINT)
    await socket.expect(Drain)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (await socket.result("d1")).outcome.reason == "worker_lost"
    assert await worker.exit_code() == 4
    assert worker.events[-1] == {"kind": "stopped", "reason": "signal"}


async def test_drain_timeout_does_not_wait_for_ever(
    orchestrator: Orchestrator, start: Start
) -> None:
    worker = start(drain_timeout_s=0.1)
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", "exec sleep 60"))
    await accepted(socket, "d1")
    await socket.send(Drain(reason="please"))
    assert (await socket.expect(Drain)).reason == "shutdown"
    await socket.result("d1")
    assert await worker.exit_code() == 4


async def test_a_drain_that_an_operator_asked_for_is_told_with_the_note(
    orchestrator: Orchestrator, start: Start
) -> None:
    worker = start()
    socket = await orchestrator.enrolled()
    await socket.send(Drain(reason="drained by an operator: new disk"))
    assert (await socket.expect(Drain)).reason == "shutdown"
    assert await worker.exit_code() == 0
    told = {"reason": "shutdown", "detail": "drained by an operator: new disk"}
    assert await worker.until("draining") == {"kind": "draining", **told}
    assert worker.events[-1] == {"kind": "stopped", **told}


async def test_max_dispatches_and_idle_timeout_drain(
    orchestrator: Orchestrator, start: Start
) -> None:
    worker = start(max_dispatches=1)
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", "true"), shell("d2", "true"))
    await accepted(socket, "d1")
    assert (await socket.expect(Drain)).reason == "max-dispatches"
    assert (await socket.expect(Refused)).reason == "worker_draining"
    await socket.result("d1")
    assert await worker.exit_code() == 0
    assert worker.kinds().index("dispatch_started") < worker.kinds().index("draining")

    idle = start(idle_timeout_s=0.2)
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", "sleep 0.5"))
    await accepted(socket, "d1")
    await socket.result("d1")
    assert await idle.exit_code() == 0
    assert idle.kinds().index("dispatch_finished") < idle.kinds().index("draining")
    assert idle.events[-1] == {"kind": "stopped", "reason": "idle-timeout"}


async def test_a_probe_is_none_of_the_dispatches_that_a_worker_is_for(
    orchestrator: Orchestrator, start: Start
) -> None:
    worker = start(max_dispatches=1)
    socket = await orchestrator.enrolled()
    asked = Call(
        model_type="swamp/fleet-probe", model="fleet-probe", method="verify",
        arguments={"probeMarker": "here", "outputs": ["probe-result"]},
    )  # fmt: skip
    await socket.send(shell("probe.x.1", "").model_copy(update={"call": asked}))
    await accepted(socket, "probe.x.1")
    outcome = (await socket.result("probe.x.1")).outcome
    assert json.loads(outcome.stdout)["probeMarker"] == "here"
    assert not outcome.ok, "it was told of no data plane"
    assert "draining" not in worker.kinds()
    await socket.send(shell("d1", "true"))
    await accepted(socket, "d1")
    assert (await socket.expect(Drain)).reason == "max-dispatches"
    await socket.result("d1")
    assert await worker.exit_code() == 0


async def test_drain_before_the_first_enrollment_ends_at_once(
    orchestrator: Orchestrator, start: Start
) -> None:
    worker = start()
    await orchestrator.dialled()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await worker.exit_code() == 0


async def test_permanent_refusal_ends_the_worker(orchestrator: Orchestrator, start: Start) -> None:
    worker = start()
    socket = await orchestrator.dialled()
    await socket.send(refusal(permanent=True))
    assert await worker.exit_code() == 3
    assert worker.events[-1] == {"kind": "stopped", "reason": "token 't' has been revoked"}


async def test_temporary_refusal_is_tried_again_when_told(
    orchestrator: Orchestrator, start: Start
) -> None:
    worker = start()
    await (await orchestrator.dialled()).send(refusal(permanent=False, retry_after_ms=200))
    assert (await worker.until("disconnected"))["reason"] == "token 't' has been revoked"
    assert 200 <= (await worker.until("retrying"))["delayMs"] <= 300
    await orchestrator.enrolled()
    assert (await worker.until("connecting", 2))["attempt"] == 2


async def test_two_workers_of_one_cache_folder_are_one_machine(
    orchestrator: Orchestrator, start: Start, tmp_path: Path
) -> None:
    start()
    first = (await orchestrator.dialled()).enroll
    start()
    second = (await orchestrator.dialled()).enroll
    assert first.machine == second.machine and first.instance != second.instance
    assert first.dial < second.dial, "what the earlier process said is older"
    assert (tmp_path / "cache" / "machine-id").stat().st_mode & 0o777 == 0o600


async def test_what_cannot_start_says_so(start: Start, tmp_path: Path) -> None:
    for options, says in (
        ({"url": "ftp://x"}, "expected ws://"),
        ({"url": "ws://u:p@x"}, "a worker has a token"),
        ({"concurrency": 0}, "capacity"),
        ({"cache_dir": Path("/dev/null/x")}, "cache folder"),
        ({"ca_cert": Path("/no/such")}, "--ca-cert /no/such: No such file"),
        ({"url": "wss://x", "ca_cert": Path(__file__)}, "is no PEM file"),
        ({"url": "ws://h:99999"}, "from 1 to 65535"),
        ({"url": "ws://h:0"}, "from 1 to 65535"),
        ({"url": "ws://[h"}, "expected ws://"),
    ):
        with pytest.raises(SwampError, match=says):
            await start(**options).task
    (tmp_path / "cache" / "machine-id").write_text("what?")
    with pytest.raises(SwampError, match="not a machine id"):
        await start().task


def test_addresses() -> None:
    assert socket_url("https://h/prefix/") == "wss://h/prefix/"
    assert socket_url("ws://h:1") == "ws://h:1"
    assert "s3cret" not in repr(WorkerOptions(url="ws://h", token="t.s3cret"))


@pytest.mark.parametrize(
    ("url", "outputs"),
    [
        ("ws://h:9", "http://h:9/api/v1/data"),
        ("https://h/behind/a/proxy/?q=1", "https://h/behind/a/proxy/api/v1/data"),
        ("WSS://[::1]:4", "https://[::1]:4/api/v1/data"),
    ],
)
def test_outputs_take_the_way_that_the_worker_dialled(url: str, outputs: str) -> None:
    assert data_url(url) == outputs


async def test_a_runner_gets_its_credential_and_shows_neither_it_nor_secrets(
    orchestrator: Orchestrator, start: Start
) -> None:
    start()
    socket = await orchestrator.enrolled()
    run = 'echo "$SWAMP_DATA_URL $SWAMP_DATA_TOKEN $K"; exit 1'
    dispatch = shell("d1", run, env={"K": "topsecret"})
    shipped = {"credential": "d1.0123456789", "secrets": ["topsecret"]}
    await socket.send(dispatch.model_copy(update=shipped))
    await accepted(socket, "d1")
    result = await socket.result("d1")
    url = orchestrator.url.replace("ws:", "http:")
    assert result.outcome.stdout == f"{url}/api/v1/data *** ***\n"
    assert socket.text("d1") == result.outcome.stdout


async def test_a_report_that_nobody_can_read_leaves_no_half_dead_worker(
    orchestrator: Orchestrator, tmp_path: Path
) -> None:
    def unread(event: dict[str, object]) -> None:
        raise BrokenPipeError

    options = WorkerOptions(url=orchestrator.url, token="t.s", cache_dir=tmp_path / "cache")
    worker = asyncio.ensure_future(run_worker(options, unread))
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", "true"))
    await accepted(socket, "d1")
    await socket.result("d1")
    await socket.send(Ack(dispatch="d1"))
    await socket.send(Drain(reason="by an operator"))
    assert await asyncio.wait_for(worker, 10) == 0


async def test_a_cancel_in_one_message_with_its_dispatch_is_heard(
    orchestrator: Orchestrator, start: Start, tmp_path: Path
) -> None:
    """Regression: it found no runner yet, was dropped, and the step ran to its end."""
    start()
    socket = await orchestrator.enrolled()
    witness = tmp_path / "begun"
    await socket.send_together(shell("d1", f"touch {witness}"), Cancel(dispatch="d1"))
    await socket.expect(Accepted)
    result = await socket.expect(ResultFrame)
    assert result.outcome.reason == "cancelled"
    assert not witness.exists()


@pytest.mark.parametrize("passes", [True, False])
async def test_where_no_file_may_be_opened_a_step_waits_for_a_while(
    orchestrator: Orchestrator, start: Start, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    """A machine that has no file more for a moment is no fault of the step."""
    refusals = 2 if passes else 1_000
    open_, number = Pump.open, errno.ENFILE

    def refuse(pump: Pump) -> int:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise OSError(number, os.strerror(number))
        return open_(pump)

    monkeypatch.setattr(connect, "_AGAIN_S", 0.001)
    monkeypatch.setattr(connect, "_FILES_WITHIN_S", 30.0 if passes else 0.01)
    monkeypatch.setattr(Pump, "open", refuse)
    worker = start()
    socket = await orchestrator.enrolled()
    await socket.send(shell("d1", "echo ran"))
    await accepted(socket, "d1")
    outcome = (await socket.expect(ResultFrame)).outcome
    if passes:
        assert (outcome.ok, outcome.stdout) == (True, "ran\n")
    else:
        assert (outcome.ok, outcome.reason) == (False, "start_failed")
        assert outcome.error == f"Command could not be started: {os.strerror(number)}"
    told = [one["message"] for one in worker.events if one["kind"] == "warning"]
    within = "30 s" if passes else "0 s"
    assert told == [
        f"a step cannot be started just now: {os.strerror(number)}; it is tried again for {within}"
    ]
