"""`swamp queue pause | resume | list`: hold work back without stopping what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from datastore.errors import NotFound
from swamp.cli.asking import ask, document, told
from swamp.cli.command import Help, Server, command, group
from swamp.cli.console import Console
from swamp.cli.options import labels
from swamp.cli.table import pairs, table

if TYPE_CHECKING:
    from datastore.layout import Layout

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
    wanted = labels("", label or [])
    name = ".".join(f"{key}-{value}" for key, value in sorted(wanted.items())) or "all"
    _set(console, [name], wanted, paused=True, note=note)


@command(
    app,
    "resume",
    Help("Let the queue go on.", ("swamp queue resume", "swamp queue resume --label pool=gpu")),
)
def resume(console: Console, label: Label = None, note: Note = None) -> None:
    wanted = labels("", label or [])
    paused = _paused(console)
    names = sorted(name for name, held in paused.items() if held == wanted)
    if not names:
        what = pairs(wanted) or "the whole queue"
        now = ", ".join(f"{pairs(held) or 'the whole queue'} ({name})"
                        for name, held in sorted(paused.items()))  # fmt: skip
        raise NotFound(f"nothing is paused for {what}; paused now: {now or 'nothing'}")
    _set(console, names, wanted, paused=False, note=note)


def _paused(console: Console) -> dict[str, dict[str, str]]:
    """The labels of every pause that holds, or that the next server would take over, by name."""
    layout = console.layout()
    client = console.local_server(layout)
    found = _recorded(layout) if client is None else client.get("/api/v1/pauses")
    return {one["name"]: one["labels"] for one in found if one["state"] == "paused"}


def _set(
    console: Console, names: list[str], wanted: dict[str, str], *, paused: bool, note: str | None
) -> None:
    from datastore.kinds import PAUSES

    # Resumed without a new note, the old one goes: it said why the queue was held back.
    noted = {"note": note} if note is not None or not paused else {}
    fields = {**({"labels": wanted} if wanted else {}), "paused": paused, **noted}
    asked = [ask(console, PAUSES, name, fields, _COMMENT) for name in names]
    what = f"Queue {'paused' if paused else 'resumed'}" + (
        f" for {pairs(wanted)}" if wanted else ""
    )
    state = "paused" if paused else "resumed"
    lines = [told(one, what) for one in asked]
    console.show(document(asked[0], state=state, labels=wanted), lines)


@command(
    app,
    "list",
    Help("Show the pauses of the queue.", ("swamp queue list", "swamp queue list --json")),
)
def list_pauses(console: Console, server: Server = None) -> None:
    client = console.server(server)
    found = _recorded(console.layout()) if client is None else client.get("/api/v1/pauses")
    rows = (
        (one["name"], one["state"], pairs(one["labels"]), _since(one), one.get("note", ""))
        for one in found
    )
    console.show(found, table(_COLUMNS, rows) if found else ["Nothing is paused."])


def _since(pause: dict[str, Any]) -> str:
    return "at the next start" if pause.get("atNextStart") else str(pause["since"])


def _recorded(layout: Layout) -> list[dict[str, Any]]:
    """As the records say, and as files ask that only the next server takes over."""
    from datastore.desired import DesiredTree
    from datastore.kinds import PAUSES
    from datastore.reader import read_records
    from swamp.views import pause_list

    tree = DesiredTree(layout)
    files = {one.name: tree.current(PAUSES, one.name) for one in tree.scan() if one.kind is PAUSES}
    asked = {name: file for name, file in files.items() if file is not None}
    return pause_list(list(read_records(layout, PAUSES)), asked)


def declare(parent: typer.Typer) -> None:
    """Add the group to another one."""
    parent.add_typer(app, name="queue")
