"""Who fits a placement, who is chosen, and how to say why nobody is. Pure.

A target beats everything; else every label rule must hold and the platform be `os` or `os/arch`.
Load is the number of live leases of a worker (a set of dispatch ids), given by the caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
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

COMPARED_MOST = 200
"""Names that one which is not there is compared with."""

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


Stand = tuple[State, str]
"""What stands between a worker and whatever placement it meets, in a word and in detail."""

FITS: Stand = ("fits", "")


@dataclass(frozen=True, slots=True)
class Crowd:
    """Workers that requirements cannot tell apart: one of them, and how many stand how."""

    sample: Worker
    stands: Mapping[Stand, int]
    live: int


@dataclass(frozen=True)
class Fleet:
    """The workers as the scheduler sees them at one moment."""

    everyone: Callable[[], Iterable[Worker]]
    """Connected workers, and those disconnected that may be told about."""
    holders: Callable[[str], tuple[str, ...]]
    """Who holds a worker's slots: its live dispatch ids."""
    refused: Callable[[str], bool]
    """Whether the worker refused a dispatch a moment ago."""
    known: int = 0
    """How many workers ever enrolled."""
    sorted: Iterable[Crowd] | None = None
    """The same workers by what requirements can tell apart; None where nobody has sorted them."""

    def crowds(self) -> Iterable[Crowd]:
        """Everyone, sorted as far as somebody has done it."""
        return map(self._alone, self.everyone()) if self.sorted is None else self.sorted

    def _alone(self, worker: Worker) -> Crowd:
        found = stand(worker, len(self.holders(worker.name)), self.refused)
        return Crowd(worker, {found: 1}, int(worker.live))


def stand(worker: Worker, load: int, refused: Callable[[str], bool]) -> Stand:
    """How a worker with that load stands to placements that it meets."""
    status = worker.status
    if status is None:
        return "elsewhere", "never enrolled"
    if not worker.live:
        return "disconnected", f"since {status.disconnected_at or 'long ago'}"
    if not worker.spec.schedulable:
        return "cordoned", worker.spec.note or ""
    if drains(worker):
        return "draining", worker.spec.note or ""
    if status.state == "unverified":
        return "unverified", status.verify_failure or PROBE_RUNS
    if load >= status.capacity:
        return "full", ""
    return ("busy", REFUSES) if refused(worker.name) else FITS


def verdict(placement: Placement, worker: Worker, fleet: Fleet) -> Verdict:
    """Why this worker does not take a step with this placement now, or that it fits."""
    name, status = worker.name, worker.status
    lack = None if status is None else _lack(placement, name, status)
    if lack is not None:
        return Verdict(name, "elsewhere", lack)
    holders = fleet.holders(name)
    state, detail = stand(worker, len(holders), fleet.refused)
    return Verdict(name, state, ", ".join(sorted(holders)) if state == "full" else detail)


@dataclass(frozen=True)
class Reason:
    """Why a requirement waits: a stable code, how many workers stand how, and one line."""

    code: str
    text: str
    counts: Mapping[str, int] = field(default_factory=dict)


def explain(placement: Placement, fleet: Fleet) -> Reason:
    """`0 of 3 workers fit: 1 draining, 2 lack pool=gpu (pool is: cpu, build)`.

    Codes: `no_workers`, `no_match`, `target_unknown`, `target_disconnected`, `disconnected`,
    `cordoned`, `draining`, `unverified`, `full`, `busy`, `fits`; what is nearest to being solved.
    """
    if placement.target is not None:
        return _explain_target(placement, fleet)
    crowds = list(fleet.crowds())
    connected = sum(crowd.live for crowd in crowds)
    if not connected:
        known = f" ({fleet.known} known)" if fleet.known else ""
        return Reason("no_workers", f"no worker is connected{known}")
    stands: Counter[Stand] = Counter()
    lacks: Counter[str] = Counter()
    for crowd in crowds:
        status = crowd.sample.status
        if status is None:
            continue
        lack = _lack(placement, crowd.sample.name, status)
        if lack is None:
            stands.update(crowd.stands)
        elif crowd.live:
            lacks[lack] += crowd.live
    counts = dict.fromkeys(_CODES, 0)
    for (state, _), count in stands.items():
        counts[state] += count
    parts = [_part(state, counts[state], stands) for state in _SHOWN]
    parts += _lacking(placement, lacks, crowds, fleet)
    gone = counts["disconnected"]
    parts.append(f"{gone} matching disconnected" if gone else "")
    text = _how_many(counts["fits"], connected, ", ".join(filter(None, parts)))
    code = next((state for state in _CODES if counts[state]), "no_match")
    return Reason(code, text, {state: count for state, count in counts.items() if count})


