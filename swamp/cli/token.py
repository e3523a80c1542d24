"""`swamp worker token create | list | revoke`: by the server, or on the records without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from swamp.cli.command import Help, command, group
from swamp.cli.completion import token_names
from swamp.cli.console import Console
from swamp.cli.desired_files import missing_files
from swamp.cli.options import AT_MOST, seconds, token_name
from swamp.cli.table import table
from swamp.limits import COUNT_MOST

if TYPE_CHECKING:
    from datastore.layout import Layout

app = group("Enrollment tokens let workers in.")

_COLUMNS = ("NAME", "STATE", "EXPIRES", "ENROLLMENTS")
TokenName = Annotated[str, typer.Argument(help="The token's name.", autocompletion=token_names)]


@command(
    app,
    "create",
    Help(
        "Create a token and print it, this once.\n\n"
        "A worker that enrolls with it has the token's name; with --max-enrollments above 1, the "
        "name and a part of its own.",
        (
            "swamp worker token create w1 --duration 1h",
            "swamp worker token create fleet --duration 7d --max-enrollments unlimited --json",
        ),
    ),
)
def create(
    console: Console,
    name: TokenName,
    duration: Annotated[
        str, typer.Option(metavar="DURATION", help="How long workers may enroll with it.")
    ],
    max_enrollments: Annotated[
        str,
        typer.Option(
            metavar="N|unlimited", help=f"How many machines may enroll with it, {AT_MOST}."
        ),
    ] = "1",
) -> None:
    duration_s, most = seconds("--duration", duration), _most(max_enrollments)
    token_name(name)
    layout = console.layout()
    client = console.local_server(layout)
    if client is not None:
        body = {"name": name, "durationS": duration_s, "maxEnrollments": most}
        document = client.post("/api/v1/tokens", body)
    else:
        document = _create_here(layout, name, duration_s, most)
    console.show(document, [document["token"]])
    console.note(
        f"Shown this once. It lets {_machines(most)} enroll until {document['expiresAt']}:\n"
        "  SWAMP_WORKER_TOKEN=<token> swamp worker connect <url>"
    )


@command(
    app,
    "list",
    Help(
        "Show the tokens: state, expiry, how many machines enrolled.",
        ("swamp worker token list", "swamp worker token list --json"),
    ),
)
def list_tokens(console: Console) -> None:
    client = console.server(None)
    document = _recorded(console.layout()) if client is None else client.get("/api/v1/tokens")
    console.show(document, _lines(document))
    console.recorded(any(one["effectiveState"] == "active" for one in document))


@command(
    app,
    "revoke",
    Help(
        "Revoke a token, for good, and disconnect the workers that enrolled with it.",
        ("swamp worker token revoke w1",),
    ),
)
def revoke(console: Console, name: TokenName) -> None:
    layout = console.layout()
    client = console.local_server(layout)
    if client is not None:
        document = client.post(f"/api/v1/tokens/{quote(name, safe='')}/revoke")
    else:
        document = _revoke_here(layout, name)
    if document["alreadyRevoked"]:
        line = f"Token {name} is {document['state']} already; nothing changed"
    else:
        line = f"Revoked token {name}"
    console.show(document, [line])


def _most(text: str) -> int | Literal["unlimited"]:
    if text == "unlimited":
        return "unlimited"
    is_number = text.isascii() and text.isdigit() and len(text) < 19
    if not (is_number and 1 <= int(text) <= COUNT_MOST):
        raise typer.BadParameter(
            f"--max-enrollments '{text}': expected a number from 1 to {COUNT_MOST}, or unlimited"
        )
    return int(text)


def _machines(most: int | Literal["unlimited"]) -> str:
    if most == "unlimited":
        return "any number of machines"
    return "one machine" if most == 1 else f"{most} machines"


def _create_here(
    layout: Layout, name: str, duration_s: float, most: int | Literal["unlimited"]
) -> dict[str, Any]:
    import asyncio

    from datastore.clock import SystemClock
    from swamp import tokens
    from swamp.cli.locked_store import with_store

    request = tokens.TokenRequest(name, duration_s, most)
    now = SystemClock().now()
    return asyncio.run(with_store(layout, lambda store: tokens.create(store, layout, request, now)))


def _revoke_here(layout: Layout, name: str) -> dict[str, Any]:
    import asyncio

    from datastore.clock import SystemClock
    from swamp import tokens
    from swamp.cli.locked_store import with_store

    now = SystemClock().now()
    return asyncio.run(with_store(layout, lambda store: tokens.revoke(store, layout, name, now)))


def _recorded(layout: Layout) -> list[dict[str, Any]]:
    from datastore.clock import SystemClock
    from datastore.kinds import TOKENS, WORKERS
    from datastore.reader import read_records
    from swamp.views import token_list

    now = SystemClock().now()
    return token_list(read_records(layout, TOKENS), read_records(layout, WORKERS), now)


def _lines(tokens: list[dict[str, Any]]) -> list[str]:
    if not tokens:
        return ["No tokens. Create one: swamp worker token create <name> --duration 1h"]
    hints = missing_files(tokens)
    lines = table(_COLUMNS, (_row(token) for token in tokens))
    return [*lines, "", *hints] if hints else lines


def _row(token: dict[str, Any]) -> tuple[str, ...]:
    return (
        token["name"],
        token["effectiveState"],
        token["expiresAt"],
        f"{token['bindingCount']}/{token['maxEnrollments']}",
    )


def declare(parent: typer.Typer) -> None:
    """Add the group to another one."""
    parent.add_typer(app, name="token")
