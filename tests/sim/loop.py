"""An event loop on virtual time: a sleep costs nothing, and one seed gives one story.

Instead of waiting, the selector moves the loop's clock to the next timer. When there is no timer
either, nothing will ever happen again: a liveness bug, found for free.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
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


NOBODY = Context()
"""For what belongs to no machine, whoever had it done."""


class Standstill:
    """One machine's callbacks. While it stands still none of them runs, and all do afterwards."""

    def __init__(self, loop: SimLoop) -> None:
        self.is_on = False
        self.held: list[_Due] = []
        loop.machines.append(self)

    def context(self) -> Context:
        """One for a task of this machine."""
        context = Context()
        context.run(stands_with.set, self)
        return context

    def begin(self) -> None:
        """Stop the machine: `kill -STOP` of everything, a laptop that is closed."""
        self.is_on = True

    def end(self, *, timers_last: bool = False) -> None:
        """Let it go on: with what came meanwhile, in the order in which it did.

        `timers_last`: as a selector sees it, what lies in the sockets first.
        """
        self.is_on = False
        held, self.held = self.held, []
        if timers_last:
            held.sort(key=lambda due: isinstance(due.handle, asyncio.TimerHandle))
        for due in held:
            due.go_on()


stands_with: ContextVar[Standstill | None] = ContextVar("stands_with", default=None)
"""Whose tasks these are, in their context."""


class _Due:
    """A callback of a machine, called when its time has come, and again when the machine wakes."""

    handle: asyncio.Handle

    def __init__(
        self, loop: SimLoop, callback: Callable[..., Any], args: tuple[Any, ...], context: Context
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._args = args
        self._machine = context[stands_with]
        self.context = context

    def __call__(self) -> None:
        if self.handle.cancelled():
            return
        if self._machine.is_on:
            self._machine.held.append(self)
        else:
            self._callback(*self._args)

    def go_on(self) -> None:
        asyncio.SelectorEventLoop.call_soon(self._loop, self, context=self.context)


class SimLoop(asyncio.SelectorEventLoop):
    """`after_step` is called after every pass of the loop; what it raises ends the run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.machines: list[Standstill] = []
        self.after_step: Callable[[], None] = lambda: None
        selector = SimSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        if _machine_of(context) is None:
            return super().call_soon(callback, *args, context=context)
        due = _Due(self, callback, args, context or copy_context())
        due.handle = super().call_soon(due, context=due.context)
        return due.handle

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        if _machine_of(context) is None:
            return super().call_at(when, callback, *args, context=context)
        due = _Due(self, callback, args, context or copy_context())
        due.handle = super().call_at(when, due, context=due.context)
        return due.handle

    def _run_once(self) -> None:
        self.now += STEP_S
        super()._run_once()  # type: ignore[misc]
        self.after_step()


def _machine_of(context: Context | None) -> Standstill | None:
    return stands_with.get() if context is None else context.get(stands_with)


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
    for machine in loop.machines:
        machine.end()
    for _ in range(5):
        left = asyncio.all_tasks(loop)
        if not left:
            return
        for task in left:
            task.cancel()
        loop.call_later(1.0, loop.stop)
        loop.run_forever()
