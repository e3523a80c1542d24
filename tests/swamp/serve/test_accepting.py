"""No room for one connection more: one line a second, and what waits is taken in afterwards."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from datastore.layout import Layout
from datastore.trouble import Trouble
from open_file_limit import no_file_more
from swamp.serve import accepting
from swamp.serve.accepting import Accepting
from swamp.serve.listening import on_socket


@pytest.fixture
async def listener() -> AsyncIterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


async def test_without_room_it_rests_and_goes_on(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "PAUSE_S", 0.05)
    taken = asyncio.Queue[socket.socket]()
    peers = [socket.socket() for _ in range(3)]
    with Accepting(listener, taken.put_nowait).open():
        for peer in peers:
            peer.connect(listener.getsockname())
        with no_file_more():
            await asyncio.sleep(0.12)
        async with asyncio.timeout(5):
            for peer in peers:
                (await taken.get()).close()
                peer.close()
    assert 1 <= len(caplog.messages) <= 3
    line = f"no connection can be taken in: {os.strerror(errno.EMFILE)}; trying again"
    assert set(caplog.messages) == {line}


async def test_the_end_forgets_what_it_would_try_again(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "PAUSE_S", 0.03)
    with socket.socket() as peer, Accepting(listener, lambda connection: None).open():
        peer.connect(listener.getsockname())
        with no_file_more():
            await asyncio.sleep(0.05)
    loop = asyncio.get_running_loop()
    assert not loop.remove_reader(listener)
    await asyncio.sleep(0.05)
    assert not loop.remove_reader(listener)


async def test_the_repository_s_socket_does_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="in")

    monkeypatch.setattr(accepting, "PAUSE_S", 0.05)
    app = web.Application()
    app.router.add_get("/", hello)
    layout = Layout(tmp_path)
    layout.private.mkdir()
    monkeypatch.chdir(layout.private)  # The path may be too long for a socket.
    connector = aiohttp.UnixConnector(layout.socket.name)
    async with (
        on_socket(
            layout,
            web.AppRunner(app, access_log=None, shutdown_timeout=0.1),
            Trouble("not listened on", logging.getLogger(__name__)),
        ),
        aiohttp.ClientSession(connector=connector) as http,
    ):
        with socket.socket(socket.AF_UNIX) as early:
            early.connect(layout.socket.name)
            with no_file_more():
                await asyncio.sleep(0.12)
        async with http.get("http://localhost/") as response:
            assert await response.text() == "in"
    told = [one for one in caplog.records if one.name == accepting.__name__]
    assert 1 <= len(told) <= 3
    assert not any(one.exc_info for one in caplog.records)
