"""A peer that goes while it is answered costs no line in the log, however it is answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from swamp.serve.answers import errors_as_json

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def upgrade(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    return socket


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"x")
    return response


async def document(request: web.Request) -> web.StreamResponse:
    return web.json_response({})


async def file(request: web.Request) -> web.StreamResponse:
    return web.FileResponse(Path(__file__))


@pytest.mark.parametrize("answer", [upgrade, stream, document, file])
async def test_who_has_gone_is_no_error(answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    answered = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        try:
            return await answer(request)
        finally:
            answered.set()

    app = web.Application(middlewares=[errors_as_json])
    app.router.add_get("/", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    with caplog.at_level(logging.INFO):
        async with aiohttp.ClientSession() as http:
            with pytest.raises(aiohttp.ClientError):
                await (http.ws_connect(url) if answer is upgrade else http.get(url))
        await answered.wait()
        await runner.cleanup()
    assert caplog.messages == []


async def test_a_broken_connection_to_somebody_else_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        raise ConnectionResetError("another one")

    app = web.Application(middlewares=[errors_as_json])
    app.router.add_get("/", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{runner.addresses[0][1]}") as response,
    ):
        assert response.status == 500
    await runner.cleanup()
    assert "Error handling request" in caplog.text
