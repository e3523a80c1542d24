"""W6: the start of `serve` over many finished records, cold and warm, and the memory of each."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import fleet
import floors
import stock
import usage
from figures import Bench, Curve, Figure, Goal

KEEP = ("--keep-runs", "1000000")


@dataclass
class Starts:
    """Seconds until the server listens, round by round, and its memory a moment later."""

    seconds: list[float]
    held_bytes: float

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


def measure(bench: Bench) -> None:
    """Every size warm, after a cold start that has no index and parses every file."""
    starts = bench.curve(Curve("start", "Start of serve", "finished records", "seconds"))
    memory = bench.curve(Curve("memory", "Memory of the server", "finished records", "MiB"))
    with fleet.site(serve=False) as site:
        empty = _starts(bench, site, bench.rounds)
    sizes = (500, 2_000) if bench.quick else (1_000, 50_000, 200_000)
    for count in sizes:
        with fleet.site(serve=False) as site:
            bench.say(f"W6 writing {count} records")
            stock.finished_records(site.repo.path, count)
            warm = _warm(bench, site, count, empty)
            stock.forget_index(site.repo.path)
            bench.say(f"W6 {count} records, cold")
            cold = _starts(bench, site, 1)
        bench.add(Figure("W6", f"cold start, {count} records", "s", cold.seconds))
        starts.add("warm", count, warm.median_s)
        starts.add("cold", count, cold.median_s)
        memory.add("after a warm start", count, warm.held_bytes / 2**20)
        memory.add("after a cold start", count, cold.held_bytes / 2**20)


def _warm(bench: Bench, site: fleet.Site, count: int, empty: Starts) -> Starts:
    bench.say(f"W6 {count} records, warm")
    tree = site.repo.path / "datastore" / "observed"
    scans = [floors.timed(lambda: floors.scan_and_stat(tree)) for _ in range(bench.rounds)]
    warm = _starts(bench, site, bench.rounds)
    more = [max(0.0, seconds - empty.median_s) for seconds in warm.seconds]
    what = f"warm start, {count} records, beyond an empty one"
    bench.add(Figure("W6", what, "s", more, scans, "scan and stat", Goal(at_most=3)))
    held = (warm.held_bytes - empty.held_bytes) / count / 1024
    # Of few records, what differs from start to start is more than what they hold.
    limit = Goal(at_most=1.5) if count >= 10_000 else Goal()
    bench.add(Figure("W6", f"memory per record of {count}", "KiB", [held], goal=limit))
    return warm


def _starts(bench: Bench, site: fleet.Site, times: int) -> Starts:
    taken, held = [], []
    for _ in range(times):
        taken.append(site.serve(*KEEP))
        time.sleep(1.0)  # What a start leaves to do, say freeing what it has read.
        held.append(usage.pss_bytes([site.server.process.pid]))
        assert site.server.terminate() == 0
    return Starts(taken, statistics.median(held))
