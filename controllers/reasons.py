"""Why requirements wait: worked out from the records, per requirement, at most once a second.

Ten thousand dispatches of one requirement share one reason, and asking again within the second
costs nothing; only a held model is a reason of the dispatch. Disconnected workers are looked
through only while there are few of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controllers.model_locks import ModelLocks
from controllers.pauses import paused_text
from controllers.placement import Fleet, Reason, Verdict, explain, verdict
from controllers.waiting import requirement_key
from datastore.kinds import LEASES, WORKERS, Pause, PendingSpec, Placement, Worker
from datastore.kinds.probe import PROBES
from datastore.store import Store

RENEWED_EVERY_S = 1.0

LOOKED_THROUGH_MOST = 200
"""With more worker records than this, disconnected ones are only counted."""

REMEMBERED_MOST = 1_000

Shapes = Callable[[Placement], Iterable[tuple[Worker, tuple[str, ...]]]]

BEFORE_THE_MODEL = frozenset({"paused", "no_match", "target_unknown"})
"""Codes that are told even where the model is held, too."""


@dataclass(frozen=True, slots=True)
class _Known:
    reason: Reason
    at_s: float


class Reasons:
    """Explains waiting. Reads workers and leases, writes nothing."""

    def __init__(
        self,
        store: Store,
        refused: Callable[[str], bool],
        paused: Callable[[Placement], Pause | None],
        effective: Callable[[PendingSpec], Placement],
        shapes: Shapes,
    ) -> None:
        """`effective`: what a dispatch asks for by now, as its group may be bound to a worker;
        `shapes`: the names of workers that no requirement can tell apart, with one of each."""
        self._store = store
        self._refused = refused
        self._paused = paused
        self._effective = effective
        self._shapes = shapes
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
        reason = explain(placement, self._fleet(placement))
        self._known[key] = _Known(reason, now_s)
        return reason

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

    def verdicts(self, spec: PendingSpec) -> list[Verdict]:
        """What stands between each worker and this dispatch, by worker name."""
        placement = self._effective(spec)
        fleet = self._fleet(placement)
        found = [verdict(placement, worker, fleet) for worker in fleet.workers]
        return sorted(found, key=lambda one: one.worker)

    def _fleet(self, placement: Placement) -> Fleet:
        store = self._store
        known = store.count(WORKERS)
        workers: list[Worker] = list(store.live(WORKERS))
        if known <= LOOKED_THROUGH_MOST:
            workers += [worker for worker in store.list(WORKERS) if not worker.live]
        elif placement.target is not None:
            target = store.find(WORKERS, placement.target)
            workers += [target] if target is not None and not target.live else []
        live = {worker.name: worker for worker in workers}
        shapes = [
            (sample, tuple(live.pop(name) for name in names if name in live))
            for sample, names in self._shapes(placement)
        ]
        return Fleet(
            workers=tuple(workers),
            alike=(*shapes, *((one, (one,)) for one in live.values())),
            holders=lambda worker: store.names_by(LEASES, "worker", worker),
            refused=self._refused,
            known=known,
        )
