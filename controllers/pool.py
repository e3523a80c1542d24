"""The workers as the scheduler chooses among them: who could take a dispatch, who is bound to it.

Load is the size of a set of live dispatch ids, read from the leases each time. Affinity binds a
group of steps to the worker of its first lease; that, too, follows from the leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from controllers.free_slots import FreeSlots, ShapeKey
from controllers.model_locks import ModelLocks
from controllers.placement import (
    Crowd,
    Stand,
    available,
    choose,
    matches,
    stand,
    takes_probes,
)
from controllers.waiting import Group
from datastore.kinds import LEASES, WORKERS, PendingSpec, Placement, Worker
from datastore.store import Store

REFUSED_FOR_S, REFUSED_FOR_MOST_S = 1.0, 30.0
"""How long a worker that refused a dispatch is not chosen, unless it frees a slot or changes first:
twice as long after each refusal in a row, so that leases are not made without end."""


CONCERNED_MOST = 20_000
"""Requirements remembered of one shape of worker before that is worked out anew."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """Of a worker, the last time: for how long it is not chosen, and until when (loop time)."""

    for_s: float
    until_s: float


class WorkerPool:
    """Reads workers and leases; remembers only who refused, and what it found for a requirement."""

    def __init__(
        self, store: Store, paused: Callable[[Placement], object], locks: ModelLocks
    ) -> None:
        """`paused` answers what holds a requirement back, None if nothing does."""
        self._store = store
        self._locks = locks
        self._paused = paused
        self._refused: dict[str, _Refused] = {}
        self._slots = FreeSlots(
            lambda name: store.find(WORKERS, name), self._free_for_steps, self._stand
        )
        self._concerned: dict[ShapeKey, dict[str, None]] = {}
        self._generation = 0
        self._by_target: dict[str, dict[str, None]] = {}
        self._bound: dict[str, str] = {}
        self.look_again()

    # -- choosing --------------------------------------------------------------------------------

    def best(self, key: str, group: Group) -> Worker | None:
        """The worker for the next dispatch of a requirement, None while nobody has a free slot."""
        if not group.probe and self._paused(group.placement):
            return None
        if group.model and self._locks.full(group.model.key, group.model.concurrency):
            return None
        bound = self.bound_to(group.affinity, group.run) if group.affinity else None
        name = bound or group.placement.target
        if name is None:
            return self._slots.best(key, group.placement)
        may = takes_probes if group.probe else available
        named = (one for one in self._named(name) if may(one) and matches(group.placement, one))
        return choose(named, self._free)

    def _named(self, name: str) -> Iterable[Worker]:
        """The worker of that name, or whose process has that id."""
        worker = self._store.find(WORKERS, name)
        if worker is not None:
            return (worker,)
        workers = self._store.live(WORKERS)
        return (one for one in workers if one.status and one.status.instance == name)

    def _free(self, worker: Worker) -> int:
        if worker.status is None or self.refused(worker.name):
            return 0
        return worker.status.capacity - self._load(worker.name)

    def _free_for_steps(self, worker: Worker) -> int:
        return self._free(worker) if available(worker) else 0

    def _stand(self, worker: Worker) -> Stand:
        return stand(worker, self._load(worker.name), self.refused)

    def _load(self, worker: str) -> int:
        """The size of the set of dispatch ids that are live on the worker (seed #3293)."""
        return self._store.count_by(LEASES, "worker", worker)

    def changed(self, worker: str) -> None:
        """The worker is new, gone or other than before, or has a slot more."""
        self._slots.changed(worker)

    def took(self, worker: str) -> None:
        """The worker has a slot less."""
        self._slots.took(worker)

    def look_again(self) -> None:
        """Whatever changed meanwhile, know the workers as they are now."""
        self._slots.rebuild(self._store.live(WORKERS))

    def crowds(self, placement: Placement) -> list[Crowd]:
        """The live workers, by what requirements, this one included, can tell apart."""
        self._slots.asks(placement)
        return self._slots.crowds()

    def shapes(self) -> int:
        """How many crowds there are."""
        return self._slots.shapes()

    # -- waking ----------------------------------------------------------------------------------

    def concerned(self, name: str, groups: Mapping[str, Group]) -> list[str]:
        """The requirements that a freed slot of this worker could meet.

        Only probes where it gets no steps. Worked out once for all workers that no requirement can
        tell apart, and kept: five hundred that nobody can meet cost a freed slot nothing.
        """
        worker, shape = self._store.find(WORKERS, name), self._slots.shape_of(name)
        if worker is None or shape is None or not takes_probes(worker):
            return []
        if self._generation != self._slots.generation:
            self._generation = self._slots.generation
            self._concerned.clear()
        known = self._concerned.get(shape)
        if known is None:
            known = self._concerned[shape] = {
                key: None
                for key, group in groups.items()
                if group.placement.target is None and matches(group.placement, worker)
            }
        found = [key for key in known if key in groups]
        for target in (worker.name, worker.status.instance if worker.status is not None else ""):
            named = [key for key in self._by_target.pop(target, {}) if key in groups]
            if named:
                self._by_target[target] = dict.fromkeys(named)
            found += named
        return found if available(worker) else [key for key in found if groups[key].probe]

    def added(self, key: str, group: Group) -> None:
        """A requirement is new: keep what is known of each shape of worker complete."""
        target = group.placement.target
        if target is not None:
            self._by_target.setdefault(target, {})[key] = None
            return
        self._slots.asks(group.placement)
        if any(len(known) > CONCERNED_MOST for known in self._concerned.values()):
            # Mostly requirements that are gone by now, say of affinity groups of ended runs.
            self._concerned.clear()
        for shape, known in self._concerned.items():
            sample = self._slots.sample(shape)
            if sample is not None and matches(group.placement, sample):
                known[key] = None

    # -- refusals --------------------------------------------------------------------------------

    def refused(self, worker: str) -> bool:
        """Whether the worker refused a dispatch a moment ago."""
        last = self._refused.get(worker)
        return last is not None and asyncio.get_running_loop().time() < last.until_s

    def note_refusal(self, worker: str) -> float:
        """The worker refused a dispatch just now; for how long it is not chosen, seconds."""
        last = self._refused.get(worker)
        for_s = REFUSED_FOR_S if last is None else min(2 * last.for_s, REFUSED_FOR_MOST_S)
        self._refused[worker] = _Refused(for_s, asyncio.get_running_loop().time() + for_s)
        return for_s

    def forget_refusal(self, worker: str) -> None:
        """The worker freed a slot, or is another than before."""
        self._refused.pop(worker, None)

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
