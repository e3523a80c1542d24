"""Retention: finished runs take their records along, by count and by age.

Makes true: at most `keep.runs` finished runs have records, none of them for longer than
`keep.for_s` after its end; the story of each stays in `history/`. Reads runs and what belongs to
them; removes only what is finished: first what belongs to a run, then its events, then the run, so
that a crash in between leaves a run that is looked at again. Of a run with a live lease nothing is
removed: it was cancelled while that worker was away. A run's end and its story come before all of
these in the journal. Woken by runs. What it does for one finished run does not depend on how many
others there are.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from controllers.controller import Wait
from controllers.ports import ForgetEvents
from controllers.workqueue import WorkQueue
from datastore.clock import Clock, parse_stamp, stamp
from datastore.kinds import LEASES, PENDING, RUNS, STEPS, Lease, Run
from datastore.kinds.dispatch_name import run_of
from datastore.record import Kind
from datastore.store import Store

KEY = "retention"

KEEP_RUNS = 500
"""Finished runs whose records are kept unless something else is said."""

REMOVED_AT_ONCE = 400
"""Records removed before others get their turn: in one commit, and until the disk has taken them.
"""
LOOK_S = 0.1
"""How often it is asked meanwhile whether the disk refuses, or nothing more is to be removed."""

READ_AT_ONCE = 50
"""Finished runs of an earlier process that are parsed at once, so that others get their turn."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How many finished runs are kept, and for how long after their end; None: no limit."""

    runs: int | None = KEEP_RUNS
    for_s: float | None = None


def no_events(run: str, gone: Callable[[], None]) -> None:
    """For those who keep no events: they are gone already."""
    gone()


async def all_set(events: Iterable[asyncio.Event]) -> None:
    """Wait for each of them."""
    for event in events:
        await event.wait()


class Due(NamedTuple):
    """Finished runs that are not to be kept, the one that ended first first."""

    going: list[str]
    busy: list[str]
    """Those that stay for now: a worker that is away may still run a step of theirs."""


def due_of_records(runs: Iterable[Run], leases: Iterable[Lease], keep: Keep, clock: Clock) -> Due:
    """As `Retention.due`, of records that no store holds: for those who only look."""
    busy = {run_of(lease.name) for lease in leases if lease.live}
    return _due([_end_of(run) for run in runs if not run.live], keep, clock, busy.__contains__)


def _end_of(run: Run) -> tuple[str, str]:
    """When it ended, and which run."""
    ended_at = run.status.ended_at if run.status is not None else None
    return ended_at or run.created_at, run.name


def _due(
    ended: Iterable[tuple[str, str]], keep: Keep, clock: Clock, is_busy: Callable[[str], bool]
) -> Due:
    in_order = sorted(ended)
    too_many = 0 if keep.runs is None else max(0, len(in_order) - keep.runs)
    oldest = _oldest_kept(keep, clock)
    due = Due([], [])
    for number, (at, run) in enumerate(in_order):
        if number < too_many or at <= oldest:
            (due.busy if is_busy(run) else due.going).append(run)
    return due


def _oldest_kept(keep: Keep, clock: Clock) -> str:
    """What ended then or before is too old."""
    return "" if keep.for_s is None else stamp(clock.now() - timedelta(seconds=keep.for_s))


