"""`swamp access token create | list | revoke`: by the server, or on the records without one."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from swamp.cli.command import Help, Server, command, group
from swamp.cli.console import Console
from swamp.cli.desired_files import missing_files
from swamp.cli.options import seconds, token_name
from swamp.cli.table import table

if TYPE_CHECKING:
    from datastore.layout import Layout

app = group("Who may ask this server over the network.")
_tokens = group("Access tokens let clients in, where `swamp serve --auth token` asks for them.")
app.add_typer(_tokens, name="token")

_COLUMNS = ("NAME", "ROLE", "STATE", "EXPIRES", "NOTE")
_API = "/api/v1/access"
Name = Annotated[str, typer.Argument(help="The access token's name.")]


class RoleOption(StrEnum):
    """What the token allows."""

    READ = "read"
    RUN = "run"
    ADMIN = "admin"


@command(
    _tokens,
    "create",
    Help(
        "Create an access token and print it, this once.\n\n"
        "Role read looks, run also starts and cancels runs, admin also does what the repository's "
        "own socket allows: tokens, workers, pruning.",
        (
            "swamp access token create dashboard --role read --duration 90d",
            "swamp access token create ci --role run --duration 12h --note 'nightly job' --json",
        ),
    ),
)
def create(
    console: Console,
    name: Name,
    role: Annotated[RoleOption, typer.Option(help="What it allows.")],
    duration: Annotated[str, typer.Option(metavar="DURATION", help="How long it is good for.")],
    note: Annotated[str | None, typer.Option("--note", help="What it is for.")] = None,
    server: Server = None,
) -> None:
    duration_s = seconds("--duration", duration)
    token_name(name)
    client = console.server(server)
    if client is not None:
        body = {"name": name, "role": role.value, "durationS": duration_s, "note": note}
        document = client.post(_API, body)
    else:
        document = _create_here(console.layout(), name, role, duration_s, note)
    console.show(document, [document["token"]])
    console.note(
        f"Shown this once. It allows '{role.value}' until {document['expiresAt']}:\n"
        "  SWAMP_SERVER_TOKEN=<token> swamp run list --server <url>"
    )


@command(
    _tokens,
    "list",
    Help(
        "Show the access tokens: role, state, expiry.",
        ("swamp access token list", "swamp access token list --json"),
    ),
)
def list_tokens(console: Console, server: Server = None) -> None:
    client = console.server(server)
    document = _recorded(console.layout()) if client is None else client.get(_API)
    console.show(document, _lines(document))


@command(
    _tokens,
    "revoke",
    Help("Revoke an access token, for good.", ("swamp access token revoke ci",)),
)
def revoke(console: Console, name: Name, server: Server = None) -> None:
    client = console.server(server)
    if client is not None:
        document = client.post(f"{_API}/{quote(name, safe='')}/revoke")
    else:
        document = _revoke_here(console.layout(), name)
    if document["alreadyRevoked"]:
        line = f"Access token {name} is {document['state']} already; nothing changed"
    else:
        line = f"Revoked access token {name}"
    console.show(document, [line])


def _create_here(
    layout: Layout, name: str, role: RoleOption, duration_s: float, note: str | None
) -> dict[str, Any]:
    import asyncio

    from datastore.clock import SystemClock
    from swamp import access_tokens
    from swamp.cli.locked_store import with_store

    request = access_tokens.AccessRequest(name, role.value, duration_s, note)
    now = SystemClock().now()
    return asyncio.run(
        with_store(layout, lambda store: access_tokens.create(store, layout, request, now))
    )


def _revoke_here(layout: Layout, name: str) -> dict[str, Any]:
    import asyncio

    from datastore.clock import SystemClock
    from swamp import access_tokens
    from swamp.cli.locked_store import with_store

    now = SystemClock().now()
    return asyncio.run(
        with_store(layout, lambda store: access_tokens.revoke(store, layout, name, now))
    )


def _recorded(layout: Layout) -> list[dict[str, Any]]:
    from datastore.clock import SystemClock
    from datastore.kinds import ACCESS
    from datastore.reader import read_records
    from swamp.access_tokens import access_list

    return access_list(read_records(layout, ACCESS), SystemClock().now())


def _lines(tokens: list[dict[str, Any]]) -> list[str]:
    if not tokens:
        return ["No access tokens. Create one: swamp access token create <name> --role read …"]
    lines = table(_COLUMNS, (_row(token) for token in tokens))
    hints = missing_files(tokens)
    return [*lines, "", *hints] if hints else lines


def _row(token: dict[str, Any]) -> tuple[str, ...]:
    return (
        token["name"],
        token["role"],
        token["state"],
        token["expiresAt"],
        token.get("note", ""),
    )


def declare(parent: typer.Typer) -> None:
    """Add the group to another one."""
    parent.add_typer(app, name="access")
