"""`make soak`: two hours of a fleet's life, compressed: does anything grow, is any step lost?

    python tests/bench/soak.py [--steps 100000] [--enrollments 20000] [--output FILE]

A real server; simulated workers that come, lose their sockets, die and leave; two real ones; runs
of several shapes, some cancelled; people who edit meanwhile; restarts of the server in the middle
of it, by SIGTERM and `kill -9`. It ends with exit code 0 if every step of every run has exactly one
end, none ran twice unless its lease was lost, and the server holds no more than after the warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet
import report
import soak_health
import soak_ledger
from crowd import Crowd
from figures import Figure, Goal
from soak_people import People
from soak_runs import QUIET, Order, next_order, write_workflows

LATEST = Path(__file__).parents[2] / "bench-results" / "soak.json"
WORKERS = str(Path(__file__).with_name("soak_workers.py"))

KEEP_RUNS = 20
QUIET_RUNS = 24
"""More than are kept, so that all that is kept is the same."""
CREW, SLOTS = 60, 4
OPEN_STEPS = 800
"""Steps of runs under way: enough that the server always has something to do."""
SERVE = ("--keep-runs", str(KEEP_RUNS), "--grace", "5s", "--queue-timeout", "0")
PARTS = (("warm", 0.0, 0.2), ("restarted", 0.2, 0.5), ("end", 0.5, 1.0))
"""What is done before each look, as shares of the steps: the warm-up, the part with the restarts,
and half of all with one process, to see it grow."""
RESTARTS = (
    (0.22, signal.SIGTERM), (0.25, signal.SIGKILL), (0.27, signal.SIGKILL), (0.3, signal.SIGTERM),
)  # fmt: skip
"""At which share of the steps, and how."""
WARM_FROM_STEPS = 20_000
"""With fewer, a fifth of them does not bring memory to where it stays."""
RUN_ENDS_WITHIN_S = 300.0


REAL_WORKERS = {"real-1", "real-2"}
VICTIM = "real-2"


class Soak:
    """One soak: its site, its crowd and its books."""

    def __init__(self, site: fleet.Site, crowd: Crowd, steps: int, enrollments: int) -> None:
        self.site, self.crowd = site, crowd
        self.steps, self.enrollments = steps, enrollments
        self.ledger = soak_ledger.Ledger(site.repo.url)
        self.dice = random.Random(1)
        self.restarts: list[dict[str, Any]] = []
        self.worked_s = 0.0
        self.kinds: Counter[str] = Counter()
        self.caused: dict[str, Any] = {}

    def start(self, order: Order) -> str:
        """Start a run, and follow it."""
        run = str(self.site.client.post("/api/v1/runs", order.body)["id"])
        self.ledger.follow(run, order.steps)
        self.kinds[order.shape.workflow] += 1
        return run

    def quiet(self, people: People) -> soak_health.Health:
        """The same small runs as always, everybody leaves, and a look at what is left."""
        self.crowd.order("crew 4")
        self.crowd.answer("crew")
        for number in range(QUIET_RUNS):
            shape = QUIET[number % len(QUIET)]
            self.start(Order(shape, shape.counts[0], cancel=False))
            self.ledger.wait_until_open(0, RUN_ENDS_WITHIN_S)
        self.empty(people)
        return soak_health.settled(self.site.server.process.pid, self.site.repo.path)

    def empty(self, people: People) -> None:
        """All simulated workers leave, and are forgotten."""
        self.crowd.order("empty")
        self.caused = self.crowd.answer("empty")
        until = time.monotonic() + 60
        while self._away(people) and time.monotonic() < until:
            people.forget_absent()
            time.sleep(0.5)

    def _away(self, people: People) -> int:
        workers = people.admin.get("/api/v1/workers?all=1")["workers"]
        return sum(worker["name"] not in REAL_WORKERS for worker in workers)

    def work(self, first: float, last: float) -> None:
        """The runs of that part of all steps, and enrollments to match."""
        due = [restart for restart in RESTARTS if first < restart[0] <= last]
        started, end = int(first * self.steps), int(last * self.steps)
        base, began = self.ledger.told - started, time.monotonic()
        while started < end:
            order = next_order(self.dice, end - started)
            run = self.start(order)
            started += order.steps
            if order.cancel:
                self.site.client.post(f"/api/v1/runs/{run}/cancel", {"reason": "soak"})
            self.ledger.wait_until_open(OPEN_STEPS, RUN_ENDS_WITHIN_S)
            told = self.ledger.told - base
            self.crowd.order(f"allow {int(self.enrollments * told / self.steps)}")
            while due and told >= due[0][0] * self.steps:
                self._restart(due.pop(0)[1])
        for _, number in due:
            self._restart(number)
        self.ledger.wait_until_open(0, RUN_ENDS_WITHIN_S)
        self.worked_s += time.monotonic() - began

    def _restart(self, number: signal.Signals) -> None:
        say(f"{number.name} to the server with {self.ledger.open} steps open")
        before = time.monotonic()
        self.site.server.process.send_signal(number)
        self.site.server.process.wait(60)
        if number == signal.SIGTERM:
            self._kill_worker()
        self.site.serve(*SERVE)
        took_s = round(time.monotonic() - before, 2)
        self.restarts.append({"signal": number.name, "open": self.ledger.open, "tookS": took_s})

    def _kill_worker(self) -> None:
        """A real worker dies while the server is down, and comes again."""
        victim = self.site.workers.pop()
        victim.terminate(signal.SIGKILL)
        self.site.repo.procs.remove(victim)
        again = self.site.repo.worker(
            VICTIM, "--label", "pool=real", "--concurrency", "4", wait=False
        )
        self.site.workers.append(again)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compress hours of a fleet's life into minutes.")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--enrollments", type=int, default=20_000)
    parser.add_argument("--output", type=Path, default=LATEST, help="the JSON file to write")
    given = parser.parse_args()
    began, load, before = report.now(), os.getloadavg(), time.monotonic()
    with fleet.site(serve=False) as site:
        figures, found = soaked(site, given.steps, given.enrollments)
    document = {
        "began": began,
        "tookS": round(time.monotonic() - before),
        "machine": report.machine(),
        "loadBefore": load,
        "loadAfter": os.getloadavg(),
        "figures": [figure.document() for figure in figures],
        **found,
    }
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(report.text_table([figure.document() for figure in figures]))
    for problem in found["problems"][: soak_ledger.SHOWN]:
        print(f"problem: {problem}")
    well = all(figure.met is not False for figure in figures)
    print(f"{'passed' if well else 'FAILED'} after {document['tookS']} s; {given.output}")
    return 0 if well else 1


def soaked(site: fleet.Site, steps: int, enrollments: int) -> tuple[list[Figure], dict[str, Any]]:
    """The whole soak: its figures, and all else that is worth keeping."""
    real = site.repo.base / "real.book"
    real.touch()
    write_workflows(site, str(real))
    site.serve(*SERVE)
    for name in sorted(REAL_WORKERS):
        site.worker(4, name=name, pool="real")
    with crowd(site) as simulated, People(site, REAL_WORKERS, seed=2) as people:
        soak = Soak(site, simulated, steps, enrollments)
        looks = {}
        for name, first, last in PARTS:
            say(f"{name}: steps {first:.0%} to {last:.0%}")
            simulated.order(f"crew {CREW}")
            simulated.answer("crew")
            soak.work(first, last)
            soak.empty(people)
            looks[name] = soak.quiet(people)
    say("books")
    problems = [*soak.ledger.problems, *audit(soak, real)]
    figures = [*counted(soak, problems), *grown(looks, memory=steps >= WARM_FROM_STEPS)]
    found = {
        "steps": soak.ledger.told,
        "runs": dict(soak.kinds),
        "restarts": soak.restarts,
        "edits": people.done,
        "crowd": soak.caused,
        "looks": {name: soak_health.document(health) for name, health in looks.items()},
        "problems": problems,
    }
    return figures, found


@contextlib.contextmanager
def crowd(site: fleet.Site) -> Iterator[Crowd]:
    """The process of simulated workers."""
    token = site.repo.token("crowd", "--max-enrollments", "unlimited")
    command = [sys.executable, WORKERS, site.repo.url, token, str(SLOTS), "3"]
    process = subprocess.Popen(
        [*command, str(site.repo.base / "crowd.book")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield Crowd(process)
    finally:
        process.kill()
        process.wait()


def audit(soak: Soak, real: Path) -> list[str]:
    """What the books of server, clients and workers do not agree about."""
    stories = soak_ledger.read_stories(soak.site.repo.path / "datastore" / "history")
    simulated = soak_ledger.book(soak.site.repo.base / "crowd.book")
    executed = soak_ledger.book(real)["took"]
    return [
        *soak_ledger.differences(soak.ledger.runs, stories),
        *soak_ledger.redispatched(stories),
        *soak_ledger.repeated(simulated["took"], stories),
        *soak_ledger.executed_again(executed, stories),
        *soak_ledger.unknown_successes(simulated["sent"], executed, stories),
    ]


def counted(soak: Soak, problems: list[str]) -> list[Figure]:
    """What was done, and how many steps are not accounted for."""
    told = sum(len(told.ended) + told.never_started for told in soak.ledger.runs.values())
    due = sum(told.steps for told in soak.ledger.runs.values())
    return [
        Figure("soak", "steps", "", [told], [due], "due", Goal(at_least=1, at_most=1)),
        Figure("soak", "steps per second", "", [soak.steps / soak.worked_s]),
        Figure("soak", "enrollments", "", [soak.caused["enrollments"]]),
        Figure("soak", "restarts of the server", "", [len(soak.restarts)]),
        Figure("soak", "differences between the books", "", [len(problems)], goal=Goal(at_most=0)),
    ]


def grown(looks: dict[str, soak_health.Health], *, memory: bool) -> list[Figure]:
    """The end against the warm-up, and against the beginning of the last process."""
    return [
        *soak_health.compared("since the warm-up", looks["warm"], looks["end"], memory=memory),
        *soak_health.compared(
            "of the last process", looks["restarted"], looks["end"], memory=memory
        ),
    ]


def say(line: str) -> None:
    """Progress."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
