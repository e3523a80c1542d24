"""Manners of a thread that looks at many files beside the event loop.

The loop gives the interpreter away at every system call. A thread that computes keeps it for a
whole switch interval each time, so that every step of the loop would wait for it many times over.
Hence such a thread works for about a millisecond and then rests for twice as long: it has a third
of the interpreter at most. Who has less to do than that, one edit for instance, never rests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")

Pause = Callable[[], None]
"""Called between two small pieces of work, by the thread that does them."""

WORK_S = 0.001
REST_PER_WORK = 2.0

SORTED_AT_ONCE = 1_000
"""So many are sorted in half a millisecond; meanwhile nobody else gets the interpreter."""


def no_pause() -> None:
    """For work that no event loop runs beside: a start, a command."""


@dataclass(frozen=True, slots=True)
class Time:
    """What a courtesy asks of the clocks, seconds; `worked` is that of the calling thread alone."""

    now: Callable[[], float] = time.perf_counter
    worked: Callable[[], float] = time.thread_time
    rest: Callable[[float], None] = time.sleep


SYSTEM_TIME = Time()


class Ended(Exception):
    """Raised by a pause: nobody waits for the rest of the job any more."""


class Courtesy:
    """The pauses of one job in one thread: to be called after every piece of work.

    It counts the processor time of the thread, so that who had to wait for the interpreter does not
    rest for that as well. That clock is slow to ask: it is only when enough time has gone by.
    """

    def __init__(self, clocks: Time = SYSTEM_TIME) -> None:
        self._clocks = clocks
        self._began_s = clocks.now()
        self._worked_s: float | None = None
        self._ended = False

    def end(self) -> None:
        """Have the next pause raise `Ended`; any thread may ask for that."""
        self._ended = True

    def __call__(self) -> None:
        """Rest if it is time to. Never to be called with a lock that others may wait for."""
        if self._ended:
            raise Ended
        if self._worked_s is None:
            # Only now it is certain which thread does the job.
            self._worked_s = self._clocks.worked()
        if self._clocks.now() - self._began_s < WORK_S:
            return
        worked_s = self._clocks.worked() - self._worked_s
        if worked_s < WORK_S:
            return
        self._clocks.rest(worked_s * REST_PER_WORK)
        self._began_s = self._clocks.now()
        self._worked_s = self._clocks.worked()


def each(items: Iterable[T], pause: Pause) -> Iterator[T]:
    """The items, with a pause after each."""
    for item in items:
        yield item
        pause()


def in_order(items: Iterable[T], key: Callable[[T], Any], pause: Pause) -> list[T]:
    """As `sorted`, with pauses."""
    rest, lots = iter(items), []
    while lot := sorted(islice(rest, SORTED_AT_ONCE), key=key):
        lots.append(lot)
        pause()
    return lots[0] if len(lots) == 1 else list(each(merge(*lots, key=key), pause))


def let_go(items: dict[Any, Any], pause: Pause) -> None:
    """Empty it one by one: to free thousands at a stroke would keep the interpreter."""
    while items:
        items.popitem()
        pause()
