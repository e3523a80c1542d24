"""Demand by requirement, for people and autoscalers: from the same records that decide. Pure reads.

`waiting` could run if a matching worker had a free slot; `blocked` waits for something that a new
worker does not change (a pause, an operator, a held model); `unsatisfiable` asks for what no worker
that ever enrolled has. `soon` are steps of live runs that will ask, as far as their placement is
known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf

from controllers.placement import Reason, available, matches
from controllers.reasons import BEFORE_THE_MODEL, Reasons
from controllers.requirement import requirement
from datastore.clock import parse_stamp
from datastore.courtesy import Pause, each, no_pause
from datastore.kinds import (
    LEASES,
    PENDING,
    WORKERS,
    Lease,
    Pending,
    PendingSpec,
    Placement,
    Worker,
)
from datastore.kinds.dispatch_name import is_probe
from datastore.store import Store

_BLOCKED = frozenset(
    {"cordoned", "degraded", "draining", "model_held", "paused", "target_disconnected"}
)
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


@dataclass(frozen=True, slots=True)
class Seen:
    """The live records of one moment, from which demand is worked out in any thread."""

    pendings: tuple[Pending, ...]
    leases: tuple[Lease, ...]
    workers: tuple[Worker, ...]

    @classmethod
    def now(cls, store: Store) -> Seen:
        """As they are now."""
        return cls(store.live(PENDING), store.live(LEASES), store.live(WORKERS))

    def __len__(self) -> int:
        return len(self.pendings) + len(self.leases) + len(self.workers)


@dataclass(slots=True)
class Callers:
    """Those of one requirement that call one model: one of them, and how many they are."""

    sample: PendingSpec
    count: int = 0


@dataclass
class Waiting:
    """What waits under one requirement."""

    placement: Placement
    count: int = 0
    oldest_s: float = -inf
    models: dict[tuple[int, str], Callers] = field(default_factory=dict)
    """By what holds a model back: its concurrency and key."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Why one requirement waits, and how many of it wait for a model."""

    reason: Reason
    held: int


def waiting_in(seen: Seen, now: datetime, pause: Pause = no_pause) -> dict[str, Waiting]:
    """What waits, by requirement, probes aside."""
    found: dict[str, Waiting] = {}
    for pending in each(seen.pendings, pause):
        if is_probe(pending.name):
            continue
        spec = pending.spec
        one = found.setdefault(requirement(spec.placement), Waiting(spec.placement))
        since = pending.status.queued_at if pending.status is not None else pending.created_at
        one.count += 1
        one.oldest_s = max(one.oldest_s, (now - parse_stamp(since)).total_seconds())
        if spec.model_concurrency:
            model = spec.model_concurrency, spec.call.model_key
            one.models.setdefault(model, Callers(spec)).count += 1
    return found


def answer(
    waiting: Mapping[str, Waiting], reasons: Reasons, answers: dict[str, Answer]
) -> Iterator[None]:
    """Put down why each requirement waits, step by step: only the event loop has what is asked."""
    for name, one in waiting.items():
        held, sample = 0, None
        for callers in one.models.values():
            if reasons.is_held(callers.sample):
                held += callers.count
                sample = sample or callers.sample
            yield
        reason = reasons.of(one.placement)
        if sample is not None and held == one.count and reason.code not in BEFORE_THE_MODEL:
            reason = reasons.held(sample)
        answers[name] = Answer(reason, held)
        yield


def demand_of(
    seen: Seen,
    waiting: Mapping[str, Waiting],
    answers: Mapping[str, Answer],
    soon: Mapping[str, int],
    pause: Pause = no_pause,
) -> list[Demand]:
    """Every requirement, by name."""
    found: dict[str, Demand] = defaultdict(lambda: Demand(""))
    slots = _FreeSlots(seen, pause)
    for name, one in each(waiting.items(), pause):
        _count(found[name], answers[name], one)
        found[name].free_slots = slots.of(one.placement, pause)
    leases = (lease for lease in each(seen.leases, pause) if not is_probe(lease.name))
    for name, count in Counter(lease.spec.requirement for lease in leases).items():
        found[name].running = count
    for name, count in soon.items():
        found[name].soon = count
    for name, entry in found.items():
        entry.requirement = name
    return [found[name] for name in sorted(found)]


def _count(entry: Demand, answer: Answer, one: Waiting) -> None:
    """No new worker frees a held model, so that who waits for one is blocked."""
    code = answer.reason.code
    entry.reason, entry.reason_code = answer.reason.text, code
    entry.oldest_s = round(one.oldest_s, 3)
    if code in _BLOCKED:
        entry.blocked = one.count
    elif code in _NEVER_SEEN:
        entry.unsatisfiable = one.count
    else:
        entry.waiting, entry.blocked = one.count - answer.held, answer.held


class _FreeSlots:
    """The free slots of workers that take steps, by what requirements ask of a worker."""

    def __init__(self, seen: Seen, pause: Pause) -> None:
        loads = Counter(lease.spec.worker for lease in each(seen.leases, pause))
        self._alike: dict[Hashable, tuple[Worker, int]] = {}
        self._named: Counter[str] = Counter()
        for worker in each(seen.workers, pause):
            status = worker.status
            if status is None or not available(worker):
                continue
            free = max(0, status.capacity - loads[worker.name])
            for name in {worker.name, status.instance}:
                self._named[name] += free
            shape = (status.platform, status.arch, *sorted(status.labels.items()))
            sample, others = self._alike.get(shape, (worker, 0))
            self._alike[shape] = sample, others + free

    def of(self, placement: Placement, pause: Pause) -> int:
        if placement.target is not None:
            return self._named[placement.target]
        alike = each(self._alike.values(), pause)
        return sum(free for sample, free in alike if free and matches(placement, sample))
