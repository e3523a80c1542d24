"""A second machine with the token of one machine: refused for good, and the first feels nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controllers.enrollment import EnrollmentController, EnrollmentRefused, Made, create_token
from controllers.lease import LeaseController
from datastore.clock import SystemClock
from datastore.journal import Op
from datastore.kinds import KINDS, WORKERS, TokenSpec
from datastore.store import Store
from swamp.protocol import PROTOCOL_VERSION, Enroll
from swamp.serve.sessions import Rules, Sessions


class AtOnce:
    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            on_durable()


class NoLog:
    def output(
        self, run: str, dispatch: str, number: int, event: Any, written: Callable[[], None]
    ) -> None: ...

    def output_count(self, run: str, dispatch: str) -> int:
        return 0


class Wire:
    """A socket whose machine never answers."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.cut: list[str] = []

    def send(self, text: str) -> None:
        self.sent.append(text)

    def abort(self, reason: str) -> None:
        self.cut.append(reason)


async def fresh(name: str) -> None: ...


def enroll(machine: str, instance: str) -> Enroll:
    return Enroll(
        protocol=PROTOCOL_VERSION, version="1", token="box.secret", instance=instance,
        machine=machine, platform="linux", arch="x86_64", capacity=1,
    )  # fmt: skip


async def test_the_permanent_refusal_wins_over_already_connected() -> None:
    """Regression: it was told to come back, and the first socket was probed, even cut for it."""
    store, clock = Store(KINDS.values(), AtOnce()), SystemClock()
    sessions = Sessions(store, NoLog(), Rules(60.0, {}, fresh))
    leases = LeaseController(store, sessions, clock, grace_s=60.0)
    enrollment = EnrollmentController(store, sessions, clock, lambda: "uid")
    sessions.bind(leases, enrollment, lambda worker: None)
    spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z")
    create_token(store, "box", spec, "secret", Made("t", clock.now()))
    first, second = Wire(), Wire()
    await sessions.enroll(enroll("one", "i"), first)
    told = len(first.sent)
    with pytest.raises(EnrollmentRefused, match="bound to another machine") as refused:
        await sessions.enroll(enroll("two", "j"), second)
    assert (refused.value.code, refused.value.permanent) == ("enrollment_allowance_exhausted", True)
    assert (len(first.sent), first.cut) == (told, [])


async def test_nobody_is_let_in_while_the_server_stops() -> None:
    """Regression: a worker that was cut came back at once, and was left behind as connected."""
    store, clock = Store(KINDS.values(), AtOnce()), SystemClock()
    sessions = Sessions(store, NoLog(), Rules(60.0, {}, fresh))
    leases = LeaseController(store, sessions, clock, grace_s=60.0)
    enrollment = EnrollmentController(store, sessions, clock, lambda: "uid")
    sessions.bind(leases, enrollment, lambda worker: None)
    spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z")
    create_token(store, "box", spec, "secret", Made("t", clock.now()))
    await sessions.enroll(enroll("m1", "i1"), Wire())
    sessions.close_all("the orchestrator stops")
    enrollment.all_gone()
    with pytest.raises(EnrollmentRefused, match="stops") as refused:
        await sessions.enroll(enroll("m1", "i1"), Wire())
    assert not refused.value.permanent
    assert store.get(WORKERS, "box").state == "disconnected"
