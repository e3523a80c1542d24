"""W11: commands in a repository of many records, against a bare command that prints a table."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import partial

import fleet
import floors
import stock
from figures import Bench, Figure, Goal

FLOOR = "typer + rich table"
HELP = "swamp --help"
SERVED = "swamp worker list"
ALONE = "swamp worker list, no server"


@dataclass
class Taken:
    """Seconds per round by command, and of the floor."""

    floors: list[float] = field(default_factory=list)
    commands: dict[str, list[float]] = field(default_factory=dict)

    def add(self, command: str, seconds: float) -> None:
        self.commands.setdefault(command, []).append(seconds)


def measure(bench: Bench) -> None:
    """With the server and without; the same without records, to show that they do not count."""
    few, many = _taken(bench, 0), _taken(bench, bench.size(50_000, 2_000))
    for name in (HELP, SERVED, ALONE):
        goal = Goal(at_most=1.5)
        bench.add(Figure("W11", name, "s", many.commands[name], many.floors, FLOOR, goal))
    for name in (SERVED, ALONE):
        taken, before, goal = many.commands[name], few.commands[name], Goal(at_most=1.15)
        what = f"{name}: with records"
        bench.add(Figure("W11", what, "s", taken, before, "without records", goal))


def _taken(bench: Bench, records: int) -> Taken:
    taken = Taken()
    with fleet.site(serve=False) as site:
        # Half are finished steps, half are workers that were there once.
        stock.finished_records(site.repo.path, records // 2)
        stock.workers(site.repo.path, records - records // 2)
        _rounds(bench, site, taken, (HELP, ALONE), records)
        site.serve("--keep-runs", "1000000")
        site.worker(1)
        _rounds(bench, site, taken, (SERVED,), records)
    return taken


def _rounds(
    bench: Bench, site: fleet.Site, taken: Taken, commands: tuple[str, ...], records: int
) -> None:
    for number in range(bench.rounds):
        bench.say(f"W11 {records} records: {', '.join(commands)}: round {number + 1}")
        times = range(bench.size(7, 2))
        if HELP in commands:
            taken.floors.append(
                statistics.median(floors.timed(floors.table_command) for _ in times)
            )
        for command in commands:
            words = command.partition(",")[0].split()[1:]
            found = [floors.timed(partial(site.repo.swamp, *words)) for _ in times]
            taken.add(command, statistics.median(found))
