"""`swamp init`, also `swamp repo init`: make a folder a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swamp.cli.command import Help, command
from swamp.cli.console import Console

_HELP = Help(
    "Make a folder a swamp repository: .swamp.yaml, folders, and a line in .gitignore.\n\n"
    "Safe to run again: what is there stays as it is.",
    ("swamp init", "swamp init my-fleet", "swamp init --json"),
)
NEXT_STEPS = (
    "swamp serve",
    "swamp worker token create w1 --duration 1h",
    "swamp workflow run <workflow> --server http://127.0.0.1:9090",
)


def init(
    console: Console,
    path: Annotated[
        Path | None, typer.Argument(help="The folder; the current one if not given.")
    ] = None,
) -> None:
    from datastore.clock import SystemClock
    from datastore.marker import VERSION
    from datastore.repository_init import initialize

    made = initialize(path or console.repo_dir or Path.cwd(), SystemClock().now())
    document = {
        "path": str(made.root),
        "version": VERSION,
        "initializedAt": made.initialized_at,
        "alreadyInitialized": not made.is_new,
        "gitignoreAction": made.gitignore,
        "nextSteps": list(NEXT_STEPS),
    }
    lines = [
        f"Initialized a swamp repository in {made.root}"
        if made.is_new
        else f"{made.root} is a swamp repository already; anything missing was added"
    ]
    if made.is_new and not console.quiet:
        lines += ["", "Next:", *(f"  {step}" for step in NEXT_STEPS)]
    console.show(document, lines)


def declare(parent: typer.Typer) -> None:
    """Add `init` to a group of commands."""
    command(parent, "init", _HELP)(init)
