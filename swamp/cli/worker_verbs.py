"""`swamp worker cordon | uncordon`: whether workers get new steps, asked by their files."""

from __future__ import annotations

from typing import Annotated

import typer

from datastore.errors import NotFound
from swamp.cli.asking import Asked, ask, document, told
from swamp.cli.command import Help, command
from swamp.cli.console import Console
from swamp.cli.options import labels

_COMMENT = (
    "What is asked of this worker; see `swamp worker list`.\n"
    "Deleting this file changes nothing; `schedulable: true` lets it have steps again."
)

Name = Annotated[str | None, typer.Argument(help="The worker's name.", metavar="[NAME]")]
Label = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="K=V", help="All workers with this label, in place of a name."),
]
Note = Annotated[str | None, typer.Option("--note", help="Why; shown to whoever waits for it.")]


def declare(app: typer.Typer) -> None:
    """Add the commands to a group."""
    command(
        app,
        "cordon",
        Help(
            "Give workers no new steps; what they run goes on. Sticky, also over reconnects.",
            ("swamp worker cordon w1 --note 'disk swap'", "swamp worker cordon --label rack=7"),
        ),
    )(cordon)
    command(
        app,
        "uncordon",
        Help("Give workers steps again.", ("swamp worker uncordon w1",)),
    )(uncordon)


def cordon(console: Console, name: Name = None, label: Label = None, note: Note = None) -> None:
    _set(console, _named(console, name, label), schedulable=False, note=note)


def uncordon(console: Console, name: Name = None, label: Label = None, note: Note = None) -> None:
    _set(console, _named(console, name, label), schedulable=True, note=note)


def _named(console: Console, name: str | None, label: list[str] | None) -> list[str]:
    if (name is None) == (not label):
        raise typer.BadParameter("give either a worker's name or --label")
    from datastore.kinds import WORKERS
    from datastore.reader import read_records

    client = console.server(None)
    if client is not None:
        workers = client.get("/api/v1/workers", all=1)["workers"]
        known = {worker["name"]: worker["labels"] for worker in workers}
    else:
        records = read_records(console.layout(), WORKERS)
        known = {one.name: one.status.labels for one in records if one.status is not None}
    if name is not None:
        if name not in known:
            raise NotFound(f"no worker '{name}' ever enrolled; see `swamp worker list --all`")
        return [name]
    wanted = labels("", label or [])
    found = sorted(w for w, has in known.items() if wanted.items() <= has.items())
    if not found:
        raise NotFound("no worker has these labels; see `swamp worker list --all`")
    return found


def _set(console: Console, names: list[str], *, schedulable: bool, note: str | None) -> None:
    from datastore.kinds import WORKERS

    fields = {"schedulable": schedulable, "note": note}
    done: list[Asked] = [ask(console, WORKERS, name, fields, _COMMENT) for name in names]
    verb = "Uncordoned" if schedulable else "Cordoned"
    console.show(
        {"workers": [document(one, schedulable=schedulable) for one in done], "count": len(done)},
        [told(one, f"{verb} {one.name}") for one in done],
    )
