"""Memory of the server, kept small and without pauses.

What belongs to a run that has ended is kept as the JSON it was stored as, once the index has it.

A full collection looks at every object there is, and stops everything meanwhile: with some 100,000
records in memory for half a second. So the collector looks by itself only at what is new; what has
grown old is frozen in small steps. Nearly nothing of it turns into garbage that only a collector
finds; each socket leaves a few objects, though. So all is looked at once more when as much has been
frozen as there was: in a quiet moment, when nobody waits for it, or else much later.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from datastore.kinds import LEASES, PENDING, RUNS, STEPS
from datastore.meter import About, Histogram
from datastore.record import Kind
from datastore.store import Store
from datastore.trouble import OF_THE_DISK, Trouble

log = logging.getLogger(__name__)

Stored = Callable[[Kind[Any, Any], Iterable[str]], dict[str, bytes]]

EVERY_S = 5.0
SLICE = 500
"""Records read from the index, or swapped, before others get their turn."""

YOUNG, MIDDLE = 2_000, 5
"""Objects made before the young are looked at, and such looks before the middle-aged are.

Each object is looked at twice whatever these are; they say how many at once: a few milliseconds.
"""
NEVER = 1_000_000_000
FREEZE_AT = 50_000
"""New objects after which the old are frozen: what is still to be looked at stays few."""
QUIET_BELOW = 2_000
"""Objects made since the last time: a moment without a run is quiet if there are fewer."""
GROWN_MOST = 300_000
"""Objects frozen since all were looked at, after which no quiet moment is waited for: what some
40,000 sockets leave, less than 100 MB."""
OF_A_RECORD = 30
"""Objects at most that are made for a record, which are no garbage while it is there: 20,000 steps
that wait are 460,000 of them, and to look at all of these once more takes half a second."""


class Housekeeping:
    """Watches runs end. `stored` reads documents from the index, in a thread."""

    def __init__(
        self, store: Store, stored: Stored, defined: Callable[[], int] = lambda: 0
    ) -> None:
        """`defined`: of about how many objects the definitions are made."""
        self._store = store
        self._stored = stored
        self._defined = defined
        self._ended: dict[str, None] = {}
        self._kept = self._kept_records = self._kept_defined = self._grown = self._before = 0
        self._refused = Trouble("finished records stay in memory for now", log)
        self._began_s = 0.0
        self.pauses = Histogram(
            About("swamp_gc_pause_seconds", "How long a collection of memory stopped everything.")
        )
        store.watch(RUNS, self._run_changed)

    def _run_changed(self, name: str) -> None:
        if self._store.is_finished(RUNS, name):
            self._ended[name] = None

    async def run(self) -> None:
        """Tidy up until cancelled."""
        # What the start has frozen is no garbage, and it is nearly everything.
        self._look_at_new()
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        gc.callbacks.append(self._measure)
        try:
            await self._tidy()
        finally:
            gc.callbacks.remove(self._measure)

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            ended, self._ended = self._ended, {}
            try:
                for run in ended:
                    await self._put_run_away(run)
            except OF_THE_DISK as error:
                self._refused.found(error)
                self._ended = {**ended, **self._ended}
            else:
                self._refused.over()
            self._collect()

    async def _put_run_away(self, run: str) -> None:
        for kind in (STEPS, PENDING, LEASES):
            names = self._store.unpacked_by(kind, "run", run)
            for start in range(0, len(names), SLICE):
                some = names[start : start + SLICE]
                documents = await asyncio.to_thread(self._stored, kind, some)
                for name, document in documents.items():
                    self._store.compact(kind, name, document)
                if len(documents) < len(some):
                    # Files and index follow a little later than memory: the rest comes next time.
                    self._ended[run] = None

    def _measure(self, phase: str, _: dict[str, int]) -> None:
        now_s = time.perf_counter()
        if phase == "start":
            self._began_s = now_s
        else:
            self.pauses.observe(now_s - self._began_s)

    def _collect(self) -> None:
        new = _new_objects()
        busy = self._store.live_count(RUNS) or self._ended or new - self._before >= QUIET_BELOW
        if new >= FREEZE_AT:
            gc.collect(1)
            gc.freeze()
            self._grown += new
            new = 0
        self._before = new
        most = max(self._kept, GROWN_MOST if busy else 1)
        most += OF_A_RECORD * max(0, self._store.unpacked_count - self._kept_records)
        most += max(0, self._defined() - self._kept_defined)
        if self._grown < most:
            return
        # Most have gone again. To count those that have not is to go to each of them.
        self._grown = gc.get_freeze_count() - self._kept
        if self._grown >= most:
            gc.unfreeze()
            self._look_at_new()

    def _look_at_new(self) -> None:
        """At what is not frozen; then it is, too."""
        gc.collect()
        gc.freeze()
        self._kept, self._grown = gc.get_freeze_count(), 0
        self._kept_records, self._kept_defined = self._store.unpacked_count, self._defined()


def _new_objects() -> int:
    """At most so many objects more than after the last freeze."""
    young, middle, old = gc.get_count()
    return young + YOUNG * (middle + MIDDLE * old)
