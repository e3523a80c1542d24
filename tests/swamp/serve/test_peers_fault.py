"""Who speaks no HTTP fills no log; an error of ours is told as before."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import cast

import pytest
from aiohttp import web

from swamp.serve import peers_fault, requests
from swamp.serve.api import BODY_MAX_BYTES, Api
from swamp.serve.listening import application

BROKEN_CHUNK = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"


async def reads(request: web.Request) -> web.Response:
    return web.Response(body=await request.read())


async def does_not_read(request: web.Request) -> web.Response:
    return web.Response()


async def reads_object(request: web.Request) -> web.Response:
    return web.json_response(await requests.body_of(request, {}, {"a": int}))


async def fails(request: web.Request) -> web.Response:
    raise RuntimeError("ours")


class Routes:
    """In place of the API."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/", reads),
            web.post("/body", reads_object),
            web.post("/unread", does_not_read),
            web.get("/fails", fails),
        ]


@pytest.fixture
async def port() -> AsyncIterator[int]:
    runner = application(cast(Api, Routes()), does_not_read, admin=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def answer(port: int, says: bytes) -> bytes:
    """All that is answered until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(says)
    async with asyncio.timeout(5):
        try:
            return await reader.read()
        finally:
            writer.transport.abort()


@pytest.mark.parametrize(
    "says",
    [
        b"GET /" + b"a" * 20_000,
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        BROKEN_CHUNK,
        BROKEN_CHUNK.replace(b"/", b"/unread", 1),
    ],
    ids=["long", "tls", "version", "length", "chunk", "unread"],
)
@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
async def test_what_is_no_http_is_a_line_for_who_looks_closely(
    port: int, says: bytes, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(level):
        assert (await answer(port, says)).startswith(b"HTTP/1.")
    told = [one for one in caplog.records if one.name == peers_fault.log.name]
    assert [one.levelname for one in told] == ["DEBUG"] * (level == logging.DEBUG)
    assert all(one.exc_info is None and len(one.getMessage()) < 300 for one in told)
    assert level == logging.DEBUG or caplog.messages == []


async def test_an_error_of_ours_is_told_with_its_place(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    said = await answer(port, b"GET /fails HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 500 ")
    assert [one.levelname for one in caplog.records if one.exc_info] == ["ERROR"]


@pytest.mark.parametrize(
    ("header", "status", "shown"),
    [
        (b"Expect: caf\xff", b"417 ", b"Expect 'caf?': only 100-continue is known"),
        (b"Origin: caf\xff", b"403 ", b"requests of pages from caf? are not served"),
    ],
)
async def test_a_header_that_is_no_text_is_told_as_text(
    port: int, caplog: pytest.LogCaptureFixture, header: bytes, status: bytes, shown: bytes
) -> None:
    """Regression: such an expectation was answered 500, and logged as an error of ours."""
    says = b"GET /fails HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + header + b"\r\n\r\n"
    told = await answer(port, says)
    assert told.startswith(b"HTTP/1.1 " + status)
    assert shown in told
    assert not caplog.records


@pytest.mark.parametrize("path", [b"/nowhere", b"/fails/more", b"/body", b"/a%0ab"])
async def test_an_expectation_where_no_route_is_is_told_as_text(
    port: int, caplog: pytest.LogCaptureFixture, path: bytes
) -> None:
    """Regression: such a one was answered 500 there, and logged as an error of ours."""
    says = b" HTTP/1.1\r\nHost: h\r\nConnection: close\r\nExpect: caf\xff\r\n\r\n"
    told = await answer(port, b"GET " + path + says)
    assert told.startswith(b"HTTP/1.1 417 ")
    assert b"Expect 'caf?': only 100-continue is known" in told
    assert not caplog.records


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"GET /nowhere", b"404 "),
        (b"POST /nowhere/else", b"404 "),
        (b"GET /body", b"405 "),
        (b"PUT /", b"405 "),
        (b"OPTIONS /fails", b"405 "),
        (b"HEAD /fails", b"500 "),
    ],
)
async def test_a_path_that_is_not_served_and_a_method_that_is_not_are_told_apart(
    port: int, asked: bytes, status: bytes
) -> None:
    told = await answer(port, asked + b" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 " + status)


async def test_a_body_that_is_announced_is_asked_for(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    async with asyncio.timeout(5):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"in")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await reader.readexactly(2) == b"in"
    writer.close()


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
@pytest.mark.parametrize("path", [b"/", b"/body"])
async def test_a_body_that_is_not_encoded_as_it_says_is_refused_with_the_reason(
    port: int, caplog: pytest.LogCaptureFixture, path: bytes, encoding: bytes
) -> None:
    """Regression: it was answered 500."""
    head = b"POST " + path + b" HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 6\r\n"
    told = await answer(port, head + b"Content-Encoding: " + encoding + b"\r\n\r\n\xff\xff{}{}")
    assert told.startswith(b"HTTP/1.1 400 ")
    said = b"the body cannot be read: Can not decode content-encoding: " + encoding
    assert b'{"error": "' + said + b'", "code": "bad_request"}' in told
    assert [one.levelname for one in caplog.records if one.levelno > logging.DEBUG] == []


async def test_a_body_that_stands_still_is_told_so_and_the_connection_closed(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: such a connection was waited for, and kept, for ever."""
    monkeypatch.setattr(requests, "STALLED_S", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n")
    for piece in b'{"a": 1,':
        writer.write(bytes([piece]))
        await asyncio.sleep(0.1)
    assert not reader.at_eof()
    async with asyncio.timeout(5):
        told = await reader.readuntil(b"}")
    assert told.startswith(b"HTTP/1.1 408 ")
    assert b"\r\nConnection: close\r\n" in told
    assert b'{"error": "the body stood still for 0.3s", "code": "stalled"}' in told
    writer.close()


async def test_a_body_that_comes_slowly_is_taken_and_one_that_is_too_large_is_not(
    port: int,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\n")
    for piece in (b'{"a":', b" 1}"):
        await asyncio.sleep(0.05)
        writer.write(piece)
    async with asyncio.timeout(5):
        assert (await reader.readuntil(b'{"a": 1}')).startswith(b"HTTP/1.1 200 ")
    size = BODY_MAX_BYTES + 1
    writer.write(b"POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
    writer.write(bytes(size))
    async with asyncio.timeout(5):
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(port: int) -> None:
    """Regression: it was waited for, up to 4 MiB of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999\r\n\r\n{")
    async with asyncio.timeout(5):
        told = await reader.readuntil(b"}")
    assert told.startswith(b"HTTP/1.1 413 ")
    assert b'"code": "too_large"' in told
    writer.close()


async def test_who_uses_another_method_is_told_which_there_are(port: int) -> None:
    """RFC 9110, 15.5.6: a 405 has the header `Allow`."""
    told = await answer(port, b"PUT /fails HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 405 ")
    assert b"\r\nAllow: GET,HEAD\r\n" in told
    assert b'"code": "http"' in told


@pytest.mark.parametrize(
    ("field", "most"), [("x" * 100_000, 500), ("it's " * 20_000, 4_100), ("x" * 150, 200)]
)
async def test_what_is_quoted_in_an_error_is_not_longer_than_it_helps(
    port: int, field: str, most: int
) -> None:
    """Regression: a name of 100 KB came back whole."""
    body = json.dumps({field: 1}).encode()
    head = b"POST /body HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    told = await answer(port, head % len(body) + body)
    said = json.loads(told.partition(b"\r\n\r\n")[2])
    assert said["code"] == "bad_request"
    assert said["error"].startswith(f"no field in the body '{field[:150]}")
    assert said["error"].endswith(": there are a")
    assert len(said["error"]) <= most
