"""`swamp serve`: flags to options, reports to lines."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from swamp.cli.command import Help, command
from swamp.cli.console import Console
from swamp.cli.options import AT_MOST, number, seconds
from swamp.cli.unread import tell

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9090
DEFAULT_GRACE = "60s"


class Auth(StrEnum):
    """What requests over the network need."""

    NONE = "none"
    TOKEN = "token"


_HELP = Help(
    "Serve this repository: schedule its runs onto workers, answer commands and browsers.\n\n"
    "Stop it with Ctrl-C, SIGTERM or SIGHUP: runs stay alive for the next start. With --json one "
    "compact JSON line per report. Defaults may be set in .swamp.yaml.",
    (
        "swamp serve",
        "swamp serve --port 8080 --queue-timeout 30m",
        "swamp serve --host 0.0.0.0 --auth token --tls-cert cert.pem --tls-key key.pem",
    ),
)


def serve(
    console: Console,
    port: Annotated[
        int | None,
        typer.Option(
            parser=number("--port", 0, 65535),
            metavar="PORT",
            help="Listen here; 0 takes a free one.  [default: 9090]",
        ),
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
            parser=number("--keep-runs", 1),
            metavar="N",
            help=f"Keep the records of so many finished runs, {AT_MOST}; the stories of all stay "
            "in datastore/history/.  [default: 500]",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow an address that other machines can reach without TLS and --auth token, and "
            "requests for any host name: something in front sees to who may ask.",
        ),
    ] = False,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Serve HTTPS and wss with this certificate (PEM)."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key of --tls-cert (PEM).")
    ] = None,
    auth: Annotated[
        Auth,
        typer.Option(
            help="token: requests over the network need an access token "
            "(`swamp access token create`)."
        ),
    ] = Auth.NONE,
    verify_on_enroll: Annotated[
        bool,
        typer.Option(
            "--verify-on-enroll",
            envvar="SWAMP_VERIFY_ON_ENROLL",
            help="Give a worker that enrolls no steps before a probe of it has passed "
            "(`swamp worker verify`).",
        ),
    ] = False,
    no_file_events: Annotated[
        bool,
        typer.Option(
            "--no-file-events",
            help="Look for edits of files every 30 s only, say on a network file system.",
        ),
    ] = False,
) -> None:
    from swamp.cli.logs import log_to
    from swamp.cli.settings import kept, serve_settings
    from swamp.serve.app import run_serve
    from swamp.serve.data_plane import OUTPUT_MAX_BYTES
    from swamp.serve.serve_options import ServeOptions

    log_to(console)
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
        tls=_tls(tls_cert, tls_key),
        auth=auth is Auth.TOKEN,
        file_events=not no_file_events,
        verify_on_enroll=verify_on_enroll,
        keep=kept(layout, keep_runs),
        output_max_bytes=settings.output_limit_bytes or OUTPUT_MAX_BYTES,
    )
    code = run_serve(options, lambda report: tell(console, report, _timed(serve_line(report))))
    if code:
        raise typer.Exit(code)


def _tls(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    if certificate is not None and key is not None:
        return certificate, key
    if certificate is not key:
        raise typer.BadParameter("--tls-cert and --tls-key go together: give both, or neither")
    return None


def declare(parent: typer.Typer) -> None:
    """Add `serve` to a group of commands."""
    command(parent, "serve", _HELP)(serve)


def _timed(line: str | None) -> str | None:
    """The line with the time of day in front, as in the warnings beside it."""
    from datastore.clock import SystemClock
    from swamp.cli.logs import TIME_OF_DAY

    if line is None:
        return None
    return f"{SystemClock().now().astimezone().strftime(TIME_OF_DAY)} {line}"


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
