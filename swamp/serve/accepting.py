"""Accepts connections of one listening socket, also when there is no room for one more.

Then nothing is accepted for a second, and one line says so: connections wait in the kernel. Where
one is about to be closed, it is that moment which is waited for, and nothing is said.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from swamp.serve.connections import Connections

BACKLOG = 4096
"""Connections that may wait in the kernel."""

ACCEPTED_AT_ONCE = 16
"""Connections taken in before others get their turn."""

NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_S = 1.0
"""How long nothing is taken in when the machine has no room for one connection more."""

log = logging.getLogger(__name__)


class Accepting:
    """Hands each connection of `listener`, which is bound, to `take`.

    With `connections`, each is counted among these, and no more are accepted than these allow.
    """

    def __init__(
        self,
        listener: socket.socket,
        take: Callable[[socket.socket], None],
        *,
        at_once: int = ACCEPTED_AT_ONCE,
        connections: Connections | None = None,
    ) -> None:
        self._listener, self._take, self._at_once = listener, take, at_once
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Listen meanwhile. The socket is its owner's to close."""
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._begin()
        try:
            yield
        finally:
            self._loop.remove_reader(self._listener)
            if self._again is not None:
                self._again.cancel()
                # It may have been called for, and its turn not come yet.
                self._again = None

    def _begin_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._begin()

    def _begin(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(self._at_once):
            if self._connections is not None and self._connections.is_full:
                self._wait_for_room(self._connections)
                return
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in NO_MORE:
                    raise
                self._say(error.errno)
                self._rest()
                return
            connection.setblocking(False)
            if self._connections is not None:
                connection = self._connections.took(connection)
            self._take(connection)

    def _wait_for_room(self, connections: Connections) -> None:
        connections.make_room()
        if not connections.once_closed(self._begin_again):
            self._say(errno.EMFILE)
            connections.once_closed(None)
        self._rest()

    def _rest(self) -> None:
        self._loop.remove_reader(self._listener)
        self._again = self._loop.call_later(PAUSE_S, self._begin)

    @staticmethod
    def _say(number: int) -> None:
        log.error("no connection can be taken in: %s; trying again", os.strerror(number))
