"""What the event loop hands to a thread: in order, and as much at once as has come together.

Each item on its own would wake the thread, which then wants the interpreter from a loop that is
about to hand it the next one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    # Commands that only read (`datastore/reader.py`) start faster without it.
    import asyncio

T = TypeVar("T")


class HandOver(Generic[T]):
    """Items from the loop's thread to one other. Without a loop each goes at once."""

    def __init__(self, linger_s: float = 0.0) -> None:
        """`linger_s`: as long as items may wait for more, while each pass of the loop adds some."""
        self._linger_s = linger_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gathered: deque[T] = deque()
        self._is_due = False
        self._in_order = threading.Lock()
        """Two that flush at once must not overtake each other."""
        self._queue: SimpleQueue[list[T]] = SimpleQueue()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gather between passes of this loop from now on."""
        self._loop = loop

    def put(self, item: T) -> None:
        """Hand one over, soon; from the loop's thread."""
        self._gathered.append(item)
        if self._loop is None:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._look, self._loop, 0, time.monotonic() + self._linger_s)

    def wake(self) -> None:
        """Have a `get` that waits return, if with nothing; from any thread."""
        self._queue.put([])

    def flush(self) -> None:
        """Hand over what was put so far now; from any thread."""
        with self._in_order:
            gathered = [self._gathered.popleft() for _ in range(len(self._gathered))]
            self._queue.put(gathered)

    def get(self) -> list[T]:
        """What has come, nothing if only woken; waits. From the other thread."""
        return self._queue.get()

    def get_nowait(self) -> list[T] | None:
        """As `get`; None instead of waiting."""
        try:
            return self._queue.get_nowait()
        except Empty:
            return None

    def _look(self, loop: asyncio.AbstractEventLoop, seen: int, until_s: float) -> None:
        there = len(self._gathered)
        if there > seen and time.monotonic() < until_s:
            loop.call_soon(self._look, loop, there, until_s)
            return
        self._is_due = False
        if there:
            self.flush()
