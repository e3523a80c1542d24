"""W4: bursts of dispatches that all end at the same instant: from the result to the client.

The workers are simulated, so that the instant is exact: a result's clock starts when the worker
sends it, and stops when a client that follows the run reads the step's outcome.
"""

from __future__ import annotations

import statistics
import sys
import time

import fleet
import floors
import stock
import w04_faults
import w04_parts
import w04_questions
from bursts import Parts, beside, bursts, start_upload, touch_definitions
from crowd import Crowd, Watchers, crowd
from figures import Bench, Curve, Figure, Goal, percentile

UPLOAD = """name: upload
jobs:
  - name: job
    steps:
      - name: upload
        labels: {pool: real}
        task:
          type: model_method
          modelIdOrName: shell
          methodName: execute
          inputs:
            outputs: [slow]
            run: >-
              (for i in 1 2 3 4 5; do head -c 300000 /dev/zero; sleep 1; done)
              | PYTHON -m swamp data put slow /dev/stdin
"""


def measure(bench: Bench) -> None:
    """Plain bursts of each size, then the same burst beside something slow."""
    sizes = (10, 25) if bench.quick else (25, 100, 1_000)
    curve = bench.curve(Curve("settlement", "Settlement, p95", "results at one instant", "ms"))
    with fleet.site(serve=False) as site:
        site.workflow("fan")
        site.repo.write("workflows/upload.yaml", UPLOAD.replace("PYTHON", sys.executable))
        site.serve()
        site.worker(1, pool="real")
        token = site.repo.token("crowd", "--max-enrollments", "unlimited")
        with crowd(site, 1, 2_000, token) as one:
            one.answer("enrolled")
            for count in sizes:
                plain = bursts(bench, site, one, count, 1)
                _add(bench, plain, f"{count} of one run", curve, count, "one run")
                apart = bursts(bench, site, one, count, count)
                _add(bench, apart, f"{count} runs of one step", curve, count, "separate runs")
                _serial(bench, site, plain, count, curve)
            plain = bursts(bench, site, one, 25, 1)
            slow = bursts(bench, site, one, 25, 1, lambda: start_upload(site))
            beside(bench, plain, slow, "a 5 s upload")
            with bench.tolerated("W4 kill -9"):
                _killed(bench, site, one, sizes[-1])
            with bench.tolerated("W4 cut sockets"):
                _cut(bench, site, one, sizes[-1])
            with bench.tolerated("W4 cancel"):
                _cancelled(bench, site, one, sizes[-1])
    _inventory(bench)
    w04_faults.measure(bench)
    w04_questions.measure(bench)
    w04_parts.measure(bench)


def _killed(bench: Bench, site: fleet.Site, one: Crowd, count: int) -> None:
    """The server is killed while results come in: after its next start, all are told as they were.

    The worker's socket is cut by that as well, and its results come again.
    """
    bench.say(f"W4 kill -9 with {count} results under way")
    one.order(f"hold {count}")
    watchers = Watchers(site.repo.url, [site.submit("fan", count)])
    one.answer("held")
    one.order("release")
    time.sleep(0.01)
    site.server.process.kill()
    site.server.process.wait()
    site.serve()
    one.answer("settled")
    watchers.join()
    _add_lost(bench, watchers, count, "server killed meanwhile")


def _cut(bench: Bench, site: fleet.Site, one: Crowd, count: int) -> None:
    """The worker's socket is cut while its results are under way; they come again, and once."""
    bench.say(f"W4 cut sockets with {count} results under way")
    one.order(f"hold {count}")
    watchers = Watchers(site.repo.url, [site.submit("fan", count)])
    one.answer("held")
    one.order("release")
    time.sleep(0.01)
    one.order("cut")
    one.answer("settled")
    watchers.join()
    _add_lost(bench, watchers, count, "sockets cut meanwhile")


def _add_lost(bench: Bench, watchers: Watchers, count: int, what: str) -> None:
    lost = count - len(watchers.told) + len(watchers.failed)
    figure = Figure("W4", f"{count} results, {what}: lost", "", [lost], goal=Goal(at_most=0))
    bench.add(figure)


def _cancelled(bench: Bench, site: fleet.Site, one: Crowd, count: int) -> None:
    """The run is cancelled while results come in: every step has one end, whichever was first."""
    bench.say(f"W4 cancel with {count} results under way")
    one.order(f"hold {count}")
    run = site.submit("fan", count)
    watchers = Watchers(site.repo.url, [run])
    one.answer("held")
    one.order("release")
    site.client.post(f"/api/v1/runs/{run}/cancel", {"reason": "measured"})
    watchers.join()
    ended = site.client.get(f"/api/v1/runs/{run}")["counts"]
    without = count - ended["succeeded"] - ended["cancelled"]
    what = f"{count} results, run cancelled meanwhile: steps without one end"
    bench.add(Figure("W4", what, "", [without], goal=Goal(at_most=0)))


def _inventory(bench: Bench) -> None:
    count = bench.size(50_000, 1_000)
    with fleet.site(serve=False) as site:
        site.workflow("fan")
        bench.say(f"W4 with {count} definitions")
        stock.definitions(site.repo.path, count)
        bench.add(Figure("W4", f"start with {count} definitions", "s", [site.serve()]))
        token = site.repo.token("crowd", "--max-enrollments", "unlimited")
        with crowd(site, 1, 2_000, token) as one:
            one.answer("enrolled")
            still = bursts(bench, site, one, 25, 1)
            _add(bench, still, f"25 of one run, {count} definitions")
            busy = bursts(bench, site, one, 25, 1, lambda: touch_definitions(site))
            beside(bench, still, busy, f"{count} changed files")


def _add(
    bench: Bench, parts: Parts, what: str,
    curve: Curve | None = None, count: int = 0, series: str = "",
) -> None:  # fmt: skip
    allowed = [5 * sync + 20 for sync in parts.syncs]
    goal = Goal(at_most=1) if what.startswith("25 ") else Goal()
    name = f"{what}: result → client, p95"
    bench.add(Figure("W4", name, "ms", parts.told, allowed, "5 syncs + 20 ms", goal))
    bench.add(Figure("W4", f"{what}: result → acknowledged, p95", "ms", parts.acknowledged))
    for part, means in parts.server.items():
        bench.add(Figure("W4", f"{what}: {part}", "ms", means))
    if curve is not None:
        curve.add(series, count, statistics.median(parts.told))


def _serial(bench: Bench, site: fleet.Site, parts: Parts, count: int, curve: Curve) -> None:
    """The same burst through a writer that takes one record at a time."""
    folder = site.repo.base / "serial"
    folder.mkdir(exist_ok=True)
    taken = [floors.write_one_by_one(folder, count) for _ in range(bench.rounds)]
    p95s = [percentile(one, 95) * 1000 for one in taken]
    what = f"{count} of one run, against records written one by one"
    bench.add(Figure("W4", what, "ms", parts.told, p95s, "one by one"))
    curve.add("one record at a time (disk alone)", count, statistics.median(p95s))
