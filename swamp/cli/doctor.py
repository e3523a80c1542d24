"""`swamp doctor`: what is wrong in this repository and the way out, with a server and without."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import typer

from datastore.errors import InvalidFile, printable
from swamp.cli.command import Help, command
from swamp.cli.console import Console
from swamp.cli.durations import show_age
from swamp.cli.plain_text import plain

if TYPE_CHECKING:
    from datastore.checkup import Finding
    from datastore.layout import Layout
    from swamp.client import Client

_HELP = Help(
    "Look for what is wrong here: files that are not in force, records that nobody wrote, the "
    "lock, permissions, the disk.\n\n"
    "Changes nothing. Leaves with 1 if there are errors; warnings alone are 0.",
    ("swamp doctor", "swamp doctor --json"),
)
_LEVELS = {"ok": "OK", "warning": "WARN", "error": "ERROR"}
_WIDTH = len("permissions")
_OF_RECORDS = ("lock", "records", "runs", "databases", "permissions")
"""What is not looked at for a user whom `.swamp/` does not let in."""


def doctor(console: Console) -> None:
    from swamp.client import Unreachable

    layout = console.layout()
    client = console.local_server(layout)
    health = None
    if client is not None:
        try:
            health = client.get("/health")
        except Unreachable:
            client = None
    findings = [*_looked_at(layout, client, health)]
    errors = sum(one.level == "error" for one in findings)
    warnings = sum(one.level == "warning" for one in findings)
    document = {
        "ok": not errors,
        "errors": errors,
        "warnings": warnings,
        "server": health,
        "findings": [_document(one) for one in findings],
    }
    console.show(document, _lines(findings, errors, warnings))
    if errors:
        raise typer.Exit(1)


def declare(parent: typer.Typer) -> None:
    """Add `doctor` to a group of commands."""
    command(parent, "doctor", _HELP)(doctor)


def _looked_at(
    layout: Layout, client: Client | None, health: dict[str, Any] | None
) -> Iterator[Finding]:
    from datastore import checkup, checkup_disk
    from datastore.shut_out import shut_out_of

    yield from _versions(health)
    is_served = client is not None or checkup_disk.is_held(layout)
    closed = [*checkup_disk.shut_out(layout)]
    can_tell = not closed and shut_out_of(layout.lock) is None
    yield from _server(health, is_served=is_served if can_tell else None)
    looks: dict[str, Callable[[], Iterable[Finding]]] = {
        "lock": lambda: checkup_disk.lock(layout, answers=client is not None),
        "settings": lambda: _settings(layout, health),
        "files": lambda: _files(layout, client),
        "records": lambda: checkup.records(layout, is_served=is_served),
        "runs": lambda: () if is_served else checkup.left_runs(layout),
        "leftovers": lambda: checkup.leftovers(layout),
        "databases": lambda: checkup_disk.databases(layout),
        "permissions": lambda: checkup_disk.permissions(layout),
        "disk": lambda: [checkup_disk.room(layout, is_served=is_served)],
    }
    if closed:
        yield from closed
        looks = {name: look for name, look in looks.items() if name not in _OF_RECORDS}
    for check, look in looks.items():
        try:
            yield from look()
        except OSError as error:
            # The others are looked at all the same.
            name = error.filename or "the disk"
            yield checkup.cut_short(check, f"{name}: {error.strerror or error}")


def _versions(health: dict[str, Any] | None) -> Iterator[Finding]:
    from datastore.checkup import Finding
    from datastore.checkup_disk import SQLITE_VERSION
    from swamp import __version__
    from swamp.protocol import PROTOCOL_VERSION

    python = ".".join(str(part) for part in sys.version_info[:3])
    text = (
        f"swamp {__version__} (protocol {PROTOCOL_VERSION}), Python {python},"
        f" SQLite {SQLITE_VERSION}, {platform.system()} {platform.machine()}"
    )
    yield Finding("ok", "versions", text)
    if health is not None and health["version"] != __version__:
        other = f"the server is swamp {health['version']}, this command {__version__}"
        yield Finding("warning", "versions", other, "restart the server")


def _server(health: dict[str, Any] | None, *, is_served: bool | None) -> Iterator[Finding]:
    """`is_served`: None where nobody can tell."""
    from datastore.checkup import Finding
    from datastore.way_out import way_out

    if health is None and is_served is None:
        yield Finding("ok", "server", "nobody can tell whether one runs here, see below")
    elif health is None:
        what = "none answers here, though somebody holds the repository"
        yield Finding("ok", "server", what if is_served else "none runs here")
    elif health["degraded"]:
        then = f"{way_out(health['degraded'])}; the server goes on by itself then, nothing is lost"
        yield Finding("error", "server", f"degraded: {health['degraded']}", then)
    else:
        yield Finding("ok", "server", "it answers and takes writes")


def _settings(layout: Layout, health: dict[str, Any] | None) -> Iterator[Finding]:
    from datastore.checkup import Finding
    from swamp.cli.settings import kept, serve_settings

    try:
        serve_settings(layout)
        keep = kept(layout)
    except InvalidFile as error:
        yield Finding("error", "settings", str(error), "mend it; `swamp serve` will not start")
        return
    runs, for_s = keep.runs, keep.for_s
    if health is not None:
        runs, for_s = health["retention"]["keepRuns"], health["retention"]["keepForS"]
    age = f", for {show_age(round(for_s * 1000))} after their end" if for_s else ""
    yield Finding("ok", "retention", f"the newest {runs} finished runs keep their records{age}")


def _files(layout: Layout, client: Client | None) -> Iterator[Finding]:
    """Files of people: as the server sees them, else as they are."""
    from datastore.checkup import Finding, of_problem, people_files

    if client is None:
        problems = [str(problem) for problem in people_files(layout)]
    else:
        problems = [_shown(one) for one in client.get("/api/v1/problems")]
    for problem in problems:
        yield of_problem(problem)
    if not problems:
        yield Finding("ok", "files", "definitions and desired files are in force as they stand")


def _shown(problem: dict[str, Any]) -> str:
    line, column = problem["line"], problem["column"]
    where = problem["path"] if line is None else f"{problem['path']}:{line}:{column}"
    return printable(f"{where}: {problem['problem']}")


def _document(finding: Finding) -> dict[str, Any]:
    document = {"level": finding.level, "check": finding.check, "message": finding.message}
    return document if finding.way_out is None else {**document, "wayOut": finding.way_out}


def _lines(findings: Iterable[Finding], errors: int, warnings: int) -> Iterator[str]:
    for one in findings:
        yield f"{_LEVELS[one.level]:<5}  {one.check:<{_WIDTH}}  {plain(one.message)}"
        if one.way_out is not None:
            yield f"{'':<5}  {'':<{_WIDTH}}  → {one.way_out}"
    yield ""
    if errors or warnings:
        yield f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    else:
        yield "All is well"
