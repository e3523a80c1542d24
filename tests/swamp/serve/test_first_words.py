"""Who makes no request is let go: the oldest when others come, everybody after a while."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest
from aiohttp import web

from swamp.serve import first_words
from swamp.serve.first_words import FirstWords, room_within
from swamp.serve.reception import Door, Reception
from swamp.serve.turns import Turns

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
MOST = 3


class Hall:
    """A server with a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.first = FirstWords(MOST, lambda: self.now_s)
        self.port = 0

    async def peer(self, says: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(says)
        await asyncio.sleep(0.02)
        return reader, writer


@asynccontextmanager
async def opened() -> AsyncIterator[Hall]:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="in")

    hall = Hall()
    app = web.Application(middlewares=[hall.first.middleware()])
    app.router.add_get("/", hello)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hall.port = listener.getsockname()[1]
        turns = Turns(lambda: 0.0)
        door = Door(listener, None)
        async with Reception(door, runner.server, turns, lambda name: True, hall.first).open():
            yield hall
    await runner.cleanup()


@pytest.fixture
async def hall(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hall]:
    # Else the kernel keeps who says nothing for a second.
    monkeypatch.delattr(socket, "TCP_DEFER_ACCEPT")
    monkeypatch.setattr(first_words, "LOOK_S", 0.01)
    async with opened() as made:
        yield made


async def closed(reader: asyncio.StreamReader) -> bool:
    """Whether nothing more will come from the server."""
    try:
        async with asyncio.timeout(0.2):
            return await reader.read(1) == b""
    except TimeoutError:
        return False


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(GET)
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
    return head.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("half", [b"", b"GET / HT"], ids=["nothing", "half"])
async def test_the_oldest_goes_when_more_come(hall: Hall, half: bytes) -> None:
    peers = [await hall.peer(half) for _ in range(MOST + 1)]
    assert await closed(peers[0][0])
    assert not any([await closed(reader) for reader, _ in peers[1:]])
    reader, writer = peers[1]
    writer.write(GET[len(half) :])
    async with asyncio.timeout(5):
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("half", [b"", b"GET / HT"], ids=["nothing", "half"])
async def test_without_a_request_its_time_ends(hall: Hall, half: bytes) -> None:
    reader, writer = await hall.peer()
    hall.now_s = 20.0
    writer.write(half)
    late, _ = await hall.peer(half)
    hall.now_s = 29.9
    assert not await closed(reader)
    hall.now_s = 30.0
    assert await closed(reader) and not await closed(late)


async def test_who_made_a_request_may_be_silent_and_counts_no_more(hall: Hall) -> None:
    known = [await hall.peer() for _ in range(MOST)]
    assert all([await answered(*one) for one in known])
    peers = [await hall.peer() for _ in range(MOST)]
    hall.now_s = 31.0
    assert all([await closed(reader) for reader, _ in peers])
    assert all([await answered(*one) for one in known])


def test_who_has_gone_is_not_taken_for_the_next_one_of_its_number() -> None:
    now_s = [0.0]
    first = FirstWords(MOST, lambda: now_s[0])
    gone = socket.socket()
    number = gone.fileno()
    between, *others = *socket.socketpair(), *socket.socketpair()
    first.expect(gone)
    gone.close()
    with ExitStack() as opened:
        for one in (between, *others):
            opened.enter_context(one)
        following = opened.enter_context(socket.socket(fileno=os.dup2(others[1].fileno(), number)))
        now_s[0] = 10.0
        first.expect(between)
        now_s[0] = 20.0
        first.expect(following)
        ended = []
        for now_s[0] in (31.0, 45.0, 50.0):
            first.close_late()
            ended.append((has_ended(between), has_ended(following)))
    assert ended == [(False, False), (True, False), (True, True)]


def has_ended(connection: socket.socket) -> bool:
    """Whether it was shut down."""
    look = select.poll()
    look.register(connection, select.POLLHUP)
    return bool(look.poll(0))


def test_half_of_what_may_be_open_is_for_the_silent() -> None:
    assert [room_within(limit) for limit in (10, 256, 1024, 65_536)] == [64, 64, 412, 32_668]
