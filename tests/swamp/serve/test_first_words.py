"""Who has to say something is let go: the longest silent when others come, and who makes no request
after a while.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from swamp.serve import first_words
from swamp.serve.callers import STRANGER
from swamp.serve.connections import Connections
from swamp.serve.first_words import FirstWords
from swamp.serve.reception import Door, Reception
from swamp.serve.turns import Turns

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n"
MOST = 3
LARGE = 32 << 20
SLOW = 600_000
"""More than a sixteenth of what a peer's kernel keeps for it: then that asks for more."""


class Hall:
    """A server with a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.connections = Connections(MOST, most=100)
        self.first = FirstWords(self.connections, lambda: self.now_s)
        self.port = 0
        self._read, self._more = 0, asyncio.Condition()

    async def reads(self, many: int) -> None:
        """Return once so many bytes of bodies have been read."""
        async with asyncio.timeout(5), self._more:
            await self._more.wait_for(lambda: self._read >= many)

    async def take(self, request: web.Request) -> web.Response:
        while piece := await request.content.readany():
            async with self._more:
                self._read += len(piece)
                self._more.notify_all()
        return web.Response(text="in")

    async def peer(self, says: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(says)
        await asyncio.sleep(0.02)
        return reader, writer


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[Hall]:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="in")

    async def large(request: web.Request) -> web.Response:
        return web.Response(body=bytes(LARGE))

    async def file(request: web.Request) -> web.FileResponse:
        return web.FileResponse(tmp_path / "file")

    (tmp_path / "file").write_bytes(bytes(LARGE))
    hall = Hall()
    app = web.Application(middlewares=[hall.first.middleware()])
    app.router.add_get("/", hello)
    app.router.add_get("/large", large)
    app.router.add_get("/file", file)
    app.router.add_post("/", hall.take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hall.port = listener.getsockname()[1]
        turns = Turns(lambda: 0.0)
        door = Door(listener, None)
        reception = Reception(door, runner.server, turns, lambda *_: STRANGER, hall.first)
        async with reception.open():
            yield hall
    await runner.cleanup()


@pytest.fixture
async def hall(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Hall]:
    # Else the kernel keeps who says nothing for a second.
    monkeypatch.delattr(socket, "TCP_DEFER_ACCEPT")
    monkeypatch.setattr(first_words, "LOOK_S", 0.01)
    async with opened(tmp_path) as made:
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


async def test_who_made_a_request_may_be_silent_for_longer(hall: Hall) -> None:
    known = [await hall.peer() for _ in range(MOST - 1)]
    assert all([await answered(*one) for one in known])
    reader, _ = await hall.peer()
    hall.now_s = 31.0
    assert await closed(reader)
    assert all([await answered(*one) for one in known])


async def test_who_rests_after_a_request_counts_too_and_the_longest_goes_first(hall: Hall) -> None:
    """Regression: those that rested were counted nowhere, and took all open files."""
    known = [await hall.peer() for _ in range(MOST)]
    assert all([await answered(*one) for one in known])
    assert await answered(*known[0])
    _other = await hall.peer()
    assert await closed(known[1][0])
    assert all([await answered(*known[number]) for number in (0, 2)])


async def test_a_body_that_does_not_come_on_counts_and_one_that_does_is_let_in(hall: Hall) -> None:
    """Regression: a head alone was enough to be counted no more."""
    slow, silent = [await hall.peer(POST) for _ in "12"]
    slow[1].write(b"1")
    await hall.reads(1)
    peers = [await hall.peer() for _ in range(MOST - 1)]
    assert await closed(silent[0])
    slow[1].write(b"2")
    async with asyncio.timeout(5):
        assert (await slow[0].readline()).startswith(b"HTTP/1.1 200 ")
    assert not any([await closed(reader) for reader, _ in peers])


async def test_a_body_that_was_not_waited_for_makes_nobody_uncounted(hall: Hall) -> None:
    reader, writer = await hall.peer(GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\n"))
    async with asyncio.timeout(5):
        await reader.readuntil(b"\r\n\r\nin")
    writer.write(b"x")
    peers = [await hall.peer() for _ in range(MOST)]
    assert await closed(reader)
    assert not any([await closed(one) for one, _ in peers])


async def test_an_answer_on_its_way_is_not_cut_off(hall: Hall) -> None:
    reader, writer = await hall.peer(GET.replace(b"GET /", b"GET /large"))
    peers = [await hall.peer() for _ in range(MOST + 1)]
    assert await closed(peers[0][0])
    async with asyncio.timeout(5):
        await reader.readuntil(b"\r\n\r\n")
        assert len(await reader.readexactly(LARGE)) == LARGE
    writer.close()


@pytest.mark.parametrize("what", [b"/large", b"/file"])
async def test_an_answer_that_is_not_read_gives_way_after_a_while(hall: Hall, what: bytes) -> None:
    """Regression: it never did. Such connections took all that may be open, and kept it."""
    unread, read = [await hall.peer(GET.replace(b"/", what, 1)) for _ in "12"]
    others = [await hall.peer() for _ in range(MOST)]
    async with asyncio.timeout(5):
        # Its own machine may take some at first.
        for _ in range(5):
            hall.now_s += first_words.UNREAD_S - 1
            assert len(await read[0].readexactly(LARGE // 8)) == LARGE // 8
            others += [await hall.peer() for _ in range(MOST)]
        await read[0].readexactly(LARGE // 8 * 3)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await unread[0].readexactly(LARGE)


async def test_an_answer_that_is_read_slowly_is_not_cut_off(hall: Hall) -> None:
    """Regression: the kernel takes more only when a third of what it has is sent. So on a slow line
    nothing had come on for 10 s, it seemed."""
    reader, writer = await hall.peer(GET.replace(b"/", b"/large", 1))
    others = []
    async with asyncio.timeout(10):
        for _ in range(20):
            others += [await hall.peer() for _ in range(MOST)]
            hall.now_s += first_words.UNREAD_S - 1
            assert len(await reader.readexactly(SLOW)) == SLOW
        await reader.readexactly(LARGE - 20 * SLOW)
    writer.close()


async def test_no_answer_is_cut_off_where_only_silent_ones_are(hall: Hall) -> None:
    silent = [await hall.peer() for _ in range(MOST)]
    for _ in range(3):
        assert await answered(*await hall.peer())
    assert [await closed(reader) for reader, _ in silent] == [True, False, False]


async def test_who_has_gone_takes_no_room(hall: Hall) -> None:
    known = [await hall.peer() for _ in range(MOST)]
    assert all([await answered(*one) for one in known])
    for _, writer in known[1:]:
        writer.close()
    await asyncio.sleep(0.1)
    others = [await hall.peer() for _ in known[1:]]
    assert not any([await closed(reader) for reader, _ in (known[0], *others)])


def test_who_has_gone_is_not_taken_for_the_next_one_of_its_number() -> None:
    now_s = [0.0]
    first = FirstWords(Connections(MOST), lambda: now_s[0])
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
