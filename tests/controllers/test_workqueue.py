"""The six promises of the work queue, against a naive model, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controllers.workqueue import BACKOFF_FIRST_S, BACKOFF_MOST_S, QueueClosed, WorkQueue

KEYS = st.sampled_from("abc")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock moves when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now


class QueueMachine(RuleBasedStateMachine):
    """The model: which keys must run, which are running, and when timers ring."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.queue = WorkQueue()
        self.due: set[str] = set()
        self.held: set[str] = set()
        self.timers: dict[str, float] = {}
        self.failures: dict[str, int] = {}

    def teardown(self) -> None:
        self.loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.queue.add(key)
        self.due.add(key)

    def _timer(self, key: str, delay_s: float) -> None:
        self.timers[key] = min(self.timers.get(key, float("inf")), self.loop.now + delay_s)

    @rule(key=KEYS, delay_s=st.sampled_from((0.0, 1.0, 2.0, 5.0)))
    def add_after(self, key: str, delay_s: float) -> None:
        async def call() -> None:
            self.queue.add_after(key, delay_s)

        self._run(call())
        if delay_s:
            self._timer(key, delay_s)
        else:
            self.due.add(key)

    @rule(key=KEYS)
    def add_rate_limited(self, key: str) -> None:
        async def call() -> None:
            self.queue.add_rate_limited(key)

        self._run(call())
        failures = self.failures.get(key, 0)
        self.failures[key] = failures + 1
        self._timer(key, min(BACKOFF_FIRST_S * 2**failures, BACKOFF_MOST_S))

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        self.failures.pop(key, None)

    @rule(seconds=st.sampled_from((0.005, 0.5, 1.0, 3.0)))
    def advance(self, seconds: float) -> None:
        self.loop.now += seconds
        self._run(asyncio.sleep(0))
        # The loop, too, takes a timer for due that is off by less than its clock can tell.
        for key in [key for key, at in self.timers.items() if at < self.loop.now + 1e-9]:
            del self.timers[key]
            self.due.add(key)

    @precondition(lambda self: self.due - self.held)
    @rule()
    def get(self) -> None:
        key = self._run(self.queue.get())
        assert key in self.due - self.held
        self.due.discard(key)
        self.held.add(key)
        self.timers.pop(key, None)

    @precondition(lambda self: not self.due - self.held)
    @rule()
    def cancelled_get(self) -> None:
        async def give_up() -> None:
            waiting = asyncio.ensure_future(self.queue.get())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        self._run(give_up())

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        self.queue.done(key)
        self.held.discard(key)

    @invariant()
    def as_many_are_ready_as_must_run_and_do_not(self) -> None:
        assert len(self.queue) == len(self.due - self.held)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


async def test_a_closed_queue_gives_out_nothing_more_and_wakes_who_waits() -> None:
    queue = WorkQueue()
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    queue.add_after("later", 0.001)
    queue.close()
    with pytest.raises(QueueClosed):
        await waiting
    queue.add("a")
    await asyncio.sleep(0.005)
    assert len(queue) == 0


async def test_a_key_that_has_run_leaves_no_timer_behind() -> None:
    queue = WorkQueue()
    queue.add_after("a", 600.0)
    queue.add("a")
    key = await queue.get()
    queue.done(key)
    assert not queue._timers


async def test_keys_that_come_together_reach_as_many_who_wait() -> None:
    """Each may take long over its key: nobody else's may wait for that."""
    queue = WorkQueue()
    waiting = [asyncio.ensure_future(queue.get()) for _ in range(4)]
    await asyncio.sleep(0)
    for key in ("a", "b", "c"):
        queue.add(key)
    async with asyncio.timeout(5):
        found = [await one for one in waiting[:3]]
    assert sorted(found) == ["a", "b", "c"]
    assert not waiting[3].done()
    queue.add("d")
    assert await waiting[3] == "d"


async def test_lanes_take_turns_and_what_has_none_goes_first() -> None:
    queue = WorkQueue(lambda key: None if key == "!" else key[0])
    for key in ("a1", "a2", "a3", "b1", "b2", "c1", "!"):
        queue.add(key)
    assert len(queue) == 7
    order = [await queue.get() for _ in range(3)]
    queue.add("d1")
    queue.add("a2")
    order += [await queue.get() for _ in range(5)]
    assert order == ["!", "a1", "b1", "c1", "a2", "b2", "d1", "a3"]
    assert len(queue) == 0
    queue.done("a1")
    queue.add("a1")
    assert await queue.get() == "a1"


async def test_whoever_is_woken_and_cancelled_leaves_the_key_to_the_next() -> None:
    queue = WorkQueue()
    waiting = [asyncio.ensure_future(queue.get()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add("a")
    waiting[0].cancel()
    async with asyncio.timeout(5):
        assert await waiting[1] == "a"
    assert waiting[0].cancelled()
