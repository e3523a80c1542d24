"""W1: one placed step on an idle worker, from the submission to the outcome."""

from __future__ import annotations

import statistics

import fleet
import floors
from figures import Bench, Figure, Goal, percentile

FLOOR = "subprocess.run + 4 synced appends"


def measure(bench: Bench) -> None:
    """Both percentiles against the same floor of each round; and what a plain reply costs."""
    with fleet.site() as site:
        site.workflow("one")
        site.worker(1)
        site.run("one")
        p50s, p95s, ends, floor_s = [], [], [], []
        for number in range(bench.rounds):
            bench.say(f"W1 round {number + 1}")
            times = bench.size(200, 30)
            spawn_s = floors.median_of(floors.spawn, times)
            append_s = statistics.median(floors.append_synced(site.repo.base, times))
            floor_s.append((spawn_s + 4 * append_s) * 1000)
            stories = [site.run("one") for _ in range(times)]
            taken = [story.took_s * 1000 for story in stories]
            p50s.append(statistics.median(taken))
            p95s.append(percentile(taken, 95))
            ends.append(statistics.median((s.ended_s - s.submitted_s) * 1000 for s in stories))
        bench.add(
            Figure("W1", "p50 of submit → outcome", "ms", p50s, floor_s, FLOOR, Goal(at_most=2))
        )
        bench.add(
            Figure("W1", "p95 of submit → outcome", "ms", p95s, floor_s, FLOOR, Goal(at_most=4))
        )
        bench.add(Figure("W1", "p50 of submit → end of the run", "ms", ends, floor_s, FLOOR))
