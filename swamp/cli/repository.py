"""The group of `swamp repo init`."""

from __future__ import annotations

import typer

from swamp.cli.command import group

app = group("Repositories of workflows, models and records.", {"init": "init"})


def declare(parent: typer.Typer) -> None:
    """Add the group to another one."""
    parent.add_typer(app, name="repo")
