"""Connections that have to say something: they give way to others, and the new ones have a time.

Promises: however many connections say nothing, there is room for those that do. What is counted
here costs the server a file and gives it nothing to do: connections without a whole request yet,
those whose body does not come on, and those that rest between two requests, or do not read what
they are answered. When more come, those that rest go first, and of each kind those that have been
silent for longest.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from aiohttp import StreamReader, web
from aiohttp.typedefs import Middleware

from swamp.serve.answers import Handler
from swamp.serve.connections import Connections, Options, has_unread, in_kernel

WITHIN_S = 30.0
"""How long a connection has for its first request, seconds."""

LOOK_S = 1.0
"""How often those that had their time, and those that have gone, are looked for."""

UNREAD_S = 10.0
"""A peer whose machine takes nothing of its answer for so long, seconds, gives way like one that
rests."""

LOOKS_MOST = 64
"""Connections that are looked at for one that can go, each time that one comes."""

log = logging.getLogger(__name__)


class _Socket(Options, Protocol):
    """A socket, or what a transport shows of one."""

    def fileno(self) -> int: ...

    def shutdown(self, how: int) -> None: ...


@dataclass(slots=True)
class _Wait:
    """A connection that has to say something, since then. `body`: the rest of a request's."""

    connection: _Socket
    since_s: float
    transport: asyncio.Transport | None = None
    body: StreamReader | None = None
    had: int = 0
    """Bytes of the body that had come."""

    def is_silent(self, _now_s: float) -> bool:
        """Whether nothing has come meanwhile."""
        if self.transport is None or self.body is None:
            return True
        # It is not read from while more of its body is there than we take.
        return self.transport.is_reading() and self.body.total_bytes == self.had

    def again(self, _now_s: float) -> None:
        """What has come is nothing new any more."""
        if self.body is not None:
            self.had = self.body.total_bytes


@dataclass(slots=True)
class _Rest:
    """A connection that was answered, and may ask again."""

    connection: _Socket
    transport: asyncio.Transport
    answer: web.StreamResponse
    taken: tuple[int, int] | None = None
    """How far its answer had come while it was on its way, and since when it has not come on."""
    since_s: float = 0.0

    def is_silent(self, now_s: float) -> bool:
        """Whether all of the answer is on its way, or the peer does not read it.

        We read nothing of the peer while we send it a file.
        """
        if has_unread(self.transport) or not self.transport.is_reading():
            return self.taken == self._taken() and now_s - self.since_s >= UNREAD_S
        return self.answer.body_length > 0

    def again(self, now_s: float) -> None:
        """What is unread counts from when it was first seen."""
        taken = self._taken()
        if taken != self.taken:
            self.taken, self.since_s = taken, now_s

    def _taken(self) -> tuple[int, int]:
        return self.transport.get_write_buffer_size(), in_kernel(self.connection)[0]


class FirstWords:
    """Knows who has to speak, and who rests; closes those that are too many, or late.

    Closing is a shutdown of the socket: whoever reads it finds its end, and closes it.
    """

    def __init__(
        self, connections: Connections, now_s: Callable[[], float], *, within_s: float = WITHIN_S
    ) -> None:
        """`connections` says when they are too many, together with strangers elsewhere."""
        self.connections, self._now_s, self._within_s = connections, now_s, within_s
        connections.ask(self.give_way, last=True)
        # By file number, the longest silent first. That of a connection which has gone is given to
        # the next one soon.
        self._waits: dict[int, _Wait] = {}
        self._rests: dict[int, _Rest] = {}

    def expect(self, connection: socket.socket) -> None:
        """It has to make a request from now on, unless it has to already.

        Who has shown a token gives way to nobody meanwhile, but has no more time than others.
        """
        number = connection.fileno()
        before = self._waits.get(number)
        if before is not None and before.connection is connection:
            return
        self.heard(number)
        self._waits[number] = _Wait(connection, self._now_s())

    def heard(self, number: int) -> None:
        """The connection of that file number has made one, or is closed."""
        self._waits.pop(number, None)
        self._rests.pop(number, None)

    def close_late(self) -> None:
        """Close those whose time for a first request is over; forget those that have gone."""
        over = self._now_s() - self._within_s
        for known in (self._waits, self._rests):
            for number in [one for one, each in known.items() if each.connection.fileno() < 0]:
                del known[number]
        late = [
            number
            for number, wait in self._waits.items()
            if wait.body is None and wait.since_s <= over
        ]
        for number in late:
            self._close(number, self._waits.pop(number).connection, "its time is over")

    async def keep(self) -> None:
        """Look for those again and again until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.close_late()

    def give_way(self, many: int, _share: int = 0) -> int:
        """Close so many of those that are silent; how many.

        Those that rest lose nothing: they go before those whose request may be on its way.
        """
        closed = self._close_oldest(self._rests, many)
        if closed < many:
            closed += self._close_oldest(self._waits, many - closed)
        return closed

    def _begun(self, transport: asyncio.Transport, body: StreamReader) -> None:
        """A request has come; if not all of its body has, the rest of that is waited for."""
        connection: _Socket = transport.get_extra_info("socket")
        number = connection.fileno()
        if body.is_eof():
            self.heard(number)
            self.connections.trust(number)
            return
        wait = _Wait(connection, self._now_s(), transport, body, body.total_bytes)

        def whole() -> None:
            # By then it may have been answered, and rest.
            if self._waits.get(number) is wait:
                del self._waits[number]
                self.connections.trust(number)

        self._rests.pop(number, None)
        # In the place of its head, if that was waited for: others may have come meanwhile.
        self._waits[number] = wait
        body.on_eof(whole)
        self.connections.doubt(number)

    def _answered(self, transport: asyncio.Transport | None, answer: web.StreamResponse) -> None:
        """It rests from now on. For how long it may, whoever answers requests knows."""
        if transport is None or transport.is_closing():
            return
        connection: _Socket = transport.get_extra_info("socket")
        number = connection.fileno()
        self.heard(number)
        self._rests[number] = _Rest(connection, transport, answer)
        self.connections.doubt(number)

    def middleware(self) -> Middleware:
        """Notes who made a request, and who rests after one. It comes before all others."""

        @web.middleware
        async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.transport is not None:
                self._begun(request.transport, request.content)
            answer = await handler(request)
            self._answered(request.transport, answer)
            return answer

        return noted

    def _close_oldest(self, known: dict[int, _Wait] | dict[int, _Rest], many: int) -> int:
        """Close the longest silent; how many. One that is not is looked at again after all."""
        closed, now_s = 0, self._now_s()
        for _ in range(min(LOOKS_MOST, len(known))):
            number = next(iter(known))
            one = known.pop(number)
            if one.connection.fileno() < 0:
                continue
            if self.connections.is_stranger(number) and one.is_silent(now_s):
                self._close(number, one.connection, "others came")
                closed += 1
            else:
                one.again(now_s)
                known[number] = one  # type: ignore[assignment]
            if closed == many:
                break
        return closed

    def _close(self, number: int, connection: _Socket, why: str) -> None:
        self.connections.ending(number)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
            log.debug("a connection that says nothing is closed: %s", why)
