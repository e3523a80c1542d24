"""Why requirements wait: worked out from the records, per requirement, at most once a second.

Ten thousand dispatches of one requirement share one reason, and asking again within the second
costs nothing; only a held model is a reason of the dispatch. Live workers are counted by what
requirements can tell apart, and never looked through one by one but for people who ask about each.
Disconnected ones are looked at only while there are few of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

from controllers.model_locks import ModelLocks
from controllers.pauses import paused_text
from controllers.placement import Crowd, Fleet, Reason, Verdict, explain, verdict
from controllers.waiting import requirement_key
from datastore.kinds import LEASES, WORKERS, Pause, PendingSpec, Placement, Worker
from datastore.kinds.probe import PROBES
from datastore.store import Store

RENEWED_EVERY_S = 1.0

LOOKED_THROUGH_MOST = 200
"""With more worker records than this, disconnected ones are only counted."""

REMEMBERED_MOST = 1_000

Crowds = Callable[[Placement], Iterable[Crowd]]

BEFORE_THE_MODEL = frozenset({"paused", "no_match", "target_unknown"})
"""Codes that are told even where the model is held, too."""


@dataclass(frozen=True, slots=True)
class _Known:
    reason: Reason
    at_s: float


def reason_key(spec: PendingSpec) -> Hashable:
    """Equal for dispatches that wait for the same reason; it needs nothing but the record."""
    call, concurrency = spec.call, spec.model_concurrency
    held_by = (concurrency, call.model, call.model_key) if concurrency else None
    if spec.run == PROBES:
        return PROBES, spec.placement.target
    run = spec.run if spec.affinity else None
    return requirement_key(spec.placement, spec.affinity), run, held_by


class Reasons:
    """Explains waiting. Reads workers and leases, writes nothing."""

    def __init__(
        self,
        store: Store,
        refused: Callable[[str], bool],
        paused: Callable[[Placement], Pause | None],
        effective: Callable[[PendingSpec], Placement],
        crowds: Crowds,
    ) -> None:
        """`effective`: what a dispatch asks for by now, as its group may be bound to a worker;
        `crowds`: the live workers, by what a requirement can tell apart."""
        self._store = store
        self._refused = refused
        self._paused = paused
        self._effective = effective
        self._crowds = crowds
        self._locks = ModelLocks(store)
        self._known: dict[str, _Known] = {}

    def of(self, placement: Placement, *, fresh: bool = False) -> Reason:
        """Why this requirement waits, at most a second old; now if `fresh`."""
        key = requirement_key(placement)
        now_s = asyncio.get_running_loop().time()
        known = self._known.get(key)
        if known is not None and not fresh and now_s - known.at_s < RENEWED_EVERY_S:
            return known.reason
        if len(self._known) >= REMEMBERED_MOST:
            self._known.clear()
        pause = self._paused(placement)
        if pause is not None:
            return Reason("paused", paused_text(pause))
        reason = self._unless_disk(explain(placement, self._counted(placement)))
        self._known[key] = _Known(reason, now_s)
        return reason

    def _unless_disk(self, reason: Reason) -> Reason:
        """That reason; but where there would be a slot, or be one soon, and the disk holds it back,
        that: it may hold back the results of what has the slots as well."""
        trouble = self._store.hold
        if trouble is None or reason.code not in ("fits", "full"):
            return reason
        return Reason("degraded", f"no step is placed while the disk refuses writes: {trouble}")

    def of_dispatch(self, spec: PendingSpec, *, fresh: bool = False) -> Reason:
        """Why this dispatch waits: like its requirement, unless a worker alone would not help it.

        Its code is `model_held` then. What no worker can ever meet, and a pause, come first.
        """
        if spec.run == PROBES:
            return Reason("full", f"the probe waits for a free slot of '{spec.placement.target}'")
        # A pause holds back what the step asks for, wherever its group is bound.
        pause = self._paused(spec.placement)
        if pause is not None:
            return Reason("paused", paused_text(pause))
        reason = self.of(self._effective(spec), fresh=fresh)
        if reason.code in BEFORE_THE_MODEL:
            return reason
        return self.held(spec) if self.is_held(spec) else reason

    def is_held(self, spec: PendingSpec) -> bool:
        """Whether the model that the dispatch calls is held, whatever else it waits for."""
        return self._locks.full(spec.call.model_key, spec.model_concurrency)

    def held(self, spec: PendingSpec) -> Reason:
        """Who holds the model that the dispatch calls."""
        return Reason("model_held", self._locks.held(spec.call))

    def verdicts(self, spec: PendingSpec) -> Iterator[Verdict]:
        """What stands between each worker and this dispatch, by worker name; one at a time."""
        placement = self._effective(spec)
        fleet = self._fleet(lambda: self._everyone(placement))
        for worker in sorted(fleet.everyone(), key=lambda one: one.name):
            yield verdict(placement, worker, fleet)

    def _counted(self, placement: Placement) -> Fleet:
        """The fleet, as far as this requirement needs it, no live worker looked at."""
        target = placement.target
        if target is not None:
            named = self._store.find(WORKERS, target)
            if named is not None and named.status is not None:
                return self._fleet(lambda: (named,))
            return self._fleet(lambda: self._everyone(placement))
        gone = [Crowd(one, {("disconnected", ""): 1}, 0) for one in self._few_gone()]
        crowds = (*self._crowds(placement), *gone)
        return self._fleet(lambda: self._store.live(WORKERS), crowds)

    def _fleet(
        self, everyone: Callable[[], Iterable[Worker]], crowds: Iterable[Crowd] | None = None
    ) -> Fleet:
        store = self._store
        return Fleet(
            everyone=everyone,
            holders=lambda worker: store.names_by(LEASES, "worker", worker),
            refused=self._refused,
            known=store.count(WORKERS),
            sorted=crowds,
        )

    def _everyone(self, placement: Placement) -> list[Worker]:
        """Live workers, and those disconnected that may be told about."""
        store = self._store
        workers = [*store.live(WORKERS), *self._few_gone()]
        if placement.target is not None and store.count(WORKERS) > LOOKED_THROUGH_MOST:
            target = store.find(WORKERS, placement.target)
            workers += [target] if target is not None and not target.live else []
        return workers

    def _few_gone(self) -> list[Worker]:
        """The workers that are not live; none of them where they would be too many to look at."""
        store = self._store
        if store.count(WORKERS) > LOOKED_THROUGH_MOST:
            return []
        names = (name for name in store.names(WORKERS) if store.is_finished(WORKERS, name))
        found = (store.find(WORKERS, name) for name in names)
        return [worker for worker in found if worker is not None]
