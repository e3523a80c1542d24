"""The tree of commands. Modules of commands import what is heavy inside the commands only."""

from __future__ import annotations

import sys

import typer

from swamp import __version__
from swamp.cli import (
    access,
    data,
    demo,
    doctor,
    model,
    prune,
    queue,
    repository,
    run,
    serve,
    token,
    vault,
    worker,
    workflow,
)
from swamp.cli.command import Help, command, group
from swamp.cli.console import Console

app = group(
    "Run the steps of workflows on a fleet of workers. Start with `swamp init`.",
    completion=True,
)


def version(console: Console) -> None:
    from swamp.protocol import PROTOCOL_VERSION

    python = ".".join(str(part) for part in sys.version_info[:3])
    document = {"version": __version__, "protocol": PROTOCOL_VERSION, "python": python}
    console.show(document, [f"swamp {__version__} (protocol {PROTOCOL_VERSION}, Python {python})"])


def _groups(parent: typer.Typer) -> None:
    worker.app.add_typer(token.app, name="token")
    parent.add_typer(repository.app, name="repo")
    parent.add_typer(vault.app, name="vault")
    parent.add_typer(data.app, name="data")
    parent.add_typer(model.app, name="model")
    parent.add_typer(workflow.app, name="workflow")
    parent.add_typer(run.app, name="run")
    parent.add_typer(worker.app, name="worker")
    parent.add_typer(queue.app, name="queue")
    parent.add_typer(access.app, name="access")


repository.declare_init(app)
_groups(app)
serve.declare(app)
demo.declare(app)
doctor.declare(app)
prune.declare(run.app)
command(app, "version", Help("Show the version.", ("swamp version", "swamp version --json")))(
    version
)
