"""Retention: finished runs take their records along once enough newer ones have finished.

Makes true: at most `keep` finished runs have records; the story of each stays in `history/`. Reads
runs and what belongs to them; removes only what is finished, a run last, so that a crash between
two commits leaves a run that is looked at again. Woken by runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from controllers.controller import Wait
from controllers.workqueue import WorkQueue
from datastore.kinds import LEASES, PENDING, RUNS, STEPS
from datastore.record import Kind
from datastore.store import Store

KEY = "retention"

KEEP_RUNS = 500
"""Finished runs whose records are kept."""

REMOVED_AT_ONCE = 400
"""Records removed in one commit, so that others get their turn."""


class Retention:
    """Reconciles one key. Runs are removed in the order in which they finished."""

    def __init__(self, store: Store, *, keep: int = KEEP_RUNS) -> None:
        self.queue = WorkQueue()
        self._store = store
        self._keep = keep
        self._finished: deque[str] = deque()
        self._known: set[str] = set()
        for name in sorted(store.names(RUNS)):
            self._note(name)
        store.watch(RUNS, self._note)

    def _note(self, name: str) -> None:
        if name in self._known or not self._store.is_finished(RUNS, name):
            return
        self._known.add(name)
        self._finished.append(name)
        if len(self._finished) > self._keep:
            self.queue.add(KEY)

    def live_keys(self) -> Iterable[str]:
        return [KEY]

    async def reconcile(self, key: str) -> Wait | None:
        while len(self._finished) > self._keep:
            run = self._finished[0]
            belongings = self._belongings(run)
            if belongings:
                self._store.commit(removals=belongings)
                self.queue.add(key)
                return None
            self._finished.popleft()
            self._known.discard(run)
            self._store.commit(removals=[(RUNS, run)])
        return None

    def _belongings(self, run: str) -> list[tuple[Kind[Any, Any], str]]:
        found: list[tuple[Kind[Any, Any], str]] = []
        kinds: tuple[Kind[Any, Any], ...] = (LEASES, PENDING, STEPS)
        for kind in kinds:
            for name in self._store.names_by(kind, "run", run):
                found.append((kind, name))
                if len(found) == REMOVED_AT_ONCE:
                    return found
        return found
