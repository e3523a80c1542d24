"""W12: dispatches that can never be placed, in front of as many that can."""

from __future__ import annotations

import fleet
from figures import Bench, Figure, Goal

SLOTS = 8


def measure(bench: Bench) -> None:
    """The possible ones alone, and behind the others, in turns."""
    count = bench.size(500, 50)
    with fleet.site() as site:
        site.workflow("possible")
        site.workflow("impossible", pool="nowhere")
        site.worker(SLOTS)
        site.run("possible", 20)
        alone, behind = [], []
        for number in range(bench.rounds):
            bench.say(f"W12 round {number + 1}")
            alone.append(site.run("possible", count).took_s)
            run = site.submit("impossible", count)
            client = site.client
            queued = (e for e in client.events(run) if e["kind"] == "step_queued")
            for _ in range(count):
                next(queued)
            behind.append(site.run("possible", count).took_s)
            client.post(f"/api/v1/runs/{run}/cancel", {"reason": "measured"})
            fleet.follow(client, run, fleet.Story(0.0))
    goal = Goal(at_most=1.1)
    what = f"{count} possible behind {count} impossible"
    bench.add(Figure("W12", what, "s", behind, alone, "alone", goal))
