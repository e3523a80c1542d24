"""Who fits a placement, who is chosen, and how to say why nobody is. Pure.

A target beats everything; else every label rule must hold and the platform be `os` or `os/arch`.
Load is the number of live leases of a worker (a set of dispatch ids), given by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

from datastore.kinds import LabelRule, NotIn, Placement, Worker, WorkerStatus

State = Literal[
    "fits", "elsewhere", "disconnected", "cordoned", "draining", "unverified", "full", "busy"
]
"""`elsewhere`: the placement names other workers. `busy`: it refused a dispatch a moment ago."""

PROBE_RUNS = "its probe is under way"
REFUSES = "it refuses what it is offered, and is asked again at most every 30 s"

HINTS_FROM_MOST = 1_000
"""Workers whose labels are gone through for one that was perhaps meant."""

SHOWN_MOST = 6
"""Values or names listed in one reason."""


def matches(placement: Placement, worker: Worker) -> bool:
    """Whether the placement names this worker, whatever state it is in."""
    return worker.status is not None and _lack(placement, worker.name, worker.status) is None


def label_holds(rule: LabelRule, value: str | None) -> bool:
    """Whether a worker's label, None without it, is what the rule asks for."""
    if isinstance(rule, str):
        return value == rule
    if isinstance(rule, NotIn):
        return value not in rule.not_
    return value in rule


def drains(worker: Worker) -> bool:
    """Whether the worker finishes what it runs and leaves, by its own wish or by an operator's."""
    return worker.spec.drain or (worker.status is not None and worker.status.draining)


def available(worker: Worker) -> bool:
    """Whether the worker takes steps at all, its slots aside. The one place that decides it."""
    status = worker.status
    return (
        status is not None
        and status.state == "connected"
        and not drains(worker)
        and worker.spec.schedulable
    )


def takes_probes(worker: Worker) -> bool:
    """Whether a probe may show that the worker works: also while it gets no steps."""
    return worker.live and not drains(worker)


def choose(workers: Iterable[Worker], free: Callable[[Worker], int]) -> Worker | None:
    """The worker with most free slots, then the first by name; None if all are full."""
    best: Worker | None = None
    best_free = 0
    for worker in workers:
        slots = free(worker)
        if slots > best_free or (slots == best_free > 0 and best and worker.name < best.name):
            best, best_free = worker, slots
    return best


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands between one worker and a placement, in a word and in detail."""

    worker: str
    state: State
    detail: str = ""


@dataclass(frozen=True)
class Fleet:
    """The workers as the scheduler sees them at one moment."""

    workers: tuple[Worker, ...]
    """Connected ones, and those disconnected that may be told about."""
    holders: Callable[[str], tuple[str, ...]]
    """Who holds a worker's slots: its live dispatch ids."""
    refused: Callable[[str], bool]
    """Whether the worker refused a dispatch a moment ago."""
    known: int = 0
    """How many workers ever enrolled."""
    alike: tuple[tuple[Worker, tuple[Worker, ...]], ...] | None = None
    """The same workers by what requirements can tell apart, with one of each to look at; None
    where nobody has sorted them."""

    @property
    def shapes(self) -> Iterable[tuple[Worker, tuple[Worker, ...]]]:
        """Workers that one look tells apart from others, if they were sorted."""
        return ((one, (one,)) for one in self.workers) if self.alike is None else self.alike


def verdict(placement: Placement, worker: Worker, fleet: Fleet) -> Verdict:
    """Why this worker does not take a step with this placement now, or that it fits."""
    name, status = worker.name, worker.status
    if status is None:
        return Verdict(name, "elsewhere", "never enrolled")
    lack = _lack(placement, name, status)
    if lack is not None:
        return Verdict(name, "elsewhere", lack)
    if not worker.live:
        return Verdict(name, "disconnected", f"since {status.disconnected_at or 'long ago'}")
    if not worker.spec.schedulable:
        return Verdict(name, "cordoned", worker.spec.note or "")
    if drains(worker):
        return Verdict(name, "draining", worker.spec.note or "")
    if status.state == "unverified":
        return Verdict(name, "unverified", status.verify_failure or PROBE_RUNS)
    holders = fleet.holders(name)
    if len(holders) >= status.capacity:
        return Verdict(name, "full", ", ".join(sorted(holders)))
    return Verdict(name, "busy", REFUSES) if fleet.refused(name) else Verdict(name, "fits")


@dataclass(frozen=True)
class Reason:
    """Why a requirement waits: a stable code, how many workers stand how, and one line."""

    code: str
    text: str
    counts: Mapping[str, int] = field(default_factory=dict)


