"""A result is taken only once the output that came before it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controllers.enrollment import EnrollmentController, Made, create_token
from controllers.lease import LeaseController
from datastore.clock import SystemClock
from datastore.journal import Op
from datastore.kinds import (
    KINDS,
    LEASES,
    WORKERS,
    LeaseSpec,
    LeaseStatus,
    Outcome,
    TokenSpec,
)
from datastore.record import Record
from datastore.store import Store
from swamp.protocol import (
    PROTOCOL_VERSION,
    Ack,
    Drain,
    Enroll,
    Output,
    Refused,
    ResultFrame,
    ToWorker,
    to_worker,
)
from swamp.serve.sessions import Rules, Session, Sessions

AT = "2026-11-29T12:00:00.000Z"
DISPATCH = "r.j.s.1"


class AtOnce:
    """A journal whose commits are durable at once."""

    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            on_durable()


class HeldLog:
    """An event log that writes when told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def output(
        self, run: str, dispatch: str, number: int, event: Any, written: Callable[[], None]
    ) -> None:
        self.waiting.append(written)

    def output_count(self, run: str, dispatch: str) -> int:
        return 0

    def write_one(self) -> None:
        self.waiting.pop(0)()


class Wire:
    """What was sent to the worker."""

    def __init__(self) -> None:
        self.sent: list[ToWorker] = []

    def send(self, text: str) -> None:
        self.sent.append(to_worker(text))

    def abort(self, reason: str) -> None: ...

    @property
    def acks(self) -> int:
        return sum(isinstance(frame, Ack) for frame in self.sent)


class Connected:
    """A worker with one running dispatch."""

    def __init__(self) -> None:
        self.store = Store(KINDS.values(), AtOnce())
        self.log, self.wire = HeldLog(), Wire()
        self.sessions = Sessions(self.store, self.log, Rules(60.0, {}, _nothing))
        clock = SystemClock()
        leases = LeaseController(self.store, self.sessions, clock, grace_s=60.0)
        enrollment = EnrollmentController(self.store, self.sessions, clock, lambda: "uid")
        self.sessions.bind(leases, enrollment, lambda worker: None)
        spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z")
        create_token(self.store, "box", spec, "secret", Made("t", clock.now()))
        lease_spec = LeaseSpec(
            run="r", workflow="w", job="j", step="s",
            worker="box", instance="i", model="m", method="execute",
        )  # fmt: skip
        status = LeaseStatus(state="bound", bound_at=AT)
        self.store.commit([Record(LEASES, DISPATCH, "l", AT, lease_spec, status)])

    async def enroll(self, wire: Wire) -> Session:
        frame = Enroll(
            protocol=PROTOCOL_VERSION, version="1", token="box.secret", instance="i",
            machine="machine", platform="linux", arch="x86_64", capacity=1, running=[DISPATCH],
        )  # fmt: skip
        return await self.sessions.enroll(frame, wire)

    @property
    def state(self) -> str | None:
        return self.store.get(LEASES, DISPATCH).state


async def _nothing(name: str) -> None: ...


def piece(number: int) -> Output:
    return Output(dispatch=DISPATCH, seq=number, stream="stdout", text="x")


RESULT = ResultFrame(dispatch=DISPATCH, outcome=Outcome(ok=True, reason="completed"))


async def test_a_result_waits_for_the_output_before_it() -> None:
    world = Connected()
    session = await world.enroll(world.wire)
    for frame in (piece(1), piece(2), RESULT):
        world.sessions.handle(session, frame)
    world.log.write_one()
    assert (world.state, world.wire.acks) == ("active", 0)
    world.log.write_one()
    assert (world.state, world.wire.acks) == ("completed", 1)


async def test_a_result_without_output_is_taken_at_once() -> None:
    world = Connected()
    session = await world.enroll(world.wire)
    world.sessions.handle(session, RESULT)
    assert (world.state, world.wire.acks) == ("completed", 1)


async def test_a_result_whose_socket_went_meanwhile_is_taken_from_the_next_one() -> None:
    world = Connected()
    session = await world.enroll(world.wire)
    for frame in (piece(1), RESULT):
        world.sessions.handle(session, frame)
    world.sessions.closed(session)
    world.log.write_one()
    assert world.state == "active"
    second = Wire()
    again = await world.enroll(second)
    world.sessions.handle(again, RESULT)
    assert (world.state, second.acks) == ("completed", 1)


async def test_a_drain_is_told_whatever_the_length_of_its_note() -> None:
    world = Connected()
    await world.enroll(world.wire)
    world.sessions.drain("box", "drained by an operator: " + "x" * 1000)
    last = world.wire.sent[-1]
    assert isinstance(last, Drain)
    assert last.reason == "drained by an operator: " + "x" * 176


async def test_a_worker_that_refuses_because_it_drains_is_draining() -> None:
    world = Connected()
    session = await world.enroll(world.wire)
    world.sessions.handle(session, Refused(dispatch=DISPATCH, reason="worker_draining"))
    worker = world.store.get(WORKERS, "box")
    assert worker.status is not None
    assert worker.status.draining
    again = await world.enroll(Wire())
    assert again.worker == "box"
    worker = world.store.get(WORKERS, "box")
    assert worker.status is not None
    assert not worker.status.draining, "until it enrolls again"
