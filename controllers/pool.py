"""The workers as the scheduler chooses among them: who could take a dispatch, who is bound to it.

Load is the size of a set of live dispatch ids, read from the leases each time. Affinity binds a
group of steps to the worker of its first lease; that, too, follows from the leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from controllers.model_locks import ModelLocks
from controllers.placement import available, choose, matches
from controllers.waiting import Group
from datastore.kinds import LEASES, WORKERS, PendingSpec, Placement, Worker
from datastore.store import Store

REFUSED_FOR_S = 1.0
"""How long a worker that refused a dispatch is not chosen, unless it frees a slot first."""


CONCERNED_MOST = 20_000
"""Requirements remembered of one worker before that is worked out anew."""


class WorkerPool:
    """Reads workers and leases; remembers only who refused, and what it found for a requirement."""

    def __init__(
        self, store: Store, paused: Callable[[Placement], object], locks: ModelLocks
    ) -> None:
        """`paused` answers what holds a requirement back, None if nothing does."""
        self._store = store
        self._locks = locks
        self._paused = paused
        self._refused_until: dict[str, float] = {}
        self._candidates: dict[str, tuple[str, ...]] = {}
        self._concerned: dict[str, dict[str, None]] = {}
        self._bound: dict[str, str] = {}

    # -- choosing --------------------------------------------------------------------------------

    def best(self, key: str, group: Group) -> Worker | None:
        """The worker for the next dispatch of a requirement, None while nobody has a free slot."""
        if self._paused(group.placement):
            return None
        if group.model and self._locks.full(group.model.key, group.model.concurrency):
            return None
        names = self._candidates.get(key)
        if names is None:
            workers = self._store.live(WORKERS)
            names = tuple(w.name for w in workers if available(w) and matches(group.placement, w))
            self._candidates[key] = names
        bound = self.bound_to(group.affinity, group.run) if group.affinity else None
        found = (self._store.find(WORKERS, name) for name in names if bound in (None, name))
        return choose((worker for worker in found if worker is not None), self._free)

    def _free(self, worker: Worker) -> int:
        if worker.status is None or self.refused(worker.name):
            return 0
        return worker.status.capacity - self._load(worker.name)

    def _load(self, worker: str) -> int:
        """The size of the set of dispatch ids that are live on the worker (seed #3293)."""
        return self._store.count_by(LEASES, "worker", worker)

    def changed(self) -> None:
        """Some worker is new, gone or other than before."""
        self._candidates.clear()
        self._concerned.clear()

    # -- waking ----------------------------------------------------------------------------------

    def concerned(self, worker: Worker, groups: Mapping[str, Group]) -> list[str]:
        """The requirements that a freed slot of this worker could meet.

        Worked out once per worker and kept: five hundred requirements that nobody can meet cost a
        freed slot nothing.
        """
        known = self._concerned.get(worker.name)
        if known is None:
            known = {key: None for key, group in groups.items() if matches(group.placement, worker)}
            self._concerned[worker.name] = known
        return [key for key in known if key in groups]

    def added(self, key: str, group: Group) -> None:
        """A requirement is new: keep what is known of each worker complete."""
        if any(len(known) > CONCERNED_MOST for known in self._concerned.values()):
            # Mostly requirements that are gone by now, say of affinity groups of ended runs.
            self._concerned.clear()
        for name, known in self._concerned.items():
            worker = self._store.find(WORKERS, name)
            if worker is not None and matches(group.placement, worker):
                known[key] = None

    # -- refusals --------------------------------------------------------------------------------

    def refused(self, worker: str) -> bool:
        """Whether the worker refused a dispatch a moment ago."""
        until = self._refused_until.get(worker)
        return until is not None and asyncio.get_running_loop().time() < until

    def note_refusal(self, worker: str) -> None:
        """The worker refused a dispatch just now."""
        self._refused_until[worker] = asyncio.get_running_loop().time() + REFUSED_FOR_S

    def forget_refusal(self, worker: str) -> None:
        """The worker freed a slot, or is another than before."""
        self._refused_until.pop(worker, None)

    # -- affinity --------------------------------------------------------------------------------

    def bound_to(self, affinity: str, run: str) -> str | None:
        """The worker that an affinity group is bound to: that of its first lease."""
        bound = self._bound.get(affinity)
        if bound is None:
            leases = self._store.by(LEASES, "run", run)
            mine = [one for one in leases if one.spec.affinity == affinity]
            if not mine:
                return None
            bound = min(mine, key=lambda one: (one.created_at, one.name)).spec.worker
            self._bound[affinity] = bound
        return bound

    def forget_run(self, run: str) -> None:
        """The run has ended: nothing of it is bound any more."""
        for affinity in [one for one in self._bound if one.partition(".")[0] == run]:
            del self._bound[affinity]

    def effective(self, spec: PendingSpec) -> Placement:
        """What the dispatch asks for by now: its worker, once its group is bound to one."""
        bound = self.bound_to(spec.affinity, spec.run) if spec.affinity else None
        return spec.placement if bound is None else Placement(target=bound)
