"""The guard tells of its worker's death: after the kill, until a server has heard it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from swamp.worker.guarding import Guard
from swamp.worker.options import death_url


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


class Server:
    """Takes reports, and answers the first ones with errors."""

    def __init__(self) -> None:
        self.url = ""
        self.errors = 0
        self.runner: int | None = None
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.found_alive = False

    async def handle(self, request: web.Request) -> web.Response:
        self.posts.append((request.path, await request.json()))
        self.found_alive |= self.runner is not None and alive(self.runner)
        return web.Response(status=503 if len(self.posts) <= self.errors else 200)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_post("/{any:.*}", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"ws://127.0.0.1:{runner.addresses[0][1]}/base/"
    yield made
    await runner.cleanup()


async def test_death_is_told_after_the_kill_and_again_until_heard(server: Server) -> None:
    server.errors = 2
    runner = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    server.runner = runner.pid
    async with Guard().running() as guard:
        guard.tell_death_to(death_url(server.url, "w 1"), "old", "stale")
        guard.tell_death_to(death_url(server.url, "w 1"), "i", "c'\n \"")
        guard.begin("f")
        guard.expect("f.1")
        guard.spawned("f.1", runner.pid)
    await runner.wait()
    report = ("/base/api/v1/workers/w 1/death", {"instance": "i", "credential": "c'\n \""})
    assert server.posts == [report] * 3
    assert not server.found_alive


async def test_nobody_is_told_of_an_end_in_order(server: Server) -> None:
    async with Guard().running() as guard:
        guard.tell_death_to(death_url(server.url, "w1"), "i", "c")
        guard.over()
    assert server.posts == []


async def test_without_a_credential_nobody_is_told(server: Server) -> None:
    async with Guard().running() as guard:
        guard.tell_death_to(death_url(server.url, "w1"), "i", "")
    assert server.posts == []
