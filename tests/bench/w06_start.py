"""W6: the start of `serve` over many finished records, cold and warm, and the memory of each."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

import fleet
import floors
import stock
import usage
from figures import Bench, Curve, Figure, Goal

KEEP = ("--keep-runs", "1000000")
MANY = 10_000


@dataclass
class Starts:
    """Seconds until the server listens, and its memory a moment later, by start."""

    seconds: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def held_bytes(self) -> float:
        return statistics.median(self.held)

    def add(self, others: Starts) -> None:
        """Those, too."""
        self.seconds += others.seconds
        self.held += others.held


def measure(bench: Bench) -> None:
    """Every size warm, after a cold start that has no index and parses every file."""
    starts = bench.curve(Curve("start", "Start of serve", "finished records", "seconds"))
    memory = bench.curve(Curve("memory", "Memory of the server", "finished records", "MiB"))
    sizes = (500, 2_000) if bench.quick else (1_000, 50_000, 200_000)
    for count in sizes:
        with fleet.site(serve=False) as empty, fleet.site(serve=False) as site:
            bench.say(f"W6 writing {count} records")
            stock.finished_records(site.repo.path, count)
            warm = _warm(bench, site, empty, count)
            stock.forget_index(site.repo.path)
            bench.say(f"W6 {count} records, cold")
            cold = _start(site)
        bench.add(Figure("W6", f"cold start, {count} records", "s", cold.seconds))
        starts.add("warm", count, warm.median_s)
        starts.add("cold", count, cold.median_s)
        memory.add("after a warm start", count, warm.held_bytes / 2**20)
        memory.add("after a cold start", count, cold.held_bytes / 2**20)


def _warm(bench: Bench, site: fleet.Site, empty: fleet.Site, count: int) -> Starts:
    """Each start right after one of an empty repository: a machine's speed drifts."""
    bench.say(f"W6 {count} records, warm")
    tree = site.repo.path / "datastore" / "observed"
    _start(empty)
    _start(site)
    warm, none, more, scans = Starts(), Starts(), [], []
    # Of few records, what differs from start to start is more than what they cost.
    for _ in range(bench.rounds if count >= MANY else bench.size(41, 1)):
        scans.append(floors.timed(lambda: floors.scan_and_stat(tree)))
        none.add(_start(empty))
        warm.add(_start(site))
        more.append(max(0.0, warm.seconds[-1] - none.seconds[-1]))
    what = f"warm start, {count} records, beyond an empty one"
    bench.add(Figure("W6", what, "s", more, scans, "scan and stat", Goal(at_most=3)))
    held = (warm.held_bytes - none.held_bytes) / count / 1024
    limit = Goal(at_most=1.5) if count >= MANY else Goal()
    bench.add(Figure("W6", f"memory per record of {count}", "KiB", [held], goal=limit))
    return warm


def _start(site: fleet.Site) -> Starts:
    """One start, and a stop."""
    taken = site.serve(*KEEP)
    time.sleep(1.0)  # What a start leaves to do, say freeing what it has read.
    held = usage.pss_bytes([site.server.process.pid])
    assert site.server.terminate() == 0
    return Starts([taken], [held])
