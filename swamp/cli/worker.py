"""The group of the worker commands."""

from __future__ import annotations

import typer

from swamp.cli.command import group

app = group(
    "Workers execute the steps of workflows.",
    {
        "connect": "worker_connect",
        "queue": "worker_queue",
        "demand": "worker_queue",
        "cordon": "worker_verbs",
        "uncordon": "worker_verbs",
        "drain": "worker_verbs",
        "forget": "worker_verbs",
        "verify": "worker_verify",
        "list": "worker_list",
        "token": "token",
    },
)


def declare(parent: typer.Typer) -> None:
    """Add the group to another one."""
    parent.add_typer(app, name="worker")
