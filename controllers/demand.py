"""Demand by requirement, for people and autoscalers: from the same records that decide. Pure reads.

`waiting` could run if a matching worker had a free slot; `blocked` waits for something that a new
worker does not change (a pause, an operator, a held model); `unsatisfiable` asks for what no worker
that ever enrolled has. `soon` are steps of live runs that will ask, as far as their placement is
known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from controllers.placement import Reason, available, matches
from controllers.reasons import BEFORE_THE_MODEL, Reasons
from controllers.requirement import requirement
from datastore.clock import parse_stamp
from datastore.kinds import LEASES, PENDING, WORKERS, PendingSpec, Placement
from datastore.kinds.dispatch_name import is_probe
from datastore.store import Store

_BLOCKED = frozenset({"cordoned", "draining", "model_held", "paused", "target_disconnected"})
_NEVER_SEEN = frozenset({"no_match", "target_unknown"})


@dataclass
class Demand:
    """One requirement. Ages in seconds."""

    requirement: str
    waiting: int = 0
    blocked: int = 0
    unsatisfiable: int = 0
    running: int = 0
    free_slots: int = 0
    oldest_s: float = 0.0
    soon: int = 0
    reason: str | None = None
    reason_code: str | None = None


def demand(store: Store, reasons: Reasons, soon: Mapping[str, int], now: datetime) -> list[Demand]:
    """Every requirement that something waits for, runs under, or will ask for."""
    found: dict[str, Demand] = {}

    def of(name: str) -> Demand:
        return found.setdefault(name, Demand(name))

    groups: dict[str, list[float]] = {}
    placements: dict[str, Placement] = {}
    held: dict[str, list[PendingSpec]] = {}
    for pending in store.live(PENDING):
        if is_probe(pending.name):
            continue
        name = requirement(pending.spec.placement)
        placements[name] = pending.spec.placement
        since = pending.status.queued_at if pending.status is not None else pending.created_at
        groups.setdefault(name, []).append((now - parse_stamp(since)).total_seconds())
        if reasons.is_held(pending.spec):
            held.setdefault(name, []).append(pending.spec)
    for name, ages in groups.items():
        reason = reasons.of(placements[name])
        waits_for_model = held.get(name, [])
        if len(waits_for_model) == len(ages) and reason.code not in BEFORE_THE_MODEL:
            reason = reasons.held(waits_for_model[0])
        _count(of(name), reason, ages, len(waits_for_model))
        of(name).free_slots = _free_slots(store, placements[name])
    leases = [lease for lease in store.live(LEASES) if not is_probe(lease.name)]
    for name, count in Counter(lease.spec.requirement for lease in leases).items():
        of(name).running = count
    for name, count in soon.items():
        of(name).soon = count
    return [found[name] for name in sorted(found)]


def _count(entry: Demand, reason: Reason, ages: list[float], held: int) -> None:
    """`held`: how many of them wait for a model, which no new worker frees."""
    entry.reason, entry.reason_code = reason.text, reason.code
    entry.oldest_s = round(max(ages), 3)
    if reason.code in _BLOCKED:
        entry.blocked = len(ages)
    elif reason.code in _NEVER_SEEN:
        entry.unsatisfiable = len(ages)
    else:
        entry.waiting, entry.blocked = len(ages) - held, held


def _free_slots(store: Store, placement: Placement) -> int:
    free = 0
    for worker in store.live(WORKERS):
        if worker.status is not None and available(worker) and matches(placement, worker):
            load = store.count_by(LEASES, "worker", worker.name)
            free += max(0, worker.status.capacity - load)
    return free
