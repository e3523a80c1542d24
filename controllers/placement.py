"""Who fits a placement, who is chosen, and how to say why nobody is. Pure.

Targets beat everything; else every label must be equal and the platform `os` or `os/arch`. Load is
the number of live leases of a worker (a set of dispatch ids), given by the caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

from datastore.kinds import Placement, Worker, WorkerStatus

Verdict = Literal["fits", "elsewhere", "disconnected", "cordoned", "draining", "busy", "full"]
"""`elsewhere`: the placement names other workers. `busy`: it refused a dispatch a moment ago."""


def matches(placement: Placement, worker: Worker) -> bool:
    """Whether the placement names this worker, whatever state it is in."""
    status = worker.status
    if status is None:
        return False
    if placement.target is not None:
        return placement.target in (worker.name, status.instance)
    if placement.platform is not None and not _platform(placement.platform, status):
        return False
    labels = status.labels
    return all(labels.get(key) == value for key, value in placement.labels.items())


def _platform(wanted: str, status: WorkerStatus) -> bool:
    return wanted in (status.platform, f"{status.platform}/{status.arch}")


def available(worker: Worker) -> bool:
    """Whether the worker takes dispatches at all, its slots aside."""
    status = worker.status
    return (
        status is not None
        and status.state == "connected"
        and not status.draining
        and worker.spec.schedulable
    )


def choose(workers: Iterable[Worker], free: Callable[[Worker], int]) -> Worker | None:
    """The worker with most free slots, then the first by name; None if all are full."""
    best: Worker | None = None
    best_free = 0
    for worker in workers:
        slots = free(worker)
        if slots > best_free or (slots == best_free > 0 and best and worker.name < best.name):
            best, best_free = worker, slots
    return best


def verdict(placement: Placement, worker: Worker, load: int, refused: bool) -> Verdict:
    """What stands between this worker and a step with this placement."""
    status = worker.status
    if status is None or not matches(placement, worker):
        return "elsewhere"
    if status.state != "connected":
        return "disconnected"
    if not worker.spec.schedulable:
        return "cordoned"
    if status.draining:
        return "draining"
    if load >= status.capacity:
        return "full"
    return "busy" if refused else "fits"


def explain(
    placement: Placement,
    workers: Iterable[Worker],
    load: Callable[[str], int],
    refused: Callable[[str], bool],
) -> str:
    """Why a placement waits: `0 of 3 workers fit: 1 draining, 2 lack pool=gpu (pool is: cpu)`."""
    known = [worker for worker in workers if worker.status is not None]
    connected = [w for w in known if w.status is not None and w.status.state == "connected"]
    if not connected:
        gone = sum(matches(placement, worker) for worker in known)
        extra = f" ({gone} matching disconnected)" if gone else ""
        return f"no worker is connected{extra}"
    tally: Counter[str] = Counter()
    for worker in connected:
        what = verdict(placement, worker, load(worker.name), refused(worker.name))
        tally[_lack(placement, worker) if what == "elsewhere" else what] += 1
    parts = [
        f"{count} {_values(placement, what, connected)}" for what, count in sorted(tally.items())
    ]
    gone = sum(
        matches(placement, w) for w in known if w.status and w.status.state == "disconnected"
    )
    if gone:
        parts.append(f"{gone} matching disconnected")
    fit = tally["fits"]
    return f"{fit} of {len(connected)} workers fit: " + ", ".join(parts)


def _lack(placement: Placement, worker: Worker) -> str:
    assert worker.status is not None
    if placement.target is not None:
        return f"not {placement.target}"
    for key, value in sorted(placement.labels.items()):
        if worker.status.labels.get(key) != value:
            return f"lack {key}={value}"
    return f"not {placement.platform}"


def _values(placement: Placement, what: str, workers: Iterable[Worker]) -> str:
    if not what.startswith("lack "):
        return what
    key = what.removeprefix("lack ").partition("=")[0]
    values = sorted({w.status.labels[key] for w in workers if w.status and key in w.status.labels})
    return f"{what} ({key} is: {', '.join(values[:8])})" if values else f"{what} (no {key} at all)"