def explain(placement: Placement, fleet: Fleet) -> Reason:
    """`0 of 3 workers fit: 1 draining, 2 lack pool=gpu (pool is: cpu, build)`.

    Codes: `no_workers`, `no_match`, `target_unknown`, `target_disconnected`, `disconnected`,
    `cordoned`, `draining`, `unverified`, `full`, `busy`; the one that is nearest to being solved.
    """
    if placement.target is not None:
        return _explain_target(placement, fleet)
    connected = sum(worker.live for worker in fleet.workers)
    if not connected:
        known = f" ({fleet.known} known)" if fleet.known else ""
        return Reason("no_workers", f"no worker is connected{known}")
    verdicts = [
        verdict(placement, worker, fleet)
        for sample, workers in fleet.shapes
        if matches(placement, sample)
        for worker in workers
    ]
    named = [one for one in verdicts if one.state != "disconnected"]
    parts = [_part(state, named) for state in _SHOWN]
    parts += _lacking(placement, fleet)
    gone = len(verdicts) - len(named)
    parts.append(f"{gone} matching disconnected" if gone else "")
    counts = {state: sum(one.state == state for one in verdicts) for state in _CODES}
    fit = sum(one.state == "fits" for one in named)
    text = f"{fit} of {connected} workers fit: {', '.join(part for part in parts if part)}"
    code = next((state for state in _CODES if counts[state]), "no_match")
    return Reason(code, text, {state: count for state, count in counts.items() if count})


_CODES = ("fits", "busy", "full", "unverified", "draining", "cordoned", "disconnected")
_SHOWN = ("fits", "full", "busy", "unverified", "draining", "cordoned")
_NOTED = ("busy", "unverified", "draining", "cordoned")


def _explain_target(placement: Placement, fleet: Fleet) -> Reason:
    target = placement.target or ""
    wanted = next((one for one in fleet.workers if matches(placement, one)), None)
    if wanted is None:
        near = get_close_matches(target, [worker.name for worker in fleet.workers], n=1)
        advice = f"; did you mean '{near[0]}'?" if near else ""
        return Reason("target_unknown", f"no worker '{target}' is known{advice}")
    found = verdict(placement, wanted, fleet)
    if found.state == "disconnected":
        return Reason("target_disconnected", f"worker '{target}' is disconnected {found.detail}")
    detail = f" ({found.detail})" if found.detail and found.state != "full" else ""
    return Reason(found.state, f"worker '{target}' is {found.state}{detail}", {found.state: 1})


def _part(state: str, named: list[Verdict]) -> str:
    those = [one for one in named if one.state == state]
    if not those:
        return ""
    notes = sorted({one.detail for one in those if one.detail and state in _NOTED})
    return f"{len(those)} {state}" + (f" ({'; '.join(notes[:SHOWN_MOST])})" if notes else "")


def _lack(placement: Placement, name: str, status: WorkerStatus) -> str | None:
    """The first thing that the worker is not; None if the placement names it."""
    if placement.target is not None:
        return None if placement.target in (name, status.instance) else f"not {placement.target}"
    for key, rule in sorted(placement.labels.items()):
        value = status.labels.get(key)
        if not label_holds(rule, value):
            return _breaks(key, rule, value)
    wanted = placement.platform
    if wanted is not None and wanted not in (status.platform, f"{status.platform}/{status.arch}"):
        return f"not on {wanted}"
    return None


def _breaks(key: str, rule: LabelRule, value: str | None) -> str:
    """What a worker lacks, or has too much: `lacks zone=a or b`, `has pool=ci, which …`."""
    if isinstance(rule, NotIn):
        return f"has {key}={value}, which the step excludes"
    return f"lacks {key}={rule if isinstance(rule, str) else ' or '.join(rule)}"


def _lacking(placement: Placement, fleet: Fleet) -> list[str]:
    """`2 lack pool=gpu (pool is: cpu, build; did you mean 'cpu'?)`, and those elsewhere."""
    lacks: dict[str, int] = {}
    for sample, workers in fleet.shapes:
        assert sample.status is not None
        lack = _lack(placement, sample.name, sample.status)
        here = sum(worker.live for worker in workers)
        if lack is not None and here:
            lacks[lack] = lacks.get(lack, 0) + here
    texts = {_breaks(key, rule, None): (key, rule) for key, rule in placement.labels.items()}
    said = []
    for lack, count in sorted(lacks.items()):
        key, rule = texts.get(lack, ("", ""))
        hint = _label_hint(key, rule, fleet) if key else ""
        plural = lack.replace("has", "have", 1) if count > 1 and lack.startswith("has ") else lack
        said.append(f"{count} {plural.replace('lacks', 'lack', 1)}{hint}")
    return said


def _label_hint(key: str, rule: LabelRule, fleet: Fleet) -> str:
    samples = (one for one, workers in fleet.shapes if any(worker.live for worker in workers))
    labels = [one.status.labels for one in samples if one.status is not None]
    values = sorted({one[key] for one in labels if key in one})
    if not values:
        some = [one for one in fleet.workers if one.live][:HINTS_FROM_MOST]
        keys = sorted({known for one in some if one.status for known in one.status.labels})
        near = get_close_matches(key, keys, n=1)
        advice = f"; did you mean '{near[0]}'?" if near else ""
        return f" (no worker has a label '{key}'{advice})"
    # Where somebody has the value, it is no misspelling: that worker has a reason of its own.
    misspelt = isinstance(rule, str) and rule not in values
    near = get_close_matches(str(rule), values, n=1) if misspelt else []
    advice = f"; did you mean '{near[0]}'?" if near else ""
    more = f" and {len(values) - SHOWN_MOST} more" if len(values) > SHOWN_MOST else ""
    return f" ({key} is: {', '.join(values[:SHOWN_MOST])}{more}{advice})"