_CODES: tuple[State, ...] = (
    "fits", "busy", "full", "unverified", "draining", "cordoned", "disconnected"
)  # fmt: skip
_SHOWN: tuple[State, ...] = ("full", "busy", "unverified", "draining", "cordoned")
_NOTED = ("busy", "unverified", "draining", "cordoned")


def _explain_target(placement: Placement, fleet: Fleet) -> Reason:
    target = placement.target or ""
    workers = list(fleet.everyone())
    wanted = next((one for one in workers if matches(placement, one)), None)
    if wanted is None:
        advice = _advice(target, [worker.name for worker in workers])
        return Reason("target_unknown", f"no worker '{target}' is known{advice}")
    found = verdict(placement, wanted, fleet)
    if found.state == "disconnected":
        return Reason("target_disconnected", f"worker '{target}' is disconnected {found.detail}")
    detail = f" ({found.detail})" if found.detail and found.state != "full" else ""
    return Reason(found.state, f"worker '{target}' is {found.state}{detail}", {found.state: 1})


def _how_many(fit: int, connected: int, others: str) -> str:
    said = f"{fit} of {connected} workers {'fits' if fit == 1 else 'fit'}"
    if not others:
        return said
    return f"{said}; of the others: {others}" if fit else f"{said}: {others}"


def _part(state: State, count: int, stands: Mapping[Stand, int]) -> str:
    if not count:
        return ""
    noted = state in _NOTED
    notes = sorted({detail for one, detail in stands if noted and one == state and detail})
    return f"{count} {state}" + (f" ({'; '.join(notes[:SHOWN_MOST])})" if notes else "")


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


_OF_MANY = {"has": "have", "lacks": "lack"}


def _lacking(
    placement: Placement, lacks: Mapping[str, int], crowds: Iterable[Crowd], fleet: Fleet
) -> list[str]:
    """`2 lack pool=gpu (pool is: cpu, build; did you mean 'cpu'?)`, and those elsewhere."""
    texts = {_breaks(key, rule, None): (key, rule) for key, rule in placement.labels.items()}
    said = []
    for lack, count in sorted(lacks.items()):
        key, rule = texts.get(lack, ("", ""))
        hint = _label_hint(key, rule, crowds, fleet) if key else ""
        verb, _, what = lack.partition(" ")
        said.append(f"{count} {_OF_MANY.get(verb, verb) if count > 1 else verb} {what}{hint}")
    return said


def _label_hint(key: str, rule: LabelRule, crowds: Iterable[Crowd], fleet: Fleet) -> str:
    samples = (crowd.sample.status for crowd in crowds if crowd.live)
    values = sorted({one.labels[key] for one in samples if one is not None and key in one.labels})
    if not values:
        some = islice((one for one in fleet.everyone() if one.live), HINTS_FROM_MOST)
        keys = sorted({known for one in some if one.status for known in one.status.labels})
        advice = _advice(key, keys)
        return f" (no worker has a label '{key}'{advice})"
    # Where somebody has the value, it is no misspelling: that worker has a reason of its own.
    misspelt = isinstance(rule, str) and rule not in values
    advice = _advice(str(rule), values) if misspelt else ""
    more = f" and {len(values) - SHOWN_MOST} more" if len(values) > SHOWN_MOST else ""
    return f" ({key} is: {', '.join(values[:SHOWN_MOST])}{more}{advice})"


def _advice(word: str, known: list[str]) -> str:
    """`; did you mean 'x'?`, if there is something like it.

    To compare with 5,000 names takes 50 ms, in which nothing else would happen: of very many only
    those are, that are about as long, and rather those that begin or end as the word does.
    """
    if len(known) > COMPARED_MOST:
        begin, end = word[:2], word[-2:]
        known = [one for one in known if abs(len(one) - len(word)) < 4]
        known.sort(key=lambda one: -one.startswith(begin) - one.endswith(end))
    near = get_close_matches(word, known[:COMPARED_MOST], n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
