"""An event loop on virtual time: a sleep costs nothing, and one seed gives one story.

Instead of waiting, the selector moves the loop's clock to the next timer. When there is no timer
either, nothing will ever happen again: a liveness bug, found for free.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

STEP_S = 1e-6
"""What one pass of the loop takes: without it, a wait too short for a float would last for ever."""


class Deadlock(AssertionError):
    """Nothing is left that could wake anybody."""


class SimSelector(selectors.SelectSelector):
    """Moves the loop's clock where a real selector sleeps."""

    loop: SimLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock(f"nothing left to wake anyone at t={self.loop.now:.3f}")
        self.loop.now += timeout
        return []


class SimLoop(asyncio.SelectorEventLoop):
    """`after_step` is called after every pass of the loop; what it raises ends the run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.after_step: Callable[[], None] = lambda: None
        selector = SimSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        self.now += STEP_S
        super()._run_once()  # type: ignore[misc]
        self.after_step()


def run(loop: SimLoop, main: Coroutine[Any, Any, None]) -> None:
    """Run `main` to its end, then drop whatever still runs."""
    try:
        loop.run_until_complete(main)
    finally:
        loop.after_step = lambda: None
        _drop_all(loop)
        loop.close()


def _drop_all(loop: SimLoop) -> None:
    """Cancel what is left; a few rounds, as endings may start something new."""
    for _ in range(5):
        left = asyncio.all_tasks(loop)
        if not left:
            return
        for task in left:
            task.cancel()
        loop.call_later(1.0, loop.stop)
        loop.run_forever()
