"""While the disk refuses writes no slot is given away: no dispatch could leave, or no result come.

It is noticed by whoever asks, and over once the disk has taken all that it had refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from datastore.store import Store

LOOK_AGAIN_S = 1.0
"""How often it is asked where nothing waits for the disk, and it refuses all the same."""

REMEMBERED_MOST = 100
"""Of so many troubles it is known how long they lasted; the oldest are forgotten."""


class DiskHold:
    """Whether placing is held back, and for how long it was."""

    def __init__(self, store: Store, over: Callable[[], None]) -> None:
        """`over` is called each time that the disk has taken all again."""
        self._store = store
        self._over = over
        self._began_s: float | None = None
        self._lasted: deque[tuple[float, float]] = deque(maxlen=REMEMBERED_MOST)

    def on(self) -> bool:
        """Whether the disk refuses writes, or has not taken yet what it had refused."""
        if self._began_s is None and self._store.hold is not None:
            self._began_s = asyncio.get_running_loop().time()
            self._store.after_barrier(self._look)
        return self._began_s is not None

    def held_s(self, since_s: float) -> float:
        """For how many seconds since that moment (loop time) it was on."""
        lasted = sum(max(0.0, end - max(began, since_s)) for began, end in self._lasted)
        if self._began_s is None:
            return lasted
        now_s = asyncio.get_running_loop().time()
        return lasted + max(0.0, now_s - max(self._began_s, since_s))

    def spans(self) -> list[tuple[float, float]]:
        """From when until when it was on (loop time); until now where it is."""
        now = [] if self._began_s is None else [(self._began_s, asyncio.get_running_loop().time())]
        return [*self._lasted, *now]

    def _look(self) -> None:
        assert self._began_s is not None
        loop = asyncio.get_running_loop()
        if self._store.hold is not None:
            # By the next refusal already; or it is the events of runs that cannot be written, or
            # the writer has ended by an error of ours.
            loop.call_later(LOOK_AGAIN_S, self._store.after_barrier, self._look)
            return
        self._lasted.append((self._began_s, loop.time()))
        self._began_s = None
        self._over()
