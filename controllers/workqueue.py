"""The work queue behind every controller. Six promises and no others:

1. Dedupe: adding a key twice before it runs causes one run.
2. One at a time: a key is never run twice at once; added while it runs, it runs once more after.
3. Delay keeps the earliest: `add_after` twice keeps the sooner time; `add` is never delayed.
4. Back-off per key: failures of one key slow only that key; success forgets them.
5. A run ends the key's delay: what it was to run for is looked at now. Nothing is left of a key
   that has run and asks for nothing more.
6. Lanes take turns: a key waits for one key of each other lane, however many those have. Keys of no
   lane go before all others.

A key is in `_dirty` when it must run, in `_held` while it runs. Every method but `get` is a plain
`def`, so there is no lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

BACKOFF_FIRST_S = 0.005
BACKOFF_MOST_S = 30.0


class QueueClosed(Exception):
    """The queue was closed and has no more keys to give."""


LaneOf = Callable[[str], str | None]
"""The lane of a key; None for one that goes first."""


class _Lanes:
    """Keys that are ready. Within its lane the first goes first."""

    def __init__(self, lane_of: LaneOf) -> None:
        self._lane_of = lane_of
        self._first: deque[str] = deque()
        self._lanes: dict[str, deque[str]] = {}
        self._turns: deque[str] = deque()
        """Lanes with keys, the next one to give one first."""
        self._count = 0

    def append(self, key: str) -> None:
        self._count += 1
        lane = self._lane_of(key)
        if lane is None:
            self._first.append(key)
        elif lane in self._lanes:
            self._lanes[lane].append(key)
        else:
            self._lanes[lane] = deque((key,))
            self._turns.append(lane)

    def popleft(self) -> str:
        self._count -= 1
        if self._first:
            return self._first.popleft()
        lane = self._turns.popleft()
        keys = self._lanes[lane]
        key = keys.popleft()
        if keys:
            self._turns.append(lane)
        else:
            del self._lanes[lane]
        return key

    def clear(self) -> None:
        self._first.clear()
        self._lanes.clear()
        self._turns.clear()
        self._count = 0

    def __len__(self) -> int:
        return self._count


class WorkQueue:
    """Keys waiting to be reconciled."""

    def __init__(self, lane_of: LaneOf = lambda key: "") -> None:
        """Without `lane_of` all keys are of one lane."""
        self._dirty: set[str] = set()
        self._held: set[str] = set()
        self._ready = _Lanes(lane_of)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._woken: asyncio.Future[None] | None = None
        """Who has been told that there are keys, and has not come for one yet."""
        self._closed = False

    def add(self, key: str) -> None:
        """Have the key run, now or (if it runs now) once more afterwards."""
        if self._closed or key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._held:
            self._ready.append(key)
            self._wake_one()

    def add_after(self, key: str, delay_s: float) -> None:
        """Have the key run after `delay_s` seconds; an earlier timer of the key stays."""
        if self._closed:
            return
        if delay_s <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + delay_s
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= when:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(when, self._ring, key)

    def _ring(self, key: str) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def add_rate_limited(self, key: str) -> None:
        """Have the key run again after its back-off, which doubles with each failure."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.add_after(key, min(BACKOFF_FIRST_S * 2.0 ** min(failures, 20), BACKOFF_MOST_S))

    def forget(self, key: str) -> None:
        """The key ran well: its failures no longer count."""
        self._failures.pop(key, None)

    async def get(self) -> str:
        """The next key, to be given back with `done`; QueueClosed when there will be none."""
        # Wait first and pop second, nothing awaited between: a cancelled get swallows no key.
        while not self._ready:
            if self._closed:
                raise QueueClosed
            await self._be_woken()
        key = self._ready.popleft()
        if self._ready:
            # For the time that this key may take. Most take none, and then nobody else comes.
            self._wake_one()
        self._dirty.discard(key)
        self._held.add(key)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        return key

    def done(self, key: str) -> None:
        """The key's run is over."""
        self._held.discard(key)
        if key in self._dirty:
            self._ready.append(key)
            self._wake_one()

    def close(self) -> None:
        """Give out nothing more and drop all timers."""
        self._closed = True
        self._ready.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def closed(self) -> bool:
        """Whether it gives out nothing more."""
        return self._closed

    def __len__(self) -> int:
        return len(self._ready)

    async def _be_woken(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if self._woken is waiter:
                # The key is for somebody else, then.
                self._woken = None
                self._wake_one()
            raise
        self._woken = None

    def _wake_one(self) -> None:
        """Have one come for a key, unless one is on the way: all at once would come for nothing."""
        if self._woken is not None:
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._woken = waiter
                waiter.set_result(None)
                return
