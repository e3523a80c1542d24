"""`swamp queue pause | resume | list`: hold work back without stopping what runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from swamp.cli.asking import ask, document, told
from swamp.cli.command import Help, Server, command, group
from swamp.cli.console import Console
from swamp.cli.options import labels
from swamp.cli.table import pairs, table

app = group("Pause and resume the queue, or the part of it that asks for some label.")

_COLUMNS = ("NAME", "STATE", "LABELS", "SINCE", "NOTE")
_COMMENT = (
    "What is held back in the queue; see `swamp queue list`.\n"
    "Set `paused: false` to let it go on. Deleting this file changes nothing."
)

Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="K=V", help="Only steps that ask for this label; may be repeated."
    ),
]
Note = Annotated[
    str | None, typer.Option("--note", help="Why: shown to everybody whose steps wait.")
]


@command(
    app,
    "pause",
    Help(
        "Place no more steps on workers; what runs goes on. Sticky: it holds over restarts.",
        (
            "swamp queue pause --note 'disk swap, back at 14:00'",
            "swamp queue pause --label pool=gpu",
        ),
    ),
)
def pause(console: Console, label: Label = None, note: Note = None) -> None:
    _set(console, label, paused=True, note=note)


@command(
    app,
    "resume",
    Help("Let the queue go on.", ("swamp queue resume", "swamp queue resume --label pool=gpu")),
)
def resume(console: Console, label: Label = None, note: Note = None) -> None:
    _set(console, label, paused=False, note=note)


def _set(console: Console, label: list[str] | None, *, paused: bool, note: str | None) -> None:
    from datastore.kinds import PAUSES

    wanted = labels("", label or [])
    name = ".".join(f"{key}-{value}" for key, value in sorted(wanted.items())) or "all"
    fields = {"labels": wanted or None, "paused": paused, "note": note}
    asked = ask(console, PAUSES, name, fields, _COMMENT)
    what = f"Queue {'paused' if paused else 'resumed'}" + (
        f" for {pairs(wanted)}" if wanted else ""
    )
    state = "paused" if paused else "resumed"
    console.show(document(asked, state=state, labels=wanted), [told(asked, what)])


@command(
    app,
    "list",
    Help("Show the pauses of the queue.", ("swamp queue list", "swamp queue list --json")),
)
def list_pauses(console: Console, server: Server = None) -> None:
    client = console.server(server)
    found = _recorded(console) if client is None else client.get("/api/v1/pauses")
    rows = (
        (one["name"], one["state"], pairs(one["labels"]), one["since"], one.get("note", ""))
        for one in found
    )
    console.show(found, table(_COLUMNS, rows) if found else ["Nothing is paused."])


def _recorded(console: Console) -> list[dict[str, Any]]:
    from datastore.kinds import PAUSES
    from datastore.reader import read_records
    from swamp.views import pause_list

    return pause_list(read_records(console.layout(), PAUSES))
