"""Accepts connections of one listening socket, also when there is no room for one more.

Then nothing is accepted for a second, and one line says so: connections wait in the kernel.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BACKLOG = 4096
"""Connections that may wait in the kernel."""

ACCEPTED_AT_ONCE = 16
"""Connections taken in before others get their turn."""

NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_S = 1.0
"""How long nothing is taken in when the machine has no room for one connection more."""

log = logging.getLogger(__name__)


class Accepting:
    """Hands each connection of `listener`, which is bound, to `take`."""

    def __init__(
        self,
        listener: socket.socket,
        take: Callable[[socket.socket], None],
        *,
        at_once: int = ACCEPTED_AT_ONCE,
    ) -> None:
        self._listener, self._take, self._at_once = listener, take, at_once
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

    def _begin(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(self._at_once):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in NO_MORE:
                    raise
                log.error("no connection can be taken in: %s; trying again", error.strerror)
                self._loop.remove_reader(self._listener)
                self._again = self._loop.call_later(PAUSE_S, self._begin)
                return
            connection.setblocking(False)
            self._take(connection)
