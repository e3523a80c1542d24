"""The loop around a reconciler: keys in, one reconcile per key at a time, back-off, resync.

A reconcile has three endings: None (done until something changes), `Wait(seconds)` (look again
then) and an exception (again after the key's back-off). `TerminalError` is for what retrying cannot
mend.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from controllers.workqueue import QueueClosed, WorkQueue

log = logging.getLogger(__name__)

RESYNC_S = 30.0

BEFORE_A_REST = 8
"""Reconciles that one worker may do before others get their turn."""

TURN_S = 0.0002
"""How long these may take together."""

BEHIND_MOST = 2_000
"""So many commits that wait for the disk, and nothing more is reconciled: each one that somebody
else waits for stands behind them."""
BEHIND_LOOK_S, BEHIND_LOOK_MOST_S = 0.004, 0.25


@dataclass(frozen=True, slots=True)
class Wait:
    """Reconcile this key again after so many seconds, if nothing wakes it earlier."""

    seconds: float


def sooner(one: Wait | None, other: Wait | None) -> Wait | None:
    """The shorter of two waits, of which there may be none."""
    return min((wait for wait in (one, other) if wait), key=lambda wait: wait.seconds, default=None)


class TerminalError(Exception):
    """Retrying cannot help; the key is looked at again when something changes."""


class Reconciler(Protocol):
    """What a controller makes true, key by key."""

    queue: WorkQueue

    def live_keys(self) -> Iterable[str]:
        """Every key that could still need work, for the resync."""

    async def reconcile(self, key: str) -> Wait | None:
        """Look at the world and make it a little truer."""


class Controller:
    """Runs one reconciler."""

    def __init__(
        self,
        name: str,
        reconciler: Reconciler,
        *,
        randomness: random.Random,
        behind: Callable[[], int],
        workers: int = 4,
        resync_s: float | None = RESYNC_S,
    ) -> None:
        """`behind`: how many commits wait for the disk.

        `resync_s` None switches the resync off: only to prove that tests notice.
        """
        self.name = name
        self._reconciler = reconciler
        self._queue = reconciler.queue
        self._randomness = randomness
        self._behind = behind
        self._workers = workers
        self._resync_s = resync_s

    async def run(self) -> None:
        """Reconcile until `stop`; one failing key never ends it."""
        self.resync()
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(self._work()) for _ in range(self._workers)]
            ticker = group.create_task(self._tick())
            await asyncio.wait(workers)
            ticker.cancel()

    def stop(self) -> None:
        """Take on nothing more; reconciles that are under way end."""
        self._queue.close()

    def resync(self) -> None:
        """Look at every live key again: what an event that got lost would have done."""
        for key in self._reconciler.live_keys():
            self._queue.add(key)

    async def _tick(self) -> None:
        if self._resync_s is None:
            return
        while True:
            await asyncio.sleep(self._resync_s * self._randomness.uniform(0.8, 1.0))
            self.resync()

    async def _caught_up(self) -> None:
        """Wait until the disk has taken enough, or nothing more is to be reconciled."""
        look_s = BEHIND_LOOK_S
        while self._behind() > BEHIND_MOST // 2 and not self._queue.closed:
            await asyncio.sleep(look_s)
            look_s = min(2 * look_s, BEHIND_LOOK_MOST_S)

    async def _work(self) -> None:
        queue = self._queue
        time_s = asyncio.get_running_loop().time
        done, worked_s = 0, 0.0
        while True:
            if self._behind() > BEHIND_MOST:
                await self._caught_up()
            try:
                key = await queue.get()
            except QueueClosed:
                return
            began_s = time_s()
            try:
                wait = await self._reconciler.reconcile(key)
            except TerminalError as error:
                queue.forget(key)
                log.error("%s: %s: will not retry until it changes: %s", self.name, key, error)
            except Exception as error:
                queue.add_rate_limited(key)
                log.warning("%s: %s: will retry: %r", self.name, key, error, exc_info=error)
            else:
                queue.forget(key)
                if wait is not None:
                    queue.add_after(key, wait.seconds)
            finally:
                queue.done(key)
            done += 1
            worked_s += time_s() - began_s
            if done % BEFORE_A_REST == 0 or worked_s >= TURN_S:
                # Reconciles that never really await must not starve the loop.
                await asyncio.sleep(0)
                worked_s = 0.0
