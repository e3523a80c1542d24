"""`swamp worker list`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from swamp.cli.command import Help, Server, command
from swamp.cli.console import Console
from swamp.cli.desired_files import missing_files
from swamp.cli.table import pairs, table

_HELP = Help(
    "Show the workers: status, slots in use, labels.\n\nReads the records when no server runs.",
    ("swamp worker list", "swamp worker list --all --json"),
)
_WORKER_COLUMNS = ("NAME", "STATUS", "SLOTS", "LABELS", "PLATFORM/ARCH", "LAST SEEN")


def list_workers(
    console: Console,
    show_all: Annotated[bool, typer.Option("--all", help="Disconnected workers, too.")] = False,
    server: Server = None,
) -> None:
    client = console.server(server)
    if client is None:
        document = _recorded_workers(console, show_all)
    else:
        document = client.get("/api/v1/workers", all=1 if show_all else None)
    console.show(document, _worker_lines(document))
    console.recorded(any(one["status"] != "disconnected" for one in document["workers"]))


def declare(parent: typer.Typer) -> None:
    """Add `list` to a group of commands."""
    command(parent, "list", _HELP)(list_workers)


def _recorded_workers(console: Console, show_all: bool) -> dict[str, Any]:
    from datastore.kinds import LEASES, WORKERS
    from datastore.reader import read_live, read_records
    from swamp.views import worker_list

    layout, others = console.layout(), 0
    if show_all:
        workers = read_records(layout, WORKERS)
    else:
        workers, others = read_live(layout, WORKERS)
    # Leases are shown at their workers, so where no worker is shown nobody has to look for them.
    leases = read_live(layout, LEASES)[0] if workers else []
    return worker_list(workers, leases, show_all, left_out=others)


def _worker_lines(document: dict[str, Any]) -> list[str]:
    hidden = document.get("filteredDisconnectedCount", 0)
    hint = f"{hidden} disconnected worker{'s' if hidden > 1 else ''} not shown; see --all"
    workers = document["workers"]
    if not workers:
        start = "No workers. Start one: swamp worker token create <name> --duration 1h"
        return [hint if hidden else start]
    noted = any(_remarks(worker) for worker in workers)
    columns = (*_WORKER_COLUMNS, "NOTE") if noted else _WORKER_COLUMNS
    lines = table(columns, (_worker_row(worker)[: len(columns)] for worker in workers))
    hints = [*missing_files(workers), *([hint] if hidden else [])]
    return [*lines, "", *hints] if hints else lines


def _worker_row(worker: dict[str, Any]) -> tuple[str, ...]:
    return (
        worker["name"],
        worker["status"],
        f"{len(worker['activeDispatchIds'])}/{worker['capacity']}",
        pairs(worker["labels"]),
        f"{worker['platform']}/{worker['arch']}",
        worker["lastSeenAt"],
        _remarks(worker),
    )


def _remarks(worker: dict[str, Any]) -> str:
    """What operators noted, and why the worker's last probe failed."""
    failure = worker.get("verifyFailureReason")
    found = [worker.get("note"), failure and f"probe failed: {failure}"]
    return "; ".join(remark for remark in found if remark)
