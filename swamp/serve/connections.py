"""Connections from the network: how many may be open, and which of them give way.

Promises: whoever comes, `KEPT_FREE` open files stay for the server's own work (journal, index,
folders, events of runs, the steps that it runs itself). The sum, for a limit of L open files:

    C = L - 200                 all connections; one more is not taken in before another is closed
    R = C / 2                   what strangers may have of these, at most, wherever they are
    W                           all others: who has shown a token by its proof, or is enrolled;
                                callers that are being answered, or follow a run
    S = min(R, C - 32 - W)      what strangers may have just now

Each connection is a stranger's from its first moment until it shows something, and again while it
rests between two requests. So S is what all these have together: those that say nothing, those of
the crowd (a quarter of S at most), those that have a place and are not enrolled (a quarter at
most), and those that are told why, and closed.

The worst case: strangers have all of S. Then S + W is C - 32 at most, and with those that are just
being closed C, as long as W is less than C - 48 (16 are always left to strangers: whoever comes is
one at first). So 200 stay, whatever W is. Up to W = C/2 - 32 strangers have R; above, each that is
known takes the file of one of them. Where W alone is about C, the next one waits in the kernel. For
L = 65,536 C is 65,336, and R 32,668; for 4,096: 3,896 and 1,948; for 1,024: 824 and 412. R is never
less than 64, nor C less than 128: where L is less than 328, fewer than 200 stay.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

KEPT_FREE = 200
"""Open files that are not for connections: journal, index, folders, events of runs, own steps."""

LEAST = 64
"""Connections of strangers that are borne with, however few files may be open."""

CLOSING = 32
"""Files of those that are being closed: each takes some rounds of the loop."""

SHARE = 4
"""The crowd of strangers, and those that have a place, have this part of what strangers have."""

LEAST_LEFT = CLOSING // 2
"""What strangers have where nothing is left: whoever comes is one at first."""

_TCP_INFO = struct.Struct("@24xI92xQ16xI")
"""Of the kernel's `struct tcp_info`: `unacked` (packets), `bytes_acked` and `notsent_bytes`."""

GiveWay = Callable[[int, int], int]
"""Ends so many that are beyond a share, the longest silent first; how many it ended."""


def strangers_within(limit: int) -> int:
    """How many connections strangers may have, of so many open files: half of what is for them."""
    return max(LEAST, (limit - KEPT_FREE) // 2)


class Connections:
    """Knows each by the number of its file, from its acceptance until that is closed."""

    def __init__(self, strangers_most: int, most: int | None = None) -> None:
        """`most` None: twice as many as strangers may have."""
        self._strangers_most = strangers_most
        self._most = 2 * strangers_most if most is None else most
        self._open: set[int] = set()
        self._strangers: set[int] = set()
        self._ending: set[int] = set()
        """Those that are shut down; they are closed within some rounds of the loop."""
        # The first is the oldest.
        self._leaving: dict[int, Callable[[], None]] = {}
        self._asked: list[GiveWay] = [self._cut_short]
        self._closed: Callable[[], None] | None = None

    @classmethod
    def within(cls, limit: int) -> Connections:
        """So many as are allowed where so many files may be open."""
        return cls(strangers_within(limit))

    @property
    def strangers(self) -> int:
        """How many are strangers' just now, but for those that are being shut down."""
        return len(self._strangers)

    @property
    def allowed(self) -> int:
        """How many strangers may have just now."""
        known = len(self._open) - len(self._strangers) - len(self._ending)
        return min(self._strangers_most, max(LEAST_LEFT, self._most - CLOSING - known))

    @property
    def share(self) -> int:
        """What one of the places where strangers wait may have of that."""
        return self.allowed // SHARE

    def ask(self, give_way: GiveWay, *, last: bool = False) -> None:
        """Ask this one, too, to have strangers give way when there are too many; or ask it last."""
        self._asked.insert(len(self._asked) if last else 1, give_way)

    def took(self, accepted: socket.socket) -> socket.socket:
        """The connection that was accepted, counted from now on until it is closed."""
        counted = _Counted(accepted, self._gone)
        number = counted.fileno()
        self._open.add(number)
        self._strangers.add(number)
        self.make_room()
        return counted

    def is_stranger(self, number: int) -> bool:
        """Whether that one has shown nothing."""
        return number in self._strangers

    def trust(self, number: int) -> None:
        """It has shown something, or is being answered."""
        self._strangers.discard(number)

    def doubt(self, number: int) -> None:
        """It has shown nothing, or has to say something again."""
        if number in self._open and number not in self._ending:
            self._strangers.add(number)
            self.make_room()

    def ending(self, number: int) -> None:
        """It is shut down."""
        if number in self._open:
            self._strangers.discard(number)
            self._ending.add(number)

    @contextmanager
    def leaving(self, number: int, abort: Callable[[], None]) -> Iterator[None]:
        """It is told why it is closed, and closed in order; `abort` if its file is needed."""
        if number in self._strangers:
            self._leaving[number] = abort
        try:
            yield
        finally:
            if self._leaving.get(number) is abort:
                del self._leaving[number]

    def make_room(self) -> None:
        """Have as many give way as are too many."""
        more = len(self._strangers) - self.allowed
        for give_way in self._asked:
            if more <= 0:
                return
            more -= give_way(more, self.share)

    @property
    def is_full(self) -> bool:
        """Whether none may be taken in before one is closed."""
        return len(self._open) >= self._most

    def once_closed(self, then: Callable[[], None] | None) -> bool:
        """Call this when the next one is closed; False if none is on its way to that."""
        self._closed = then
        return bool(self._ending or self._leaving)

    def _cut_short(self, many: int, _share: int) -> int:
        """Those that leave have been told why: they lose nothing but an orderly end."""
        cut = 0
        while self._leaving and cut < many:
            number = next(iter(self._leaving))
            abort = self._leaving.pop(number)
            if number in self._strangers:
                self.ending(number)
                abort()
                cut += 1
        return cut

    def _gone(self, number: int) -> None:
        for known in (self._open, self._strangers, self._ending):
            known.discard(number)
        self._leaving.pop(number, None)
        if self._closed is not None:
            asyncio.get_running_loop().call_soon(self._closed)
            self._closed = None


class _Counted(socket.socket):
    """A connection that tells when it is closed."""

    def __init__(self, accepted: socket.socket, gone: Callable[[int], None]) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self._gone = gone

    def close(self) -> None:
        number = self.fileno()
        super().close()
        if number >= 0:
            self._gone(number)


def file_number(transport: asyncio.BaseTransport | None) -> int:
    """The number of a transport's file; -1 where it has none any more."""
    connection = None if transport is None else transport.get_extra_info("socket")
    return -1 if connection is None else int(connection.fileno())


class Options(Protocol):
    """What tells of a socket how it is."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def in_kernel(connection: Options) -> tuple[int, bool]:
    """How many bytes the peer's machine has taken, and whether there are more for it.

    Where the kernel does not say it, none and no.
    """
    with suppress(OSError, struct.error, AttributeError):
        # Linux alone has it.
        found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        unacknowledged, taken, unsent = _TCP_INFO.unpack(found)
        return taken, unacknowledged + unsent > 0
    return 0, False


def has_unread(transport: asyncio.WriteTransport) -> bool:
    """Whether its peer's machine has not taken all that there is for it."""
    if transport.get_write_buffer_size():
        return True
    # What is encrypted, and not taken by the kernel yet, does not show.
    connection = transport.get_extra_info("socket")
    return connection is not None and in_kernel(connection)[1]
