"""Steps that the server runs itself: a sleep of drawn length instead of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from controllers.ports import LocalEnded
from datastore.kinds import STEPS, Call, Outcome
from datastore.store import Store
from sim.world import World


class SimLocalExecutor:
    """`LocalExecutor` for one life of the server."""

    def __init__(
        self, world: World, store: Store, spawn: Callable[[Coroutine[Any, Any, None]], Any]
    ) -> None:
        self._world = world
        self._store = store
        self._spawn = spawn
        self._alive = True
        self._stops: dict[str, asyncio.Event] = {}
        self._ended: LocalEnded = lambda step, outcome: None

    def bind(self, ended: LocalEnded) -> None:
        self._ended = ended

    def kill(self) -> None:
        self._alive = False
        for step in sorted(self._stops):
            self._world.truth.running.pop(step, None)

    def running(self, step: str) -> bool:
        return step in self._stops

    def start(self, step: str, call: Call, timeout_s: float | None) -> None:
        record = self._store.get(STEPS, step)
        where = (record.spec.workflow, f"{record.spec.job}/{record.spec.template or ''}")
        plain = (record.spec.workflow, f"{record.spec.job}/{record.spec.step}")
        placed = self._world.truth.placed
        if placed.get(where) or placed.get(plain):
            self._world.fail(f"promise 4: the placed step {step} runs on the server")
        self._stops[step] = asyncio.Event()
        self._store.after_barrier(lambda: self._begin(step))

    def stop(self, step: str) -> None:
        stop = self._stops.get(step)
        if stop is not None:
            stop.set()

    def _begin(self, step: str) -> None:
        if not self._alive:
            return
        truth = self._world.truth
        if truth.started.get(step):
            self._world.fail(f"promise 5: the step {step} runs on the server a second time")
        if self._world.disk.find(STEPS, step) is None:
            self._world.fail(f"the step {step} runs on the server before its record is durable")
        truth.started[step] = [step]
        truth.running[step] = "server"
        self._spawn(self._execute(step))

    async def _execute(self, step: str) -> None:
        rng = self._world.rng
        outcome = Outcome(ok=rng.random() < 0.85, reason="completed")
        duration_s = rng.uniform(0.01, 4.0)
        try:
            async with asyncio.timeout(duration_s):
                await self._stops[step].wait()
            outcome = Outcome(ok=False, reason="cancelled", error="cancelled")
        except TimeoutError:
            pass
        if self._alive:
            self._world.truth.running.pop(step, None)
            del self._stops[step]
            self._ended(step, outcome)
