"""The last events of a run's log, kept in memory: a few, however large their output is.

And what a reader of the log is given at once, and where it stands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

TAIL_EVENTS = 2_000
TAIL_BYTES = 1 << 20
READ_EVENTS = 1_000
READ_BYTES = 1 << 16
"""Handed to a reader at once: who does not read on holds that in memory, and others wait for it."""


class Lot:
    """Lines for a reader: READ_EVENTS and READ_BYTES of them at most, but one in any case."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._size = 0

    def takes(self, line: bytes) -> bool:
        """Take a line in; False if it has to wait for the next lot."""
        size = self._size + len(line)
        if self.lines and (size > READ_BYTES or len(self.lines) >= READ_EVENTS):
            return False
        self.lines.append(line)
        self._size = size
        return True


class Tail:
    """The last lines: TAIL_EVENTS and TAIL_BYTES of them at most, but one in any case."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._size = 0

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._lines)

    def append(self, line: bytes) -> None:
        """Keep one more, and let go of what is too much then."""
        self._lines.append(line)
        self._size += len(line)
        while len(self._lines) > 1 and (len(self._lines) > TAIL_EVENTS or self._size > TAIL_BYTES):
            self._size -= len(self._lines.popleft())

    def lot(self, start: int, end: int) -> list[bytes]:
        """Lines from that one of those that are here, and before that other one."""
        if start >= end:
            return []
        lot = Lot()
        for line in islice(self._lines, start, end):
            if not lot.takes(line):
                break
        return lot.lines


@dataclass
class Place:
    """How far a reader has come: its last event, and where in the file the next one begins.

    An offset of 0 stands for: look for it.
    """

    seq: int
    offset: int = 0


async def within(news: asyncio.Event, seconds: float) -> bool:
    """Whether there is news within that time."""
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        return False
    return True
