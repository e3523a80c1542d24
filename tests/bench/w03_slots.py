"""W3: steps that sleep, on eight slots: how well the slots are kept busy."""

from __future__ import annotations

import fleet
import floors
from figures import Bench, Figure, Goal

SLOTS, SLEEP_S = 8, 0.2


def measure(bench: Bench) -> None:
    """Against the ideal, and against xargs, which has to start the same processes."""
    count = bench.size(200, 40)
    ideal_s = count * SLEEP_S / SLOTS
    with fleet.site() as site:
        site.workflow("sleep", f"sleep {SLEEP_S}")
        site.worker(SLOTS)
        site.run("sleep", SLOTS)
        walls, floor_s = [], []
        for number in range(bench.rounds):
            bench.say(f"W3 round {number + 1}")
            floor_s.append(floors.timed(lambda: floors.xargs(count, SLOTS, f"sleep {SLEEP_S}")))
            walls.append(site.run("sleep", count).took_s)
    ideal = [ideal_s] * len(walls)
    goal = Goal(at_least=0.95)
    bench.add(Figure("W3", f"{count} × sleep", "s", walls, ideal, "ideal", goal, inverted=True))
    bench.add(Figure("W3", "the same", "s", walls, floor_s, f"xargs -P {SLOTS}", inverted=True))
