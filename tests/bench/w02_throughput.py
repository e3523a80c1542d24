"""W2: fan-outs of short steps on eight slots, all durable: speed, CPU per step, and its growth."""

from __future__ import annotations

import statistics
import time

import fleet
import floors
import usage
from figures import Bench, Curve, Figure, Goal

SLOTS = 8


def measure(bench: Bench) -> None:
    """The same fan-out in two sizes, each round beside its floor."""
    curve = bench.curve(
        Curve("cpu_per_step", "CPU per step of a fan-out", "steps in one run", "ms per step")
    )
    sizes = (bench.size(1_000, 100), bench.size(10_000, 300))
    per_step: dict[int, list[float]] = {}
    with fleet.site() as site:
        site.workflow("fan")
        site.worker(SLOTS)
        site.run("fan", 20)
        for count in sizes:
            per_step[count] = _fan_out(bench, site, count, curve)
    small, big = (statistics.median(per_step[count]) for count in sizes)
    what = f"CPU per step of {sizes[1]} against {sizes[0]}"
    bench.add(Figure("W2", what, "×", [big / small], goal=Goal(at_most=1.15)))


def _fan_out(bench: Bench, site: fleet.Site, count: int, curve: Curve) -> list[float]:
    walls, floor_s, cpus, spawns = [], [], [], []
    for number in range(bench.rounds):
        bench.say(f"W2 {count} steps, round {number + 1}")
        before, began = usage.own_children_cpu_s(), time.perf_counter()
        floors.xargs(count, SLOTS, "true")
        floor_s.append(time.perf_counter() - began)
        spawns.append((usage.own_children_cpu_s() - before) / count * 1000)
        cpu_s = site.cpu_s()
        walls.append(site.run("fan", count).took_s)
        site.until_idle()
        cpus.append((site.cpu_s() - cpu_s) / count * 1000)
        curve.add("swamp", count, cpus[-1])
        curve.add("xargs", count, spawns[-1])
    floor = f"xargs -P {SLOTS}"
    goal = Goal(at_least=0.6)
    share = Figure("W2", f"{count} steps", "s", walls, floor_s, floor, goal, inverted=True)
    bench.add(share)
    cpu = Figure("W2", f"CPU per step, {count} steps", "ms", cpus, goal=Goal(at_most=4))
    bench.add(cpu)
    bench.add(Figure("W2", f"CPU of xargs per command, {count}", "ms", spawns))
    return cpus
