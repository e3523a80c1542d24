"""Every answer says that it is of a swamp server, so that a client takes no other one for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from swamp import __version__
from swamp.dialling import VERSION_HEADER
from swamp.serve.answers import ApiError, errors_as_json, with_expectations
from swamp.serve.listening import runner_of


async def answers(request: web.Request) -> web.StreamResponse:
    return web.json_response({})


async def refuses(request: web.Request) -> web.StreamResponse:
    raise ApiError(409, "dispatch_ambiguous", "two of them")


async def fails(request: web.Request) -> web.StreamResponse:
    raise RuntimeError("a mistake of ours")


async def streams(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse()
    await stream.prepare(request)
    await stream.write(b"{}\n")
    return stream


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    app = web.Application(middlewares=[errors_as_json])
    routes = [("answers", answers), ("refuses", refuses), ("fails", fails), ("streams", streams)]
    app.add_routes(with_expectations([web.get(f"/{path}", handler) for path, handler in routes]))
    runner = runner_of(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/answers", {}, 200),
        ("GET", "/streams", {}, 200),
        ("GET", "/refuses", {}, 409),
        ("GET", "/fails", {}, 500),
        ("GET", "/nothing", {}, 404),
        ("POST", "/answers", {}, 405),
        ("GET", "/answers", {"Expect": "miracles"}, 417),
        ("GET", "/answers", {"Origin": "http://another.example"}, 403),
    ],
)
async def test_an_answer_is_signed(
    method: str, path: str, headers: dict[str, str], status: int
) -> None:
    async with (
        served() as url,
        aiohttp.ClientSession(url) as http,
        http.request(method, path, headers=headers) as answer,
    ):
        assert (answer.status, answer.headers.get(VERSION_HEADER)) == (status, __version__)
