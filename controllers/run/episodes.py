"""The episodes of steps: which is the latest, since when a step asks, and which have had their day.

A restart orphans every dispatch that waits, and each goes on as a new episode. Of those that were
orphaned and never had a lease a step keeps the newest alone, or each restart would leave one more
record of every step that waits. The latest episode is never removed: no number is given twice.
"""

from __future__ import annotations

import asyncio

from datastore.kinds import LEASES, PENDING, Pending
from datastore.store import Store

LEARNED_AT_ONCE = 1_000
"""Names of an earlier process that are gone through at once, so that others get their turn."""


def step_of(dispatch: str) -> str:
    """The name of the step that a dispatch is an episode of."""
    return dispatch.rpartition(".")[0]


class Episodes:
    """Of steps that are active. It reads and writes nothing but what it remembers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._latest: dict[str, int] = {}
        self._leaseless: dict[str, set[str]] = {}
        """Dispatches of an earlier process that no lease followed, by step."""

    async def learn(self, run: str) -> None:
        """Go through what an earlier process left of the run; there may be gaps in it.

        Once more where that did not come to its end, as an output could not be read, say.
        """
        for number, name in enumerate(self._store.names_by(PENDING, "run", run), 1):
            step, _, episode = name.rpartition(".")
            if episode.isdecimal():
                self._latest[step] = max(int(episode), self._latest.get(step, 0))
                if not self._store.has(LEASES, name):
                    self._leaseless.setdefault(step, set()).add(name)
            if number % LEARNED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def begun(self, step: str) -> bool:
        """Whether the step has asked for a worker."""
        return self.latest(step) is not None

    def latest(self, step: str) -> str | None:
        """The dispatch id of the latest episode; None before the first."""
        episode = self._latest.get(step, 0)
        while self._store.has(PENDING, f"{step}.{episode + 1}"):
            episode += 1
        if episode == 0:
            return None
        self._latest[step] = episode
        return f"{step}.{episode}"

    def asked_at(self, dispatch: Pending) -> str:
        """When the step asked for the first time. An older version wrote that nowhere else."""
        if dispatch.spec.asked_at is not None:
            return dispatch.spec.asked_at
        first = self._store.find(PENDING, f"{step_of(dispatch.name)}.1")
        return (first or dispatch).created_at

    def outdated_by(self, orphan: Pending) -> list[str]:
        """What needs no record any more once that dispatch, the latest, is known as orphaned."""
        if orphan.state != "orphaned":
            return []
        before = self._leaseless.pop(step_of(orphan.name), set()) - {orphan.name}
        found = [self._store.find(PENDING, name) for name in sorted(before)]
        return [one.name for one in found if one is not None and one.state == "orphaned"]

    def forget(self, step: str) -> None:
        """The step has ended."""
        self._latest.pop(step, None)
        self._leaseless.pop(step, None)
