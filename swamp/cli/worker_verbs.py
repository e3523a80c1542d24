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
from swamp.cli.console import Console
from swamp.cli.options import labels

if TYPE_CHECKING:
    from datastore.layout import Layout
    from datastore.store import Store

_COMMENT = (
    "What is asked of this worker; see `swamp worker list`.\n"
    "Deleting this file changes nothing; `schedulable: true` lets it have steps again,\n"
    "`drain: false` lets it stay when it comes back."
)

OneName = Annotated[str, typer.Argument(help="The worker's name.")]
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
            "Remove the record of a worker that is away, and free its place in its token's "
            "allowance. Another machine may then enroll with the token in its place.",
            ("swamp worker forget w1",),
        ),
    )(forget)


def cordon(console: Console, name: Name = None, label: Label = None, note: Note = None) -> None:
    _set(console, _named(console, name, label), "Cordoned", schedulable=False, note=note)


def uncordon(console: Console, name: Name = None, label: Label = None, note: Note = None) -> None:
    names = _named(console, name, label)
    _set(console, names, "Uncordoned", schedulable=True, drain=False, note=note)


def drain(console: Console, name: Name = None, label: Label = None, note: Note = None) -> None:
    _set(console, _named(console, name, label), "Draining", drain=True, note=note)


def forget(console: Console, name: OneName) -> None:
    from swamp.client import local_client

    layout = console.layout()
    client = local_client(layout)
    if client is not None:
        document = client.post(f"/api/v1/workers/{quote(name, safe='')}/forget")
    else:
        document = _forget_here(layout, name)
    console.show(
        document, [f"Forgot worker {name}: its place with token {document['token']} is free"]
    )


def _forget_here(layout: Layout, name: str) -> dict[str, Any]:
    import asyncio

    from controllers.forgetting import forget_worker
    from swamp.cli.locked_store import with_store

    async def act(store: Store) -> dict[str, Any]:
        worker = forget_worker(store, name)
        await store.barrier()
        assert worker.status is not None
        return {"name": worker.name, "token": worker.status.token}

    return asyncio.run(with_store(layout, act))


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


def _set(console: Console, names: list[str], verb: str, *, note: str | None, **flags: bool) -> None:
    from datastore.kinds import WORKERS

    fields = {**flags, "note": note}
    done: list[Asked] = [ask(console, WORKERS, name, fields, _COMMENT) for name in names]
    console.show(
        {"workers": [document(one, **flags) for one in done], "count": len(done)},
        [told(one, f"{verb} {one.name}") for one in done],
    )
