"""Connections that have not made a whole request yet: they are bounded, in number and in time.

Promises: however many connections say nothing, there is room for those that do. What is counted
here costs the server a file and gives it nothing to do; the oldest go first when more come.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Middleware

from swamp.serve.answers import Handler

WITHIN_S = 30.0
"""How long a connection has for its first request, seconds."""

LOOK_S = 1.0
"""How often those that had their time are looked for."""

KEPT_FREE = 200
"""Open files that are not for connections: journal, index, folders, events of runs."""

LEAST = 64
"""Silent connections that are borne with, however few files may be open."""

log = logging.getLogger(__name__)


def room_within(limit: int) -> int:
    """How many connections may be silent, of so many open files: half of what is for them."""
    return max(LEAST, (limit - KEPT_FREE) // 2)


class FirstWords:
    """Knows who has yet to speak, the oldest first; closes them where they are too many or late.

    Closing is a shutdown of the socket: whoever reads it finds its end, and closes it.
    """

    def __init__(
        self, most: int, now_s: Callable[[], float], *, within_s: float = WITHIN_S
    ) -> None:
        self._most, self._now_s, self._within_s = most, now_s, within_s
        # By file number. That of a connection which has gone is given to the next one soon.
        self._silent: dict[int, tuple[socket.socket, float]] = {}

    def expect(self, connection: socket.socket) -> None:
        """It has to make a request from now on, unless it has to already."""
        number = connection.fileno()
        before = self._silent.get(number)
        if before is not None and before[0] is connection:
            return
        self.heard(number)
        self._silent[number] = (connection, self._now_s())
        while len(self._silent) > self._most:
            self._close_oldest("others came")

    def heard(self, number: int) -> None:
        """The connection of that file number has made one, or is closed."""
        self._silent.pop(number, None)

    def close_late(self) -> None:
        """Close those whose time is over."""
        over = self._now_s() - self._within_s
        while self._silent and next(iter(self._silent.values()))[1] <= over:
            self._close_oldest("its time is over")

    async def keep(self) -> None:
        """Look for those again and again until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.close_late()

    def _close_oldest(self, why: str) -> None:
        number = next(iter(self._silent))
        connection, _since = self._silent.pop(number)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
            log.debug("a connection without a request is closed: %s", why)

    def middleware(self) -> Middleware:
        """Notes who made a request."""

        @web.middleware
        async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.transport is not None:
                self.heard(request.transport.get_extra_info("socket").fileno())
            return await handler(request)

        return noted