class Retention:
    """Reconciles one key. Runs are removed in the order in which they ended."""

    def __init__(
        self, store: Store, clock: Clock, keep: Keep, forget_events: ForgetEvents = no_events
    ) -> None:
        self.queue = WorkQueue()
        self.keep = keep
        self._store = store
        self._clock = clock
        self._forget_events = forget_events
        self._ended: list[tuple[str, str]] = []
        """A heap of (when, which run)."""
        self._unread = deque(
            name for name in sorted(store.names(RUNS)) if store.is_finished(RUNS, name)
        )
        self._held: list[tuple[str, str]] = []
        self._untaken = 0
        """Records removed since the disk was last waited for."""
        store.watch(RUNS, self._changed)

    def live_keys(self) -> Iterable[str]:
        for entry in self._held:
            heapq.heappush(self._ended, entry)
        self._held.clear()
        return [KEY]

    def _changed(self, name: str) -> None:
        # A finished record never changes, so that a run is noted once.
        if self._store.is_finished(RUNS, name):
            self._note(name)
            if self._is_due(self.keep):
                self.queue.add(KEY)

    def _note(self, name: str) -> None:
        run = self._store.find(RUNS, name)
        if run is not None:
            heapq.heappush(self._ended, _end_of(run))

    async def reconcile(self, key: str) -> Wait | None:
        await self._read_all()
        while self._is_due(self.keep) and not self.queue.closed:
            entry = heapq.heappop(self._ended)
            if not await self._remove(entry[1], lambda: None):
                self._held.append(entry)
        if self.keep.for_s is None or not self._ended:
            return None
        age = self._clock.now() - parse_stamp(self._ended[0][0])
        return Wait(max(1.0, self.keep.for_s - age.total_seconds()))

    def _is_due(self, keep: Keep) -> bool:
        """Whether the run that ended first has to go."""
        if not self._ended:
            return False
        if keep.runs is not None and len(self._ended) + len(self._unread) > keep.runs:
            return True
        return self._ended[0][0] <= _oldest_kept(keep, self._clock)

    async def _read_all(self) -> None:
        """Learn when the runs ended that an earlier process left."""
        while self._unread:
            for _ in range(min(READ_AT_ONCE, len(self._unread))):
                self._note(self._unread.popleft())
            await asyncio.sleep(0)

    # -- asked for -------------------------------------------------------------------------------

    async def due(self, keep: Keep) -> Due:
        """The finished runs that `keep` would not keep."""
        await self._read_all()
        return _due((*self._ended, *self._held), keep, self._clock, self._is_busy)

    async def remove(self, runs: Sequence[str]) -> None:
        """Remove those finished runs now; returns when their records have gone from memory."""
        await all_set(await self.begin_to_remove(runs))

    async def begin_to_remove(self, runs: Sequence[str]) -> list[asyncio.Event]:
        """As `remove`, told by events; a disk that refuses is not waited for."""
        going = []
        wanted = set(runs)
        self._ended = [entry for entry in self._ended if entry[1] not in wanted]
        heapq.heapify(self._ended)
        self._held = [entry for entry in self._held if entry[1] not in wanted]
        for run in runs:
            gone = asyncio.Event()
            if await self._remove(run, gone.set):
                going.append(gone)
            else:
                self._note(run)
        return going

    # -- removing --------------------------------------------------------------------------------

    async def _remove(self, run: str, gone: Callable[[], None]) -> bool:
        """Remove what belongs to the run, then have its events and it removed; `gone` is called.

        False if something of it still lives: nothing of that is touched.
        """
        if self._is_busy(run):
            return False
        await self._let_others(1)
        while belongings := self._belongings(run):
            self._store.commit(removals=belongings)
            await self._let_others(len(belongings))
        if any(self._store.names_by(kind, "run", run) for kind in (LEASES, PENDING, STEPS)):
            return False

        def drop() -> None:
            if self._store.is_finished(RUNS, run):
                self._store.commit(removals=[(RUNS, run)])
            gone()

        self._forget_events(run, drop)
        return True

    async def _let_others(self, removed: int) -> None:
        """Give others their turn, on the disk as well: what they commit stands behind removals."""
        await asyncio.sleep(0)
        self._untaken += removed
        if self._untaken < REMOVED_AT_ONCE:
            return
        self._untaken = 0
        taken = asyncio.Event()
        self._store.after_barrier(taken.set)
        while not (taken.is_set() or self._store.trouble or self.queue.closed):
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await taken.wait()

    def _is_busy(self, run: str) -> bool:
        """Whether it has a live lease."""
        live, of_run = self._store.live_count(LEASES), self._store.count_by(LEASES, "run", run)
        if live < of_run:
            return any(run_of(lease.name) == run for lease in self._store.live(LEASES))
        names = self._store.names_by(LEASES, "run", run)
        return not all(self._store.is_finished(LEASES, name) for name in names)

    def _belongings(self, run: str) -> list[tuple[Kind[Any, Any], str]]:
        found: list[tuple[Kind[Any, Any], str]] = []
        kinds: tuple[Kind[Any, Any], ...] = (LEASES, PENDING, STEPS)
        for kind in kinds:
            for name in self._store.names_by(kind, "run", run):
                if self._store.is_finished(kind, name):
                    found.append((kind, name))
                if len(found) == REMOVED_AT_ONCE:
                    return found
        return found
