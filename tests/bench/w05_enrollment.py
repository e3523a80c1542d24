"""W5: many new workers at once, against many stored worker records and definitions."""

from __future__ import annotations

import statistics
import threading
from contextlib import nullcontext
from typing import Any

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
    before: dict[tuple[int, int], list[float]] = {}
    for records in stored:
        # A machine's speed drifts: each burst comes right after one where nothing is stored.
        none = fleet.site() if records else nullcontext(None)
        with none as empty, fleet.site(serve=False) as site:
            bench.say(f"W5 writing {records} records and definitions")
            # Half are workers that were there once, half are definitions.
            stock.workers(site.repo.path, records // 2)
            stock.definitions(site.repo.path, records - records // 2)
            started_s = site.serve()
            bench.add(Figure("W5", f"start with {records} stored", "s", [started_s]))
            for one in (site, empty):
                if one is not None:
                    one.workflow("old", pool="old")
                    for number in range(3):
                        one.worker(1, name=f"old-{number}", pool="old")
            for burst in bursts:
                key = burst, records
                taken[key], before[key] = _burst(bench, (site, empty), burst, records)
                curve.add(f"{burst} workers", records, statistics.median(taken[burst, records]))
            w05_known.beside_bursts(bench, site, bursts, f"{records} stored")
            w05_known.real(bench, site, f"{records} stored")
    for burst in bursts:
        for records in stored[1:]:
            what = f"{burst} workers, {records} stored against none"
            goal = Goal(at_most=1.15)
            now, floor = taken[burst, records], before[burst, records]
            bench.add(Figure("W5", what, "s", now, floor, "none stored", goal))


def _burst(
    bench: Bench, sites: tuple[fleet.Site, fleet.Site | None], burst: int, records: int
) -> tuple[list[float], list[float]]:
    """Seconds of each round: where so much is stored, and right before that where nothing is."""
    taken, failures, put_off, beside, slowest, most = [], [], [], [], [], []
    before: list[float] = []
    site, empty = sites
    for number in range(bench.rounds):
        bench.say(f"W5 {burst} new workers, {records} stored, round {number + 1}")
        name = f"crowd-{burst}-{number}"
        if empty is not None:
            before.append(_crowd(empty, burst, name)[0]["tookS"])
        alone = [site.run("old").took_s * 1000 for _ in range(bench.size(30, 5))]
        told, during = _crowd(site, burst, name)
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
    return taken, before


def _crowd(site: fleet.Site, burst: int, name: str) -> tuple[dict[str, Any], list[float]]:
    """What came of a burst, and how long dispatches of an old worker took meanwhile, ms."""
    token = site.repo.token(name, "--max-enrollments", "unlimited")
    during: list[float] = []
    over = threading.Event()
    old = threading.Thread(target=_dispatches, args=(site, during, over))
    with crowd(site, burst, 1, token) as new:
        old.start()
        told = new.answer("enrolled")
        over.set()
        old.join()
    return told, during


def _dispatches(site: fleet.Site, during: list[float], over: threading.Event) -> None:
    during.append(site.run("old").took_s * 1000)
    while not over.is_set():
        during.append(site.run("old").took_s * 1000)
