"""While the disk refuses writes workers still hear from the server: signs of life, and cancels.

Nothing else leaves it.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from controllers.enrollment import EnrollmentController, Made, create_token
from controllers.lease import LeaseController
from datastore.journal import Op
from datastore.kinds import KINDS, TokenSpec
from datastore.store import Store
from swamp.protocol import PROTOCOL_VERSION, Cancel, Drain, Enroll, Ping, Pong, to_worker
from swamp.serve.sessions import Rules, Sessions

NOW = datetime(2026, 3, 1, tzinfo=UTC)


class Journal:
    """Takes everything; it is durable unless the disk is full."""

    trouble: str | None = None

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        assert on_durable is not None
        if self.trouble is None:
            on_durable()
        else:
            self.held.append(on_durable)

    def recover(self) -> None:
        self.trouble = None
        for one in self.held:
            one()


class Clock:
    def now(self) -> datetime:
        return NOW


class Wire:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, text: str) -> None:
        self.sent.append(to_worker(text))

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)


class NoOutput:
    def output(self, *_: Any) -> None:
        raise AssertionError("nothing runs")

    def output_count(self, run: str, dispatch: str) -> int:
        return 0


async def fresh(token: str) -> None:
    """The file of the token is as it was."""


def test_signs_of_life_pass_a_full_disk_and_facts_wait_for_it() -> None:
    async def scenario() -> None:
        journal = Journal()
        store = Store(KINDS.values(), journal)
        sessions = Sessions(store, NoOutput(), Rules(60.0, {}, fresh))
        enrollment = EnrollmentController(store, sessions, Clock(), lambda: "uid")
        leases = LeaseController(store, sessions, Clock(), grace_s=60.0)
        sessions.bind(leases, enrollment, lambda worker: None)
        spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z", max_enrollments=1)
        create_token(store, "w1", spec, "secret", Made("uid", NOW))
        hello = Enroll(
            token="w1.secret", instance="i", machine="m", platform="linux", arch="x86_64",
            version="0", protocol=PROTOCOL_VERSION, capacity=1, running=[], finished=[],
        )  # fmt: skip
        wire = Wire()
        session = await sessions.enroll(hello, wire)
        assert [one.type for one in wire.sent] == ["enrolled"]

        journal.trouble = "the disk is full"
        sessions.handle(session, Drain())
        sessions.drain("w1", "a fact")
        sessions.cancel("w1", "some.dispatch")
        sessions.handle(session, Ping(n=7))
        sessions.look_after(session)
        wish = Cancel(dispatch="some.dispatch")
        assert wire.sent[1:] == [wish, Pong(n=7), Ping(n=0)], "no fact may leave"

        journal.recover()
        assert [one.type for one in wire.sent[4:]] == ["drain"]

    asyncio.run(scenario())
