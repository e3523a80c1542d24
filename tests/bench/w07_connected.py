"""W7: many connected workers: what they cost while idle, and while they execute many steps."""

from __future__ import annotations

import resource
import threading
import time

import fleet
import usage
from crowd import Crowd, crowd
from figures import Bench, Curve, Figure, Goal, percentile

LOOK_S = 0.02
RATE, RUN_STEPS = 300, 100
STEP_S = 3.0


def measure(bench: Bench) -> None:
    """Idle fleets of two sizes, then one that is busy."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # The server inherits it.
    try:
        sizes = (20, 50) if bench.quick else (1_000, 5_000)
        curve = bench.curve(Curve("fleet", "Memory of the server", "idle workers", "MiB"))
        for workers in sizes:
            _idle(bench, workers, curve)
        _busy(bench, bench.size(500, 150))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _idle(bench: Bench, workers: int, curve: Curve) -> None:
    bench.say(f"W7 {workers} idle workers")
    with fleet.site() as site:
        pids = [site.server.process.pid]
        time.sleep(2)
        before = usage.pss_bytes(pids)
        token = site.repo.token("crowd", "--max-enrollments", "unlimited")
        with crowd(site, workers, 1, token) as idle:
            told = idle.answer("enrolled")
            bench.add(Figure("W7", f"{workers} workers: all enrolled", "s", [told["tookS"]]))
            time.sleep(5)
            cpu_s = usage.cpu_s(pids)
            seconds = bench.size(45, 5)
            lag = _lag(site, seconds)
            cpu = 100 * (usage.cpu_s(pids) - cpu_s) / seconds
            held = usage.pss_bytes(pids)
            _health(bench, idle, f"{workers} idle workers")
    curve.add("PSS", 0, before / 2**20)
    curve.add("PSS", workers, held / 2**20)
    what = f"{workers} idle workers"
    each = (held - before) / workers / 1024
    bench.add(Figure("W7", f"{what}: memory each", "KiB", [each], goal=Goal(at_most=30)))
    bench.add(Figure("W7", f"{what}: CPU of the server", "%", [cpu]))
    bench.add(Figure("W7", f"{what}: loop lag p99", "ms", [lag], goal=Goal(at_most=50)))


def _busy(bench: Bench, workers: int) -> None:
    bench.say(f"W7 {workers} busy workers")
    seconds = bench.size(30, 3)
    with fleet.site() as site:
        site.workflow("fan")
        token = site.repo.token("crowd", "--max-enrollments", "unlimited")
        with crowd(site, workers, 8, token) as busy:
            busy.answer("enrolled")
            busy.order(f"sleep {STEP_S}")
            over = threading.Event()
            runs: list[str] = []
            feeder = threading.Thread(target=_feed, args=(site, runs, over))
            cpu_s, began = usage.cpu_s([site.server.process.pid]), time.monotonic()
            feeder.start()
            lag = _lag(site, seconds)
            over.set()
            feeder.join()
            for run in runs:
                story = fleet.follow(site.client, run, fleet.Story(began))
                assert not story.failed, story.failed[0]
            took_s = time.monotonic() - began
            cpu_s = usage.cpu_s([site.server.process.pid]) - cpu_s
            _health(bench, busy, f"{workers} busy workers")
    steps = len(runs) * RUN_STEPS
    what = f"{workers} workers × 8 slots, {RATE} steps/s asked"
    rate = Goal(at_least=0.8 * RATE)
    bench.add(Figure("W7", f"{what}: settled", "per s", [steps / took_s], goal=rate))
    bench.add(Figure("W7", f"{what}: loop lag p99", "ms", [lag], goal=Goal(at_most=50)))
    each = Figure("W7", f"{what}: CPU of the server per step", "ms", [cpu_s / steps * 1000])
    bench.add(each)


def _feed(site: fleet.Site, runs: list[str], over: threading.Event) -> None:
    """Submit steps at a steady rate."""
    began = time.monotonic()
    while not over.is_set():
        runs.append(site.submit("fan", RUN_STEPS))
        due = began + len(runs) * RUN_STEPS / RATE
        over.wait(max(0.0, due - time.monotonic()))


def _lag(site: fleet.Site, seconds: float) -> float:
    """The p99 of a question to the server that needs nothing but its loop, milliseconds."""
    client, taken = site.client, []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        before = time.monotonic()
        client.get("/health")
        taken.append((time.monotonic() - before) * 1000)
        time.sleep(LOOK_S)
    return percentile(taken, 99)


def _health(bench: Bench, fleet_of: Crowd, what: str) -> None:
    fleet_of.order("health")
    health = fleet_of.answer("health")
    lost, late = health["lost"], health["latePings"]
    bench.add(Figure("W7", f"{what}: sockets lost", "", [lost], goal=Goal(at_most=0)))
    bench.add(Figure("W7", f"{what}: missed heartbeats", "", [late], goal=Goal(at_most=0)))
