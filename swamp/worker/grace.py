"""How long what a worker runs may go on without a socket."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from swamp.execute.execution import Watch
from swamp.worker import real_time

LOOK_AT_CLOCK_S = 1.0
"""How late the end of the grace window is noticed at most, once a machine has slept, seconds."""
SPARE_S = 3.0
"""How much later its guard gives up what it runs than it would itself, seconds."""


class GraceWindow:
    """Times are those of a clock that goes on while the machine sleeps (`real_time`)."""

    def __init__(self, watch: Watch, over: Callable[[], None]) -> None:
        """`over` is called at its end, and again if one ends later."""
        self._watch = watch
        self._over = over
        self._ends_s = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """There is a socket again."""
        self._ends_s = -math.inf
        if self._timer is not None:
            self._timer.cancel()

    def lasts_until(self, ends_s: float, begin_before_s: float) -> None:
        """It begins, or begins anew: it ends then, or later if that was said before.

        Anew, where a server cannot let the worker in just now, as its disk refuses writes, but
        keeps the leases of all that runs. Their windows began anew when it said so, ours when it
        was asked, and ours is the shorter one: `LeaseController.would_be_back`.
        """
        if ends_s <= self._ends_s:
            return
        self._ends_s = ends_s
        self.put_off(ends_s, begin_before_s)
        if self._timer is not None:
            self._timer.cancel()
        self._look()

    def put_off(self, ends_s: float, begin_before_s: float) -> None:
        """What runs would end then if nothing more were said; the guard has to know.

        It takes the worker for stopped, and ends what it runs, when that was not said in time. What
        has no process yet gets none once the server may have given it up: to begin it, unlike to
        end it, needs no patience with a server that may have stood still as well.
        """
        self._watch.begin_before(begin_before_s)
        self._watch.give_up_at(ends_s + SPARE_S)

    def _look(self) -> None:
        """Notice its end, by a clock that no timer follows."""
        left_s = self._ends_s - real_time.now_s()
        if left_s <= 0:
            self._over()
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(left_s, LOOK_AT_CLOCK_S), self._look)
