"""Whose turn it is to cost the event loop something: the gate that a crowd of workers waits at.

Promises: workers that the server knows go before those it has never seen, those that are further in
before those behind them, and who does not show that it has a token comes last; one begins per round
of the loop, and the loop rests after each bit of work, so that the work of enrolled workers, of
clients and of the journal comes in between. Whoever gives up while it waits leaves nothing behind,
and no long turn holds anybody up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import IntEnum

AT_ONCE, KNOWN_BESIDES = 4, 1
"""Turns that may be under way together: they share looks at the token's file, and transactions. A
worker that is known waits for none of those that are new."""

KNOWN_IN_REST = 1
"""So many that are known begin while the loop rests from the crowd."""

WORK_S = 0.001
"""After so much work, the loop rests."""

REST_SHARE, REST_SHARE_BESIDE_RUNS = 0.5, 2.0
"""How long, in parts of the work. What it waited meanwhile, for the disk say, counts as rest."""

TURN_MOST_S = 0.05
"""A turn that takes longer, say for a slow disk, is waited for no more."""

REST_MOST_S = 0.01
"""The longest rest: what else kept the loop busy meanwhile was not the crowd's fault."""


class Rank(IntEnum):
    """What a turn is for. The first goes first."""

    ENROLL_KNOWN = 0
    UPGRADE_KNOWN = 1
    ENROLL_NEW = 2
    UPGRADE_NEW = 3
    UPGRADE_STRANGER = 4


KNOWN = (Rank.ENROLL_KNOWN, Rank.UPGRADE_KNOWN)


class Turn:
    """One turn. It goes on until `over`, which may be called more than once."""

    def __init__(self, over: Callable[[Turn], None]) -> None:
        self._over = over

    def over(self) -> None:
        """Whoever had the turn has done what costs the loop something."""
        self._over(self)


class Turns:
    """Gives them out. `worked_s` is a clock that only goes on while the event loop works.

    While `beside_runs`, what is under way has the larger part of the loop.
    """

    def __init__(
        self, worked_s: Callable[[], float], beside_runs: Callable[[], bool] = lambda: False
    ) -> None:
        self._worked_s, self._beside_runs = worked_s, beside_runs
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Rank, deque[asyncio.Future[Turn]]] = {rank: deque() for rank in Rank}
        self._open: dict[Turn, asyncio.TimerHandle] = {}
        """Turns that are under way, and when each is waited for no more."""
        self._resting = self._granting = False
        self._in_rest = 0
        self._began_s = self._began_worked_s = 0.0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(not one.done() for waiting in self._waiting.values() for one in waiting)

    async def begin(self, rank: Rank) -> Turn:
        """Wait for a turn, which has begun then."""
        granted: asyncio.Future[Turn] = self._loop.create_future()
        self._waiting[rank].append(granted)
        if not self._open and not self._resting:
            self._begin_to_count()
        self._grant()
        try:
            return await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                granted.result().over()
            raise

    def _grant(self) -> None:
        """Begin a turn; the next ones begin in rounds of the loop of their own."""
        if self._granting or not self._may_begin():
            return
        granted = self._next()
        if granted is None:
            return
        self._in_rest += self._resting
        turn = Turn(self._over)
        self._open[turn] = self._loop.call_later(TURN_MOST_S, self._over, turn)
        granted.set_result(turn)
        self._granting = True
        self._loop.call_soon(self._grant_on)

    def _may_begin(self) -> bool:
        known = any(not one.done() for rank in KNOWN for one in self._waiting[rank])
        if self._resting and not (known and self._in_rest < KNOWN_IN_REST):
            return False
        return len(self._open) < AT_ONCE + (KNOWN_BESIDES if known else 0)

    def _grant_on(self) -> None:
        self._granting = False
        self._grant()

    def _next(self) -> asyncio.Future[Turn] | None:
        for waiting in self._waiting.values():
            while waiting:
                granted = waiting.popleft()
                if not granted.done():
                    return granted
        return None

    def _over(self, turn: Turn) -> None:
        timer = self._open.pop(turn, None)
        if timer is None:
            return
        timer.cancel()
        worked_s = self._worked_s() - self._began_worked_s
        if not self._resting and worked_s >= WORK_S:
            rested_s = self._loop.time() - self._began_s - worked_s
            share = REST_SHARE_BESIDE_RUNS if self._beside_runs() else REST_SHARE
            rest_s = min(max(0.0, worked_s * share - rested_s), REST_MOST_S)
            self._resting = True
            self._loop.call_later(rest_s, self._rested)
        self._grant()

    def _rested(self) -> None:
        self._resting, self._in_rest = False, 0
        self._begin_to_count()
        self._grant()

    def _begin_to_count(self) -> None:
        self._began_s, self._began_worked_s = self._loop.time(), self._worked_s()
