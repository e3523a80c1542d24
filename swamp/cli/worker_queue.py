"""`swamp worker queue | demand`: what waits for a worker, why, and what it asks of the fleet."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any
from urllib.parse import quote

import typer

from swamp.cli.command import Help, Server, command
from swamp.cli.console import Console
from swamp.cli.durations import show_age
from swamp.cli.table import table

WATCH_EVERY_S = 1.0

RUN_ID_SHOWN = 13
"""Characters of a run's id in the table: its millisecond, unless two runs need more."""

_QUEUE_COLUMNS = ("REQUIREMENT", "RUN", "STEP", "MODEL", "PRIO", "QUEUED AT", "AGE", "REASON")
_VERDICT_COLUMNS = ("WORKER", "VERDICT", "DETAIL")
_DEMAND_COLUMNS = (
    "REQUIREMENT", "WAITING", "BLOCKED", "UNSATISFIABLE", "RUNNING", "FREE", "SOON", "OLDEST",
    "REASON",
)  # fmt: skip
_CLEAR = "\x1b[H\x1b[J"

Watch = Annotated[
    bool,
    typer.Option(
        "--watch",
        "-w",
        help="Show it until Ctrl-C: on a terminal every second, through a pipe or with --json "
        "at once, and again when more than an age has changed.",
    ),
]
Explain = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Say of every worker why it does not take this one: WORKFLOW/JOB/STEP, JOB/STEP, "
        "STEP or a queue id.",
    ),
]


def declare(app: typer.Typer) -> None:
    """Add the commands to a group."""
    command(
        app,
        "queue",
        Help(
            "Show the steps that wait for a worker, oldest first, and why.",
            (
                "swamp worker queue",
                "swamp worker queue --watch",
                "swamp worker queue --explain deploy/build/probe",
            ),
        ),
    )(queue)
    command(
        app,
        "demand",
        Help(
            "Show what the queue asks of the fleet, by requirement: numbers to scale a pool by.\n\n"
            "waiting could run on another worker like those that match; blocked waits for an "
            "operator; unsatisfiable asks for what no worker has; soon counts next steps of runs.",
            ("swamp worker demand", "swamp worker demand --json"),
        ),
    )(demand)


def queue(
    console: Console, watch: Watch = False, explain: Explain = None, server: Server = None
) -> None:
    if explain is not None:
        if not explain.strip():
            raise typer.BadParameter("--explain needs the name of a step that waits, or its id")
        asked = console.needed_server(server)
        document = asked.get(f"/api/v1/queue/{quote(explain, safe='')}/explain")
        console.show(document, explained(document))
        return
    client = console.server(server)

    def ask() -> list[dict[str, Any]]:
        found: list[dict[str, Any]]
        found = _recorded(console) if client is None else client.get("/api/v1/queue")
        return found

    shown = _show(console, ask, queue_lines, watch)
    console.recorded(bool(shown))


def demand(console: Console, watch: Watch = False, server: Server = None) -> None:
    client = console.server(server)
    if client is None:
        from swamp.client import Unreachable

        raise Unreachable(
            "demand needs a server, which alone knows the workers that are connected now and the"
            " next steps of runs: start `swamp serve`, or name one with --server URL;"
            " `swamp worker queue` shows what the records say"
        )
    _show(console, lambda: client.get("/api/v1/demand"), demand_lines, watch)


def _show(
    console: Console,
    ask: Callable[[], list[dict[str, Any]]],
    lines: Callable[[list[dict[str, Any]]], Iterable[str]],
    watch: bool,
) -> list[dict[str, Any]]:
    """Once, or again and again: on a terminal in place, else only when something has changed.

    What was shown last.
    """
    seen = None
    while True:
        document = ask()
        if watch and console.paints and not console.json:
            console.print([_CLEAR + "\n".join(lines(document))])
        elif not watch or _without_ages(document) != seen:
            console.show(document, lines(document))
        if not watch:
            return document
        seen = _without_ages(document)
        _rest()


def _rest() -> None:
    """Until the next look; BrokenPipeError as soon as whoever read stdout has gone."""
    reader = select.poll()
    reader.register(sys.stdout, 0)
    if reader.poll(WATCH_EVERY_S * 1000):
        raise BrokenPipeError


def _without_ages(document: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What counts as a change: ages always do."""
    ages = ("ageMs", "oldestAgeMs")
    return [{key: value for key, value in one.items() if key not in ages} for one in document]


def _recorded(console: Console) -> list[dict[str, Any]]:
    from datastore.clock import SystemClock
    from datastore.kinds import PENDING
    from datastore.reader import read_live
    from swamp.views import queue_list

    return queue_list(read_live(console.layout(), PENDING)[0], SystemClock().now())


def queue_lines(items: list[dict[str, Any]]) -> list[str]:
    """The queue as a table."""
    if not items:
        return ["No step waits for a worker."]
    shown = _shown_most({item["runId"] for item in items})
    return table(_QUEUE_COLUMNS, (_queue_row(item, shown) for item in items))


def _shown_most(runs: set[str]) -> int:
    """How many characters of the runs' ids tell them apart."""
    longest = max(map(len, runs))
    lengths = range(min(RUN_ID_SHOWN, longest), longest + 1)
    return next(one for one in lengths if len({run[:one] for run in runs}) == len(runs))


def _queue_row(item: dict[str, Any], run_shown: int) -> tuple[str, ...]:
    return (
        item["requirement"],
        item["runId"][:run_shown],
        f"{item['workflowName']}/{item['jobName']}/{item['stepName']}",
        item["model"],
        str(item["priority"]),
        item["queuedAt"],
        show_age(item["ageMs"]),
        item["reason"],
    )


def explained(document: dict[str, Any]) -> list[str]:
    """One waiting dispatch, with every worker's verdict."""
    head = [
        f"{document['queueId']} needs a worker with {document['requirement']}",
        document["reason"],
    ]
    workers = document["workers"]
    if not workers:
        return head
    rows = ((one["worker"], one["verdict"], one.get("detail", "")) for one in workers)
    return [*head, "", *table(_VERDICT_COLUMNS, rows)]


def demand_lines(items: list[dict[str, Any]]) -> list[str]:
    """Demand as a table."""
    if not items:
        return ["Nothing waits, runs or is about to."]
    return table(_DEMAND_COLUMNS, (_demand_row(item) for item in items))


def _demand_row(item: dict[str, Any]) -> tuple[str, ...]:
    counts = ("waiting", "blocked", "unsatisfiable", "running", "freeSlots", "soon")
    age = show_age(item["oldestAgeMs"]) if item["oldestAgeMs"] else "-"
    return (item["requirement"], *(str(item[key]) for key in counts), age, item.get("reason", "-"))
