"""Takes in connections from the network: a crowd of workers waits here, before it costs anything.

Promises: whoever is no worker, and every worker that the server has met, does not wait behind
workers it has never seen, nor these behind strangers, who show no token; all of them cost a look at
their first bytes until it is their turn, and no more than that if they give up before. Of more than
may wait, the rest are told when to come back.

What a connection shows of itself here decides where it waits and nothing else: who may enroll, the
enrollment finds out. Over TLS nothing can be read, and nobody waits here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import select
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain

from swamp.protocol import PROOF_HEADER, WORKER_HEADER
from swamp.serve.accepting import ACCEPTED_AT_ONCE, Accepting
from swamp.serve.callers import Caller, Standing
from swamp.serve.come_back import spread_s
from swamp.serve.first_words import FirstWords
from swamp.serve.turns import Rank, Turns

WAITING_MOST = 4096
"""Workers that may wait here: as many as are let in while the first ones still wait for us. Of
strangers, no more than their share of `Connections`."""

TRY_AGAIN_S = 2
"""When those beyond that are to come again, about: see `spread_s`."""

UPGRADED_AT_ONCE = 2
"""Workers that are brought in by one turn."""

UNTIL_UPGRADED = 4
"""Rounds of the loop after which a request that had come whole has been answered."""

FIRST_BYTES = 4096
"""How much of a request is looked at."""

COME_BACK = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: %d\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)

_WORKER, _PROOF = (
    re.compile(rb"\r\n" + header.encode() + rb": *([^\r\n]*)", re.IGNORECASE)
    for header in (WORKER_HEADER, PROOF_HEADER)
)
_UPGRADE = re.compile(rb"\r\nUpgrade: *websocket", re.IGNORECASE)

_RANK = {
    Standing.KNOWN: Rank.UPGRADE_KNOWN,
    Standing.HOLDER: Rank.UPGRADE_NEW,
    Standing.STRANGER: Rank.UPGRADE_STRANGER,
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Door:
    """Where the network comes in. `tls` None: plain HTTP."""

    listener: socket.socket
    tls: ssl.SSLContext | None


class Reception:
    """Listens, and hands connections over to `protocol`.

    `who` tells who dials, by the two headers of a worker's dial. `first_words` knows those that say
    nothing; whoever answers requests tells it of them.
    """

    def __init__(
        self,
        door: Door,
        protocol: Callable[[], asyncio.BaseProtocol],
        turns: Turns,
        who: Callable[[str, str], Caller],
        first_words: FirstWords,
        *,
        waiting_most: int = WAITING_MOST,
    ) -> None:
        self.randomness = random.Random()
        self._listener, self._tls = door.listener, door.tls
        self._protocol, self._first_words = protocol, first_words
        self._turns, self._who = turns, who
        self._connections, self._waiting_most = first_words.connections, waiting_most
        self._connections.ask(self.give_way)
        self._loop = asyncio.get_running_loop()
        self._silent: set[socket.socket] = set()
        self._crowd: dict[Rank, deque[socket.socket]] = {rank: deque() for rank in _RANK.values()}
        self._somebody = {rank: asyncio.Event() for rank in self._crowd}
        self._tasks: asyncio.TaskGroup
        self._under_way: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Listen meanwhile. Connections that were handed over by its end go on."""
        # What has said nothing yet waits in the kernel for a while, and costs nothing.
        with suppress(AttributeError, OSError):
            self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
        # Over TLS each costs a handshake.
        at_once = ACCEPTED_AT_ONCE if self._tls is None else 1
        accepting = Accepting(
            self._listener, self._look, at_once=at_once, connections=self._connections
        )
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for rank in self._crowd:
                self._begin(self._bring_in(rank))
            self._begin(self._first_words.keep())
            try:
                with accepting.open():
                    yield
            finally:
                for task in self._under_way:
                    task.cancel()
                self._send_away()

    def _begin(self, doing: Coroutine[None, None, None]) -> None:
        task = self._tasks.create_task(doing)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    # -- who is it -------------------------------------------------------------------------------

    def _look(self, connection: socket.socket) -> None:
        """Hand it over, or have it wait; look again once it says something."""
        try:
            said = connection.recv(FIRST_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            if connection not in self._silent:
                self._silent.add(connection)
                self._loop.add_reader(connection, self._look, connection)
                self._first_words.expect(connection)
                self._connections.make_room()
            return
        except OSError:
            said = b""
        if connection in self._silent:
            self._silent.discard(connection)
            self._loop.remove_reader(connection)
        if not said:
            self._first_words.heard(connection.fileno())
            connection.close()
        elif self._tls is not None or not _UPGRADE.search(said):
            self._begin(self._hand_over(connection))
        else:
            self._have_wait(connection, said)

    def _have_wait(self, connection: socket.socket, said: bytes) -> None:
        # It waits for us from now on.
        self._first_words.heard(connection.fileno())
        caller = self._who(_said(_WORKER, said), _said(_PROOF, said))
        rank = _RANK[caller.standing]
        if len(self._crowd[rank]) >= self._most_of(rank):
            _tell_to_come_back(connection, spread_s(TRY_AGAIN_S, self.randomness))
            return
        if rank is not Rank.UPGRADE_STRANGER:
            self._connections.trust(connection.fileno())
        self._crowd[rank].append(connection)
        self._somebody[rank].set()

    def _most_of(self, rank: Rank) -> int:
        if rank is Rank.UPGRADE_STRANGER:
            return min(self._waiting_most, self._connections.share)
        return self._waiting_most

    def give_way(self, many: int, share: int) -> int:
        """Tell so many of the strangers beyond a share to come back, the last first; how many."""
        crowd, told = self._crowd[Rank.UPGRADE_STRANGER], 0
        while told < many and len(crowd) > share:
            _tell_to_come_back(crowd.pop(), spread_s(TRY_AGAIN_S, self.randomness))
            told += 1
        return told

    # -- letting in ------------------------------------------------------------------------------

    async def _bring_in(self, rank: Rank) -> None:
        """Hand over those that wait, a few per turn."""
        crowd, somebody = self._crowd[rank], self._somebody[rank]
        while True:
            somebody.clear()
            if not crowd:
                await somebody.wait()
            turn = await self._turns.begin(rank)
            try:
                for connection in _still_there(crowd):
                    await self._hand_over(connection)
                for _ in range(UNTIL_UPGRADED):
                    await asyncio.sleep(0)
            finally:
                turn.over()

    async def _hand_over(self, connection: socket.socket) -> None:
        self._first_words.expect(connection)
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls)
        except OSError as error:
            # It has gone, or speaks no TLS. Nobody is left who could be told.
            log.debug("a connection came to nothing: %s", error)
            connection.close()

    def _send_away(self) -> None:
        for connection in self._silent:
            self._loop.remove_reader(connection)
        for connection in (*self._silent, *chain(*self._crowd.values())):
            connection.close()


def _said(header: re.Pattern[bytes], said: bytes) -> str:
    """What it says in that header."""
    found = header.search(said)
    return "" if found is None else found[1].decode("latin-1").strip()


def _still_there(crowd: deque[socket.socket]) -> Iterator[socket.socket]:
    """A few, without those that gave up while they waited."""
    left = UPGRADED_AT_ONCE
    while crowd and left:
        connection = crowd.popleft()
        if _has_gone(connection):
            connection.close()
        else:
            left -= 1
            yield connection


def _has_gone(connection: socket.socket) -> bool:
    look = select.poll()
    look.register(connection, select.POLLRDHUP)
    return bool(look.poll(0))


def _tell_to_come_back(connection: socket.socket, after_s: int) -> None:
    with suppress(OSError):
        # What is left unread would take the answer away again.
        connection.recv(1 << 16)
        connection.send(COME_BACK % after_s)
        connection.shutdown(socket.SHUT_WR)
    connection.close()
