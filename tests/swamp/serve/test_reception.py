"""Connections of a crowd: who waits, who does not, and what becomes of those that give up."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from swamp.protocol import calling_card
from swamp.serve import turns
from swamp.serve.callers import STRANGER, Caller, Standing
from swamp.serve.connections import CLOSING, Connections
from swamp.serve.first_words import FirstWords
from swamp.serve.reception import Door, Reception
from swamp.serve.turns import Rank, Turn, Turns

STRANGERS = 12
GET = b"GET /api/v1/health HTTP/1.1\r\nHost: h\r\n\r\n"


def dials(token: str, machine: str = "m") -> bytes:
    """What a worker with that token says first."""
    card = "".join(f"{key}: {value}\r\n" for key, value in calling_card(token, machine).items())
    return f"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\n{card}\r\n".encode()


def who(names: str, proof: str) -> Caller:
    """`old` is known, others have a token if they show a proof."""
    if not proof:
        return STRANGER
    return Caller(Standing.KNOWN if names.startswith("old,") else Standing.HOLDER)


class Front(asyncio.Protocol):
    """What connections are handed over to: answers each with its first word, and says who came."""

    def __init__(self, came: list[bytes]) -> None:
        self._came = came
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._came.append(data)
        self._transport.write(b"in")
        self._transport.close()


class Peer:
    """A connection of the outside."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.read()

    def leave(self) -> None:
        self.writer.transport.abort()


class Hall:
    """A reception whose turn is taken: nobody of the crowd comes in before `turn` is over."""

    def __init__(self, connections: Connections, turn: Turn, port: int, came: list[bytes]) -> None:
        self.connections, self.turn, self.came = connections, turn, came
        self._port = port

    async def peer(self, says: bytes) -> Peer:
        made = Peer(*await asyncio.open_connection("127.0.0.1", self._port))
        made.writer.write(says)
        await made.writer.drain()
        return made


@asynccontextmanager
async def opened() -> AsyncIterator[Hall]:
    gate, came = Turns(lambda: 0.0), list[bytes]()
    turn = await gate.begin(Rank.ENROLL_NEW)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections = Connections(STRANGERS, most=100)
        reception = Reception(
            Door(listener, None),
            lambda: Front(came),
            gate,
            who,
            FirstWords(connections, lambda: 0.0),
            waiting_most=3,
        )
        reception.randomness = random.Random(1)
        async with reception.open():
            yield Hall(connections, turn, listener.getsockname()[1], came)


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "AT_ONCE", 1)
    monkeypatch.setattr(turns, "KNOWN_BESIDES", 0)
    monkeypatch.setattr(turns, "TURN_MOST_S", 60.0)


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    async with opened() as made:
        yield made


async def answered_at_once(hall: Hall) -> bool:
    """Whether somebody who is no worker is served; all that came before have been looked at."""
    return await (await hall.peer(GET)).answer() == b"in"


async def test_clients_do_not_wait_behind_a_crowd_and_known_workers_go_before_new_ones(
    hall: Hall,
) -> None:
    new = [await hall.peer(dials(f"new-{number}.secret")) for number in range(2)]
    old = await hall.peer(dials("old.secret"))
    assert await answered_at_once(hall)
    assert hall.came == [GET]
    hall.turn.over()
    assert [await one.answer() for one in (*new, old)] == [b"in"] * 3
    assert [one.split(b"Worker: ")[1].split(b",")[0] for one in hall.came[1:]] == [
        b"old", b"new-0", b"new-1",
    ]  # fmt: skip


async def test_who_shows_no_token_comes_last_and_fills_a_queue_of_its_own(hall: Hall) -> None:
    bare = dials("old.secret").replace(b"-Proof", b"-Else")
    strangers = [await hall.peer(bare) for _ in range(3)]
    assert (await (await hall.peer(bare)).answer()).startswith(b"HTTP/1.1 503 ")
    shown = [await hall.peer(dials("new.secret")), await hall.peer(dials("old.secret"))]
    assert await answered_at_once(hall)
    hall.turn.over()
    assert [await one.answer() for one in (*strangers, *shown)] == [b"in"] * 5
    assert [b"-Proof" in one for one in hall.came[1:]] == [True, True, False, False, False]


