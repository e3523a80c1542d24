"""`swamp worker connect`: this machine as a worker. The token is never printed."""

from __future__ import annotations

import gc
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datastore.errors import SwampError
from swamp.cli.command import CaCert, Help, command
from swamp.cli.console import Console
from swamp.cli.durations import show_duration
from swamp.cli.hidden_argument import hide
from swamp.cli.options import AT_MOST, labels, number, optional_seconds
from swamp.cli.plain_text import plain
from swamp.cli.unread import tell
from swamp.dialling import fits_header

if TYPE_CHECKING:
    from swamp.worker.options import WorkerOptions

_HELP = Help(
    "Work for a server: connect, take dispatches, reconnect when the connection is lost.\n\n"
    "Needs no repository. The first Ctrl-C (or SIGTERM, SIGHUP) finishes what runs and takes "
    "nothing new; the second one stops at once. Give the token by SWAMP_WORKER_TOKEN where "
    "others can see the process list. With --json one compact JSON line per event.",
    (
        "swamp worker connect ws://127.0.0.1:9090 --token w1.…",
        "SWAMP_WORKER_TOKEN=w1.… swamp worker connect ws://host:9090 --label pool=gpu "
        "--concurrency auto",
    ),
)


Url = Annotated[
    str | None,
    typer.Argument(
        envvar="SWAMP_ORCHESTRATOR_URL", help="The server, ws:// or wss:// (http works, too)."
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        metavar="NAME.SECRET",
        envvar="SWAMP_WORKER_TOKEN",
        help="What `worker token create` printed.",
    ),
]
Label = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="A label that steps ask for; repeatable. SWAMP_WORKER_LABELS=a=b,c=d adds more.",
    ),
]
Concurrency = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        envvar="SWAMP_WORKER_CONCURRENCY",
        help="Steps at the same time; auto is the number of CPUs.",
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        envvar="SWAMP_WORKER_CACHE_DIR",
        help="Where this machine's identity is kept; a new folder if not given.",
    ),
]
IdleTimeout = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        envvar="SWAMP_WORKER_IDLE_TIMEOUT",
        help="Stop after this long without work.",
    ),
]
MaxDispatches = Annotated[
    int | None,
    typer.Option(
        parser=number("--max-dispatches", 1),
        metavar="N",
        envvar="SWAMP_WORKER_MAX_DISPATCHES",
        help=f"Stop after this many dispatches, {AT_MOST}.",
    ),
]
NoReconnect = Annotated[
    bool, typer.Option("--no-reconnect", help="Stop when the connection is lost.")
]
DrainTimeout = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="When draining, kill what still runs after this long; without it, wait.",
    ),
]


def connect(
    console: Console,
    url: Url = None,
    token: Token = None,
    label: Label = None,
    concurrency: Concurrency = "1",
    cache_dir: CacheDir = None,
    idle_timeout: IdleTimeout = None,
    max_dispatches: MaxDispatches = None,
    no_reconnect: NoReconnect = False,
    drain_timeout: DrainTimeout = None,
    ca_cert: CaCert = None,
) -> None:
    if not url:
        raise typer.BadParameter("no server: give its URL or set SWAMP_ORCHESTRATOR_URL")
    if not token:
        raise typer.BadParameter("no token: give --token or set SWAMP_WORKER_TOKEN")
    hide(token)
    token = token.strip()
    if not (all(token.partition(".")) and fits_header(token)):
        # Not shown: a secret alone may have been given.
        raise typer.BadParameter(
            "this is no token: expected NAME.SECRET, as printed by `swamp worker token create`"
        )
    from swamp.worker.options import BadUrl, WorkerOptions, socket_url

    try:
        address = socket_url(url)
    except BadUrl as error:
        raise typer.BadParameter(str(error)) from None
    options = WorkerOptions(
        url=address,
        token=token,
        labels=labels(os.environ.get("SWAMP_WORKER_LABELS", ""), label or []),
        concurrency=slots(concurrency),
        cache_dir=cache_dir,
        idle_timeout_s=optional_seconds("--idle-timeout", idle_timeout),
        max_dispatches=max_dispatches,
        reconnect=not no_reconnect,
        drain_timeout_s=optional_seconds("--drain-timeout", drain_timeout),
        ca_cert=ca_cert,
    )
    _work(console, options)


def declare(parent: typer.Typer) -> None:
    """Add `connect` to a group of commands."""
    command(parent, "connect", _HELP)(connect)


class WorkerStopped(SwampError):
    """The worker ended for another reason than a wish of its owner; `exit_code` says which."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


def _work(console: Console, options: WorkerOptions) -> None:
    # As in `main`: what is loaded stays, and half of a worker is loaded only here.
    gc.disable()
    import asyncio

    from swamp.worker.connect import run_worker

    gc.enable()
    stopped = ["the worker stopped"]

    def report(event: dict[str, Any]) -> None:
        if event["kind"] == "stopped":
            stopped.append(event["reason"])
        line = worker_line(event)
        now = datetime.now(UTC)
        tell(console, event, None if line is None else f"{now:%H:%M:%S} UTC │ {line}")

    code = asyncio.run(run_worker(options, report))
    if code:
        raise WorkerStopped(stopped[-1], code)


def slots(text: str) -> int:
    """How many dispatches at once; a usage error for less than one, or more than fit."""
    from swamp.protocol import CAPACITY_MAX

    if text == "auto":
        return min(os.cpu_count() or 1, CAPACITY_MAX)
    # More digits are no number of ours; reading very many of them is refused by Python itself.
    given = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= given <= CAPACITY_MAX:
        raise typer.BadParameter(
            f"--concurrency '{text[:20]}': expected a number from 1 to {CAPACITY_MAX}, or auto"
        )
    return given


def worker_line(event: dict[str, Any]) -> str | None:
    """One event of a worker for people; None for what needs no line."""
    kind = event.get("kind")
    if kind == "connecting":
        again = f" (attempt {event['attempt']})" if event.get("attempt", 1) > 1 else ""
        return f"connecting to {event['url']}{again}"
    if kind == "enrolled":
        again = " again" if event.get("reconnect") else ""
        return f"enrolled{again} as {event['workerId']}"
    if kind == "dispatch_started":
        return f"started {_what(event)} {_how(event)}"
    if kind == "dispatch_finished":
        how = "done" if event["status"] == "success" else "failed"
        error = f": {event['error']}" if event.get("error") else ""
        took_ms = event.get("durationMs")
        took = "" if took_ms is None else f" in {show_duration(took_ms / 1000)}"
        return f"{how} {_what(event)}{took} {_how(event)}{error}"
    if kind == "retrying":
        return f"trying again in {show_duration(event['delayMs'] / 1000)}"
    if kind in ("disconnected", "draining", "stopped"):
        # What the other end says may hold anything.
        return f"{kind}: {' '.join(plain(event.get('detail') or event['reason']).split())}"
    if kind == "warning":
        return f"warning: {event['message']}"
    return "all work is done" if kind == "drain_complete" else None


def _what(event: dict[str, Any]) -> str:
    return "/".join(event[key] for key in ("workflowName", "stepName") if event.get(key))


def _how(event: dict[str, Any]) -> str:
    return f"({event['modelType']}.{event['methodName']})"
