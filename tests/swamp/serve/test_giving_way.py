"""One live process per machine: who is connected stays while it lives, whatever socket it is on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from test_second_machine import NoLog

from controllers.enrollment import EnrollmentController, EnrollmentRefused, Made, create_token
from controllers.lease import LeaseController
from datastore.clock import SystemClock
from datastore.journal import Op
from datastore.kinds import KINDS, LEASES, LeaseSpec, LeaseStatus, TokenSpec
from datastore.record import Record
from datastore.store import Store
from swamp.protocol import PROTOCOL_VERSION, Enroll, Ping, Pong, to_worker
from swamp.serve.session import Session
from swamp.serve.sessions import SILENCE_HEARTBEATS, Rules, Sessions

AT = "2026-01-01T00:00:00.000Z"
DISPATCH = "r.j.s.1"


class Disk:
    """A journal that is at once on disk, unless it is told to wait."""

    trouble = None

    def __init__(self) -> None:
        self.waits = False

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None and not self.waits:
            on_durable()


class Wire:
    """A socket. `answer` is what its process does when it is pinged."""

    def __init__(self, answer: Callable[[], None] = lambda: None) -> None:
        self.answer = answer
        self.pinged = asyncio.Event()
        self.cut: list[str] = []

    def send(self, text: str) -> None:
        if isinstance(to_worker(text), Ping):
            self.pinged.set()
            asyncio.get_running_loop().call_soon(self.answer)

    def abort(self, reason: str) -> None:
        self.cut.append(reason)


async def fresh(name: str) -> None: ...


class Fleet:
    """A server's sessions, and the processes of one machine."""

    def __init__(self) -> None:
        self.disk, clock = Disk(), SystemClock()
        self.store = Store(KINDS.values(), self.disk)
        self.sessions = Sessions(self.store, NoLog(), Rules(60.0, {}, fresh))
        self.leases = LeaseController(self.store, self.sessions, clock, grace_s=60.0)
        enrollment = EnrollmentController(self.store, self.sessions, clock, lambda: "uid")
        self.sessions.bind(self.leases, enrollment, lambda worker: None)
        spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z")
        create_token(self.store, "box", spec, "secret", Made("t", clock.now()))

    async def enroll(self, instance: str, dial: int, wire: Wire, *running: str) -> Session:
        frame = Enroll(
            protocol=PROTOCOL_VERSION, version="1", token="box.secret", instance=instance,
            machine="m", platform="linux", arch="x86_64", capacity=1, dial=dial,
            running=list(running),
        )  # fmt: skip
        return await self.sessions.enroll(frame, wire)

    async def alive(self, instance: str, dial: int, *running: str) -> Wire:
        """It enrolls on a socket on which it answers."""
        wire = Wire(lambda: self.sessions.handle(session, Pong(n=0)))
        session = await self.enroll(instance, dial, wire, *running)
        return wire

    def lease(self, instance: str) -> None:
        spec = LeaseSpec(
            run="r", workflow="w", job="j", step="s",
            worker="box", instance=instance, model="m", method="execute",
        )  # fmt: skip
        status = LeaseStatus(state="bound", bound_at=AT)
        self.store.commit([Record(LEASES, DISPATCH, "l", AT, spec, status)])

    @property
    def connected(self) -> str | None:
        info = self.sessions.session("box")
        return None if info is None else info.instance


async def refused(enrolling: Any) -> EnrollmentRefused:
    with pytest.raises(EnrollmentRefused) as found:
        await enrolling
    assert not found.value.permanent
    return found.value


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr("swamp.serve.giving_way.PROBE_S", 0.2)
    return Fleet()


async def test_a_process_that_came_back_while_its_old_socket_was_asked_keeps_its_leases(
    fleet: Fleet,
) -> None:
    """Regression: its new socket was cut unasked, and its step ran twice at once."""
    broken = Wire()
    await fleet.enroll("a", 1, broken)
    fleet.lease("a")
    newcomer = asyncio.ensure_future(fleet.enroll("b", 10, Wire()))
    await broken.pinged.wait()
    back = await fleet.alive("a", 2, DISPATCH)
    assert (await refused(newcomer)).code == "already_connected"
    assert back.pinged.is_set() and back.cut == [] and fleet.connected == "a"
    assert fleet.store.get(LEASES, DISPATCH).live


