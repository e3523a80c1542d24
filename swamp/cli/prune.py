"""`swamp run prune`: finished runs give up their records now, by the server or without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from swamp.cli.command import Help, command
from swamp.cli.console import Console
from swamp.cli.options import AT_MOST, number, optional_seconds

if TYPE_CHECKING:
    from controllers.retention import Due, Keep
    from datastore.layout import Layout
    from datastore.store import Store

_HELP = Help(
    "Remove the records and events of finished runs.\n\n"
    "Their stories stay in datastore/history/. Live runs are never touched. Without an option it "
    "keeps what the settings say (retention in .swamp.yaml; 500 runs if nothing is set).",
    ("swamp run prune --keep 100", "swamp run prune --older-than 7d --dry-run"),
)


def prune(
    console: Console,
    keep: Annotated[
        int | None,
        typer.Option(
            parser=number("--keep", 0),
            metavar="N",
            help=f"Remove all but the N runs that ended last, {AT_MOST}.",
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Remove what ended longer ago than this, also of the N that --keep leaves.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which runs would go.")
    ] = False,
) -> None:
    from controllers.retention import Keep
    from swamp.cli.settings import kept

    for_s = optional_seconds("--older-than", older_than)
    layout = console.layout()
    wanted = kept(layout) if keep is None and for_s is None else Keep(keep, for_s)
    client = console.local_server(layout)
    if client is None and dry_run:
        document = _document(_due(layout, wanted), dry_run=True)
    elif client is None:
        document = _prune_here(layout, wanted)
    else:
        body = {"keepRuns": wanted.runs, "keepForS": wanted.for_s, "dryRun": dry_run}
        document = client.post("/api/v1/runs/prune", body)
    console.show(document, _lines(document))


def declare(parent: typer.Typer) -> None:
    """Add `prune` to a group of commands."""
    command(parent, "prune", _HELP)(prune)


def _due(layout: Layout, keep: Keep) -> Due:
    """What would go, read only: the repository may be one that cannot be written."""
    from controllers.retention import due_of_records
    from datastore.clock import SystemClock
    from datastore.kinds import LEASES, RUNS
    from datastore.reader import read_live, read_records

    leases, _ = read_live(layout, LEASES)
    return due_of_records(read_records(layout, RUNS), leases, keep, SystemClock())


def _prune_here(layout: Layout, keep: Keep) -> dict[str, Any]:
    import asyncio

    from swamp.cli.locked_store import with_store

    async def act(store: Store) -> dict[str, Any]:
        from controllers.retention import Retention
        from datastore.clock import SystemClock
        from datastore.events import EventLog

        clock = SystemClock()
        events = EventLog(layout.events, clock, store.after_barrier)
        try:
            retention = Retention(store, clock, keep, events.forget)
            due = await retention.due(keep)
            await retention.remove(due.going)
            await store.barrier()
        finally:
            await asyncio.to_thread(events.close)
        return _document(due, dry_run=False)

    return asyncio.run(with_store(layout, act))


def _document(due: Due, *, dry_run: bool) -> dict[str, Any]:
    return {"pruned": due.going, "busy": due.busy, "dryRun": dry_run}


def _lines(document: dict[str, Any]) -> list[str]:
    runs = document["pruned"]
    kept = [
        f"Run {run} is due, and stays for now: it was cancelled while a worker was away that may"
        " still run a step of it (`swamp worker list`)"
        for run in document.get("busy", [])
    ]
    if not runs:
        return kept or ["No run is due."]
    verb = "Would remove" if document["dryRun"] else "Removed"
    count = f"{len(runs)} run{'s' * (len(runs) != 1)}"
    return [*runs, f"{verb} the records of {count}; the stories stay in datastore/history/", *kept]
