"""W5: many new workers at once, against many stored worker records and definitions."""

from __future__ import annotations

import statistics
import threading

import fleet
import stock
import w05_known
from crowd import crowd
from figures import Bench, Curve, Figure, Goal, percentile


def measure(bench: Bench) -> None:
    """Each size of the burst against each size of the repository, and its growth."""
    bursts = (5, 24) if bench.quick else (24, 200, 1_000)
    stored = (0, 1_000) if bench.quick else (0, 10_000, 50_000, 200_000)
    title = "Enrollment of a burst of new workers"
    curve = bench.curve(Curve("enrollment", title, "stored records and definitions", "seconds"))
    taken: dict[tuple[int, int], list[float]] = {}
    for records in stored:
        with fleet.site(serve=False) as site:
            bench.say(f"W5 writing {records} records and definitions")
            # Half are workers that were there once, half are definitions.
            stock.workers(site.repo.path, records // 2)
            stock.definitions(site.repo.path, records - records // 2)
            site.workflow("old", pool="old")
            started_s = site.serve()
            bench.add(Figure("W5", f"start with {records} stored", "s", [started_s]))
            for number in range(3):
                site.worker(1, name=f"old-{number}", pool="old")
            for burst in bursts:
                taken[burst, records] = _burst(bench, site, burst, records)
                curve.add(f"{burst} workers", records, statistics.median(taken[burst, records]))
            w05_known.beside_bursts(bench, site, bursts, f"{records} stored")
            w05_known.real(bench, site, f"{records} stored")
    for burst in bursts:
        for records in stored[1:]:
            what = f"{burst} workers, {records} stored against none"
            goal = Goal(at_most=1.15)
            now, before = taken[burst, records], taken[burst, 0]
            bench.add(Figure("W5", what, "s", now, before, "none stored", goal))


def _burst(bench: Bench, site: fleet.Site, burst: int, records: int) -> list[float]:
    taken, failures, put_off, beside, slowest, most = [], [], [], [], [], []
    for number in range(bench.rounds):
        bench.say(f"W5 {burst} new workers, {records} stored, round {number + 1}")
        name = f"crowd-{burst}-{number}"
        token = site.repo.token(name, "--max-enrollments", "unlimited")
        alone = [site.run("old").took_s * 1000 for _ in range(bench.size(30, 5))]
        during: list[float] = []
        over = threading.Event()
        old = threading.Thread(target=_dispatches, args=(site, during, over))
        with crowd(site, burst, 1, token) as new:
            old.start()
            told = new.answer("enrolled")
            over.set()
            old.join()
        taken.append(told["tookS"])
        failures.append(told["failures"])
        put_off.append(told["putOff"])
        # One that began before the burst had ended is always there.
        beside.append(percentile(during, 95))
        slowest.append(max(during))
        most.append(w05_known.allowed(alone))
        if told["failures"]:
            bench.notes.append(f"W5 {burst} workers: {told['first']}")
    where = f"{burst} new workers, {records} stored"
    bench.add(Figure("W5", f"{where}: all enrolled", "s", taken))
    # A few at once are let in at the first attempt; of more, some may be told to come back.
    refused = [a + b for a, b in zip(failures, put_off, strict=True)] if burst <= 24 else failures
    what = f"{where}: failed attempts"
    bench.add(Figure("W5", what, "", refused, goal=Goal(at_most=0)))
    if any(put_off):
        bench.notes.append(f"W5 {where}: told to come back: {put_off}")
    what, goal = f"{where}: dispatch of an old worker, p95", Goal(at_most=1)
    bench.add(Figure("W5", what, "ms", beside, most, w05_known.ALLOWED, goal))
    bench.add(Figure("W5", f"{where}: the slowest of them", "ms", slowest))
    return taken


def _dispatches(site: fleet.Site, during: list[float], over: threading.Event) -> None:
    during.append(site.run("old").took_s * 1000)
    while not over.is_set():
        during.append(site.run("old").took_s * 1000)
