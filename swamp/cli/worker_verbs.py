"""`swamp worker cordon | uncordon | drain | forget`: whether workers get steps, and stay at all.

What is asked of a worker stands in its desired file; only `forget` changes the records at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from datastore.errors import NotFound
from swamp.cli.asking import Asked, ask, document, told
from swamp.cli.command import Help, command
from swamp.cli.completion import worker_names
from swamp.cli.console import Console
from swamp.cli.options import labels

if TYPE_CHECKING:
    from datastore.layout import Layout

OneName = Annotated[str, typer.Argument(help="The worker's name.", autocompletion=worker_names)]
Name = Annotated[
    str | None,
    typer.Argument(help="The worker's name.", autocompletion=worker_names),
]
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
        Help(
            "Give workers steps again, and let those come back that were drained. The note of the "
            "cordon goes with it.",
            ("swamp worker uncordon w1",),
        ),
    )(uncordon)

    command(
        app,
        "drain",
        Help(
            "Let workers finish what they run and leave. Sticky: whenever they come back while "
            "this is asked they leave again; uncordon takes it back.",
            ("swamp worker drain w1 --note 'new kernel'", "swamp worker drain --label rack=7"),
        ),
    )(drain)
    command(
        app,
        "forget",
        Help(
            "Remove the record of a worker that is away and what commands asked of it, and free "
            "its place in its token's allowance. Another machine may then enroll in its place.",
            ("swamp worker forget w1",),
        ),
    )(forget)


def cordon(console: Console, name: Name = None, label: Label = None, note: Note = None) -> None:
    names = _named(console, name, label)
    _set(console, names, "Cordoned", {"schedulable": False, **_given(note)})


def uncordon(console: Console, name: Name = None, label: Label = None, note: Note = None) -> None:
    names = _named(console, name, label)
    # Without a new note the old one goes: it said why there were no steps.
    _set(console, names, "Uncordoned", {"schedulable": True, "drain": False, "note": note})


def drain(console: Console, name: Name = None, label: Label = None, note: Note = None) -> None:
    _set(console, _named(console, name, label), "Draining", {"drain": True, **_given(note)})


def forget(console: Console, name: OneName) -> None:
    from swamp.client import local_client

    layout = console.layout()
    client = local_client(layout)
    if client is not None:
        document = client.post(f"/api/v1/workers/{quote(name, safe='')}/forget")
    else:
        document = _forget_here(layout, name)
    lines = [f"Forgot worker {name}: its place with token {document['token']} is free"]
    console.show(document, [*lines, *filter(None, (document.get("fileStays"),))])


def _forget_here(layout: Layout, name: str) -> dict[str, Any]:
    import asyncio

    from swamp import worker_files
    from swamp.cli.locked_store import with_store

    return asyncio.run(with_store(layout, lambda store: worker_files.forget(store, layout, name)))


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
            raise _unknown(console.layout(), name)
        return [name]
    wanted = labels("", label or [])
    found = sorted(w for w, has in known.items() if wanted.items() <= has.items())
    if not found:
        raise NotFound("no worker has these labels; see `swamp worker list --all`")
    return found


def _unknown(layout: Layout, name: str) -> NotFound:
    """Why nothing can be asked of it, and what is asked all the same."""
    from controllers.forgetting import no_such_worker
    from swamp.worker_files import what_stays

    stays = what_stays(layout, name)
    return no_such_worker(name) if stays is None else NotFound(f"{no_such_worker(name)}; {stays}")


def _given(note: str | None) -> dict[str, str]:
    return {} if note is None else {"note": note}


def _set(
    console: Console, names: list[str], verb: str, fields: dict[str, bool | str | None]
) -> None:
    from datastore.kinds import WORKERS
    from swamp.worker_files import COMMENT

    done: list[Asked] = [ask(console, WORKERS, name, fields, COMMENT) for name in names]
    flags = {key: value for key, value in fields.items() if key != "note"}
    console.show(
        {"workers": [document(one, **flags) for one in done], "count": len(done)},
        [told(one, f"{verb} {one.name}") for one in done],
    )
