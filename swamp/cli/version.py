"""`swamp version`."""

from __future__ import annotations

import sys

import typer

from swamp import __version__
from swamp.cli.command import Help, command
from swamp.cli.console import Console


def version(console: Console) -> None:
    from swamp.protocol import PROTOCOL_VERSION

    python = ".".join(str(part) for part in sys.version_info[:3])
    document = {"version": __version__, "protocol": PROTOCOL_VERSION, "python": python}
    console.show(document, [f"swamp {__version__} (protocol {PROTOCOL_VERSION}, Python {python})"])


def declare(parent: typer.Typer) -> None:
    """Add `version` to a group of commands."""
    command(
        parent, "version", Help("Show the version.", ("swamp version", "swamp version --json"))
    )(version)
