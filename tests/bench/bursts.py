"""Bursts of W4: results that a simulated worker sends at one instant, and when they are told."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import fleet
import floors
from crowd import Crowd, Watchers
from figures import Bench, Figure, Goal, percentile


@dataclass
class Parts:
    """Of the bursts of one kind, in milliseconds: a p95 per round."""

    told: list[float] = field(default_factory=list)
    acknowledged: list[float] = field(default_factory=list)
    syncs: list[float] = field(default_factory=list)
    server: dict[str, list[float]] = field(default_factory=dict)
    """Means that the server itself measured, by what they are of."""


SERVER_PARTS = {
    "wait for the journal, mean": "swamp_journal_wait_seconds",
    "journal write, mean": "swamp_journal_write_seconds",
    "received → durable, mean": "swamp_settle_seconds",
}


def bursts(
    bench: Bench, site: fleet.Site, one: Crowd, count: int, runs: int,
    beside: Callable[[], None] | None = None,
) -> Parts:  # fmt: skip
    """A burst per round: `count` results at one instant, of `runs`; after a call of `beside`."""
    parts = Parts()
    for number in range(bench.rounds):
        bench.say(f"W4 burst of {count} in {runs} runs, round {number + 1}")
        syncs = floors.append_synced(site.repo.base, 50)
        parts.syncs.append(statistics.median(syncs) * 1000)
        one.order(f"hold {count}")
        ids = [site.submit("fan", count // runs) for _ in range(runs)]
        watchers = Watchers(site.repo.url, ids)
        one.answer("held")
        if beside is not None:
            beside()
        time.sleep(0.5)
        before = site.measured()
        one.order("release")
        settled = one.answer("settled")
        watchers.join()
        _note_server(parts, before, site.measured())
        assert not watchers.failed, watchers.failed[0]
        sent = settled["sent"]
        told = [watchers.told[d.rpartition(".")[0]] - at for d, at in sent.items()]
        acknowledged = [settled["acked"][dispatch] - at for dispatch, at in sent.items()]
        parts.told.append(percentile(told, 95) * 1000)
        parts.acknowledged.append(percentile(acknowledged, 95) * 1000)
    return parts


Measured = dict[str, tuple[float, float]]


def _note_server(parts: Parts, before: Measured, after: Measured) -> None:
    for what, name in SERVER_PARTS.items():
        total, count = (now - then for now, then in zip(after[name], before[name], strict=True))
        parts.server.setdefault(what, []).append(total / max(count, 1) * 1000)


def beside(bench: Bench, plain: Parts, slow: Parts, what: str) -> None:
    """How a burst of 25 was beside something slow, against the same alone."""
    most = [max(1.1 * one, one + 20) for one in plain.told]
    name = f"25 of one run beside {what}"
    goal = Goal(at_most=1)
    bench.add(Figure("W4", name, "ms", slow.told, most, "alone + 10 % or 20 ms", goal))


def start_upload(site: fleet.Site) -> None:
    """Run the workflow `upload`; return when its step has been dispatched."""
    run = site.client.post("/api/v1/runs", {"workflow": "upload"})["id"]
    events = site.client.events(str(run))
    next(event for event in events if event["kind"] == "step_dispatched")


def touch_definitions(site: fleet.Site) -> None:
    """Have every stored definition look as if it had changed."""
    folder = site.repo.path / "models" / "command" / "stored"
    subprocess.Popen(["find", str(folder), "-name", "*.yaml", "-exec", "touch", "{}", "+"])
