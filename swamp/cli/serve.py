"""`swamp serve`: flags to options, reports to lines."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from swamp.cli.command import Help, command
from swamp.cli.console import Console
from swamp.cli.options import seconds

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9090
DEFAULT_GRACE = "60s"

_HELP = Help(
    "Serve this repository: schedule its runs onto workers, answer commands and browsers.\n\n"
    "Stop it with Ctrl-C or SIGTERM: runs stay alive for the next start. With --json one compact "
    "JSON line per report. Defaults may be set in .swamp.yaml.",
    ("swamp serve", "swamp serve --port 8080 --queue-timeout 30m"),
)


def serve(
    console: Console,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Listen here; 0 takes a free one.  [default: 9090]"),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Listen on this address.  [default: 127.0.0.1]")
    ] = None,
    no_schedule: Annotated[
        bool, typer.Option("--no-schedule", help="Start no runs by schedule.")
    ] = False,
    queue_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            envvar="SWAMP_QUEUE_TIMEOUT",
            help="How long a step waits for a worker; 0 for ever.  [default: 10m]",
        ),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long a worker that lost its connection may take to come back.  "
            "[default: 60s]",
        ),
    ] = None,
    recover_leases: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="After a start, wait so long for workers that still run steps; 0 gives those "
            "steps up at once.  [default: as --grace]",
        ),
    ] = None,
    keep_runs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Keep the records of so many finished runs; the stories of all stay in "
            "datastore/history/.  [default: 500]",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow an address that other machines can reach."),
    ] = False,
    no_file_events: Annotated[
        bool,
        typer.Option(
            "--no-file-events",
            help="Look for edits of files every 30 s only, say on a network file system.",
        ),
    ] = False,
) -> None:
    from swamp.cli.settings import kept, serve_settings
    from swamp.serve.app import ServeOptions, run_serve
    from swamp.serve.data_plane import OUTPUT_MAX_BYTES

    layout = console.layout()
    settings = serve_settings(layout)
    waits = queue_timeout or settings.queue_timeout
    options = ServeOptions(
        root=layout.root,
        host=host or settings.host or DEFAULT_HOST,
        port=next(one for one in (port, settings.port, DEFAULT_PORT) if one is not None),
        queue_timeout_s=None if waits is None else seconds("--queue-timeout", waits, zero=True),
        grace_s=seconds("--grace", grace or settings.grace or DEFAULT_GRACE),
        recover_leases_s=(
            None
            if recover_leases is None
            else seconds("--recover-leases", recover_leases, zero=True)
        ),
        schedule=not no_schedule,
        insecure=insecure,
        file_events=not no_file_events,
        keep=kept(layout, keep_runs),
        output_max_bytes=settings.output_limit_bytes or OUTPUT_MAX_BYTES,
    )
    code = run_serve(options, lambda report: console.event(report, serve_line(report)))
    if code:
        raise typer.Exit(code)


def declare(parent: typer.Typer) -> None:
    """Add `serve` to a group of commands."""
    command(parent, "serve", _HELP)(serve)


def serve_line(report: dict[str, Any]) -> str | None:
    """One report of the server for people; None for what needs no line."""
    status = report.get("status")
    if status == "listening":
        return f"Listening on {report['url']} (stop with Ctrl-C)"
    if status == "stopping":
        return "Stopping; runs stay alive for the next start"
    if status == "stopped":
        return "Stopped"
    if report.get("kind") == "boot_sweep":
        return f"Found at the start: {report['summary']}"
    if report.get("kind") == "warning":
        return f"Warning: {report['message']}"
    text = report.get("message") or report.get("summary")
    return None if text is None else str(text)
