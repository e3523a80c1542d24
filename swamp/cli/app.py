"""The tree of commands. Modules of commands import what is heavy inside the commands only."""

from __future__ import annotations

from swamp.cli.command import group

app = group(
    "Run the steps of workflows on a fleet of workers. Start with `swamp init`.",
    {
        "init": "init",
        "serve": "serve",
        "demo": "demo",
        "doctor": "doctor",
        "version": "version",
        "repo": "repository",
        "vault": "vault",
        "data": "data",
        "model": "model",
        "workflow": "workflow",
        "run": "run",
        "worker": "worker",
        "queue": "queue",
        "access": "access",
    },
    completion=True,
)
