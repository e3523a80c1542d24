"""One socket between a worker and the server, with drawn delays, that can be cut in every way.

Frames of one direction keep their order. A cut can be told to both ends, or to none: then only the
heartbeats of either end find out.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import WSMessage, WSMsgType

from sim.loop import NOBODY
from sim.world import World

APART_S = 1e-6
"""Between two frames of one direction: timers of the very same instant come in no order."""

CLOSED = WSMessage(WSMsgType.CLOSED, None, None)


class Wire:
    """The two ends: `client` looks like aiohttp's client socket; the server reads `inbox`."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.client = ClientEnd(self)
        self.inbox: asyncio.Queue[str | None] = asyncio.Queue()
        self.silent = False
        """Nothing arrives any more, and nobody is told."""
        self._server_open = True
        self._up_at = 0.0
        self._down_at = 0.0

    def up(self, text: str) -> None:
        """A frame from the worker sets out."""
        if not self.silent:
            loop = self.world.loop
            self._up_at = max(self._up_at + APART_S, loop.now + self.world.latency_s())
            loop.call_at(self._up_at, self._arrive_up, text, context=NOBODY)

    def down(self, text: str) -> None:
        """A frame from the server sets out."""
        if not self.silent and self._server_open:
            loop = self.world.loop
            self._down_at = max(self._down_at + APART_S, loop.now + self.world.latency_s())
            loop.call_at(self._down_at, self._arrive_down, text, context=NOBODY)

    def _arrive_up(self, text: str) -> None:
        if self._server_open and not self.silent:
            self.inbox.put_nowait(text)

    def _arrive_down(self, text: str) -> None:
        if not self.silent:
            self.client.arrive(text)

    def cut(self) -> None:
        """The network drops the connection, with notice or without."""
        if self.world.chance(self.world.rates.silent_cut):
            self.silent = True
            return
        self.close_server()
        self.close_client()

    def close_server(self) -> None:
        """The server's end learns that the socket is gone."""
        if self._server_open:
            self._server_open = False
            self.inbox.put_nowait(None)

    def close_client(self) -> None:
        """The worker's end learns it, a little later."""
        delay_s = self.world.rng.uniform(0.0, 0.01)
        self.world.loop.call_later(delay_s, self.client.gone, context=NOBODY)

    def left_by_client(self) -> None:
        """The worker's process closed its end or died."""
        if self.client.open:
            self.client.gone()
            if self.world.chance(self.world.rates.silent_cut):
                self.silent = True
            else:
                delay_s = self.world.rng.uniform(0.0, 0.01)
                self.world.loop.call_later(delay_s, self.close_server, context=NOBODY)


class ClientEnd:
    """What `swamp.worker.link.Link` needs of a WebSocket."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._arrived: asyncio.Queue[WSMessage] = asyncio.Queue()
        self.open = True

    def arrive(self, text: str) -> None:
        if self.open:
            self._arrived.put_nowait(WSMessage(WSMsgType.TEXT, text, None))

    def gone(self) -> None:
        if self.open:
            self.open = False
            self._arrived.put_nowait(CLOSED)

    async def send_str(self, text: str) -> None:
        if not self.open:
            raise ConnectionResetError("the socket is gone")
        self._wire.up(text)

    async def receive(self) -> WSMessage:
        if not self.open and self._arrived.empty():
            return CLOSED
        return await self._arrived.get()

    async def close(self) -> None:
        self._wire.left_by_client()

    def get_extra_info(self, name: str) -> Any:
        return None