async def test_of_a_fleet_token_the_machine_is_known() -> None:
    names = calling_card("fleet.secret", "machine")["Swamp-Worker"].split(", ")
    assert names[0] == "fleet" and names[1].startswith("fleet-") and "secret" not in str(names)


async def test_who_gives_up_while_it_waits_is_never_handed_over(hall: Hall) -> None:
    peers = [await hall.peer(dials(f"new-{number}.secret")) for number in range(3)]
    assert await answered_at_once(hall)
    peers[0].leave()
    peers[1].writer.close()
    await peers[1].writer.wait_closed()
    hall.turn.over()
    assert await peers[2].answer() == b"in"
    assert [b"new-2" in one for one in hall.came] == [False, True]


async def test_more_than_may_wait_are_told_when_to_come_back(hall: Hall) -> None:
    for number in range(3):
        await hall.peer(dials(f"new-{number}.secret"))
    late = await hall.peer(dials("late.secret"))
    said = await late.answer()
    assert said.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: " in said
    # Those that were here before have a queue of their own.
    old = await hall.peer(dials("old.secret"))
    hall.turn.over()
    assert await old.answer() == b"in"


async def test_strangers_have_one_budget_whether_they_wait_or_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: those who waited had as many files besides those of the silent."""
    # Else the kernel keeps who says nothing for a second.
    monkeypatch.delattr(socket, "TCP_DEFER_ACCEPT")
    bare = dials("old.secret").replace(b"-Proof", b"-Else")
    async with opened() as hall:
        silent = [await hall.peer(b"") for _ in range(STRANGERS)]
        waiting = [await hall.peer(bare) for _ in range(3)]
        assert [await one.answer() for one in silent[:3]] == [b""] * 3
        known = [await hall.peer(dials(f"old-{number}.secret")) for number in range(3)]
        assert await answered_at_once(hall)
        assert hall.connections.strangers <= STRANGERS
        hall.turn.over()
        assert [await one.answer() for one in (*waiting, *known)] == [b"in"] * 6


async def test_where_the_known_need_the_files_strangers_in_the_crowd_are_told_to_come_back(
    hall: Hall,
) -> None:
    strangers = [
        await hall.peer(dials("old.secret").replace(b"-Proof", b"-Else")) for _ in range(3)
    ]
    assert await answered_at_once(hall)
    assert hall.connections.strangers == 3
    # As if so many workers had come.
    hall.connections._strangers_most, hall.connections._most = 2, CLOSING + 2
    hall.connections.make_room()
    assert (await strangers[2].answer()).startswith(b"HTTP/1.1 503 ")
    hall.turn.over()


async def test_a_crowd_that_is_sent_away_does_not_come_back_at_one_moment(hall: Hall) -> None:
    """Regression: all were told the same second. Workers spread themselves, others do not."""
    for number in range(3):
        await hall.peer(dials(f"new-{number}.secret"))
    late = [await hall.peer(dials(f"late-{number}.secret")) for number in range(40)]
    said = [(await one.answer()).decode() for one in late]
    drawn = random.Random(1)
    assert [int(one.split("Retry-After: ")[1].split("\r")[0]) for one in said] == [
        drawn.randint(1, 3) for _ in late
    ]


async def test_who_says_nothing_keeps_nobody_waiting(hall: Hall) -> None:
    silent = await hall.peer(b"")
    assert await answered_at_once(hall)
    silent.writer.write(GET)
    assert await silent.answer() == b"in"


async def test_the_end_closes_what_waits() -> None:
    async with opened() as hall:
        waits = await hall.peer(dials("new.secret"))
        assert await answered_at_once(hall)
    with pytest.raises(ConnectionResetError):
        await waits.answer()
    assert hall.came == [GET]