async def test_of_two_newcomers_at_once_the_second_does_not_cut_the_first(fleet: Fleet) -> None:
    broken, first = Wire(), Wire()
    await fleet.enroll("a", 1, broken)
    one = asyncio.ensure_future(fleet.alive("b", 10))
    two = asyncio.ensure_future(fleet.alive("c", 20))
    first = await one
    assert (await refused(two)).code == "already_connected"
    assert first.cut == [] and fleet.connected == "b"
    assert broken.cut == ["replaced by a newer socket of the same worker"]


async def test_who_came_back_and_fell_silent_again_gives_way_all_the_same(fleet: Fleet) -> None:
    broken, silent = Wire(), Wire()
    await fleet.enroll("a", 1, broken)
    newcomer = asyncio.ensure_future(fleet.enroll("b", 10, Wire()))
    await broken.pinged.wait()
    await fleet.enroll("a", 2, silent)
    await newcomer
    assert silent.pinged.is_set() and len(silent.cut) == 1 and fleet.connected == "b"


async def test_who_has_not_been_told_yet_that_it_is_enrolled_cannot_answer_and_stays(
    fleet: Fleet,
) -> None:
    """Its welcome waits for the disk, and so would a ping."""
    broken = Wire()
    await fleet.enroll("a", 1, broken)
    newcomer = asyncio.ensure_future(fleet.enroll("b", 10, Wire()))
    await broken.pinged.wait()
    fleet.disk.waits = True
    back = await fleet.alive("a", 2)
    assert (await refused(newcomer)).code == "already_connected"
    assert back.cut == [] and fleet.connected == "a"


async def test_a_server_that_stands_still_while_it_asks_takes_nobody_for_dead(fleet: Fleet) -> None:
    """Regression: the answer had come by then, and was not read yet."""

    def stand_still() -> None:
        time.sleep(0.3)
        asyncio.get_running_loop().call_soon(answer)

    def answer() -> None:
        fleet.sessions.handle(session, Pong(n=0))

    wire = Wire(stand_still)
    session = await fleet.enroll("a", 1, wire)
    assert (await refused(fleet.enroll("b", 10, Wire()))).code == "already_connected"
    assert wire.cut == [] and fleet.connected == "a"


async def test_a_look_after_a_replaced_socket_does_not_cut_the_new_one(fleet: Fleet) -> None:
    """Regression: silent were those that it was looked after for, cut was who was connected."""
    old = await fleet.enroll("a", 1, Wire())
    new = Wire()
    await fleet.enroll("a", 2, new)
    old.heard_at_s -= 2 * SILENCE_HEARTBEATS * fleet.sessions.heartbeat_s
    fleet.sessions.look_after(old)
    assert new.cut == [] and fleet.connected == "a"


# -- the order of dials --------------------------------------------------------------------------


async def test_a_machine_that_lost_its_count_is_let_in_at_its_second_dial(fleet: Fleet) -> None:
    """Regression: it waited for its silent predecessor to be cut, half a minute."""
    old = Wire()
    await fleet.enroll("a", 100, old)
    told = await refused(fleet.enroll("b", 1, Wire()))
    assert (told.code, old.cut) == ("replaced", []) and told.retry_after_ms <= 200
    assert old.pinged.is_set(), "it was asked before"
    await fleet.enroll("b", 2, Wire())
    assert fleet.connected == "b" and len(old.cut) == 1


async def test_two_machines_with_one_id_hear_that_the_other_one_lives(fleet: Fleet) -> None:
    """Regression: the one with the lower count heard of a newer socket of its own machine."""
    first = await fleet.alive("a", 100)
    for dial in (1, 2, 3):
        told = await refused(fleet.enroll("b", dial, Wire()))
        assert told.code == "already_connected" and "another process that is alive" in str(told)
    assert first.cut == []


async def test_what_an_ended_process_said_does_not_replace_who_is_slow_to_answer(
    fleet: Fleet,
) -> None:
    """It cannot come back. What it said on two sockets, before it ended, is read at once."""
    slow = Wire()
    await fleet.enroll("b", 100, slow)
    late = [asyncio.ensure_future(fleet.enroll("a", dial, Wire())) for dial in (1, 2)]
    for one in late:
        assert (await refused(one)).code == "replaced"
    assert slow.cut == [] and fleet.connected == "b"
    told = await refused(fleet.enroll("a", 1, Wire()))
    assert told.code == "replaced", "nothing newer than what was refused"
    assert (await refused(fleet.enroll("c", 3, Wire()))).code == "replaced", "of another one"
    assert slow.cut == []
