"""W9: a step is queued and a worker starts: from the start of its process to `dispatch_started`."""

from __future__ import annotations

import statistics
import time

import fleet
import floors
from figures import Bench, Figure, Goal

FLOOR = "python -c 'import aiohttp, pydantic'"


def measure(bench: Bench) -> None:
    """Several starts per round, each beside a start of the bare interpreter with its imports."""
    with fleet.site() as site:
        site.workflow("one")
        site.repo.swamp("worker", "token", "list")
        _start(site)  # The first start of all compiles modules, and makes the token.
        taken, floor_s = [], []
        for number in range(bench.rounds):
            bench.say(f"W9 round {number + 1}")
            times = bench.size(5, 2)
            pairs = [(_start(site), floors.timed(floors.imports)) for _ in range(times)]
            taken.append(statistics.median(one for one, _ in pairs))
            floor_s.append(statistics.median(floor for _, floor in pairs))
    goal = Goal(at_most=1.5)
    bench.add(Figure("W9", "worker's start → its step's", "s", taken, floor_s, FLOOR, goal))


def _start(site: fleet.Site) -> float:
    run = site.submit("one", 1)
    events = site.client.events(run)
    next(event for event in events if event["kind"] == "step_queued")
    before = time.perf_counter()
    worker = site.repo.worker("w1", "--label", "pool=bench", wait=False)
    worker.lines.kind("dispatch_started")
    taken_s = time.perf_counter() - before
    fleet.follow(site.client, run, fleet.Story(before))
    assert worker.terminate() == 0
    return taken_s
