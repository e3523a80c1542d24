"""`swamp data put | list | get | versions`: outputs of steps. Reading needs no server: it is files.

`put` is for steps: it finds where to and as whom in its environment.
"""

from __future__ import annotations

import mimetypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datastore.errors import NotFound
from datastore.regular_file import open_to_read
from swamp.cli.command import Help, command, group
from swamp.cli.completion import model_names
from swamp.cli.console import Console
from swamp.cli.options import AT_MOST, number
from swamp.cli.table import table
from swamp.dialling import fits_header

if TYPE_CHECKING:
    from datastore.layout import Layout
    from datastore.outputs import OutputFiles, StoredOutput

app = group("Outputs that steps have written: versions that never change.")

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="The model's name.", autocompletion=model_names)
]
OutputName = Annotated[str, typer.Argument(metavar="NAME", help="The output's name.")]


@command(
    app,
    "put",
    Help(
        "Put an output, from inside a step that declares it: `outputs: [NAME]`.\n\n"
        "It is durable, and a version of its own, when the command ends. A server that is away is "
        "tried again for a minute.",
        ("swamp data put report report.json", "make-report | swamp data put report -"),
    ),
)
def put(
    console: Console,
    name: OutputName,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="What to put; - is stdin.")],
    content_type: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="Its media type.  [default: by the file's name]"),
    ] = None,
) -> None:
    from swamp.upload import Patience, put_output

    guessed = mimetypes.guess_type(name if file == "-" else file)[0]
    if content_type is not None and not fits_header(content_type):
        raise typer.BadParameter("--content-type: expected one like text/plain")
    kind = content_type or guessed or "application/octet-stream"
    patience = Patience(notice=console.note, detail=console.detail)
    if file == "-":
        answer = put_output(os.environ, name, sys.stdin.buffer, kind, patience)
    else:
        with Path(file).open("rb") as opened:
            answer = put_output(os.environ, name, opened, kind, patience)
    line = f"Put {answer['name']}, version {answer['version']}: {answer['size']} bytes"
    console.show(answer, [line])


@command(
    app,
    "list",
    Help(
        "Show the outputs of a model, each with its latest version.",
        ("swamp data list probe", "swamp data list probe --json"),
    ),
)
def list_outputs(console: Console, model: ModelName) -> None:
    files = _files(console, model)
    stored = [files.read(model, name) for name in files.names(model)]
    items = [_item(one) for one in stored]
    groups = [{"type": "output", "items": items}] if items else []
    document = {"modelName": model, "groups": groups, "total": len(items)}
    rows = [
        (one.name, str(one.version), str(one.size), one.content_type, one.created_at)
        for one in stored
    ]
    lines = table(("NAME", "VERSION", "BYTES", "TYPE", "CREATED"), rows)
    console.show(document, lines if rows else [f"Model {model} has no outputs"])


@command(
    app,
    "versions",
    Help(
        "Show the versions of an output, the latest first.",
        ("swamp data versions probe result",),
    ),
)
def versions(console: Console, model: ModelName, name: OutputName) -> None:
    files = _files(console, model)
    stored = [files.read(model, name, number) for number in reversed(files.versions(model, name))]
    document = {
        "dataName": name,
        "modelName": model,
        "versions": [
            {**_item(one), "checksum": one.sha256, "isLatest": number == 0}
            for number, one in enumerate(stored)
        ],
        "total": len(stored),
    }
    rows = [
        (str(one.version), str(one.size), one.created_at, one.origin.run, one.origin.step)
        for one in stored
    ]
    console.show(document, table(("VERSION", "BYTES", "CREATED", "RUN", "STEP"), rows))


@command(
    app,
    "get",
    Help(
        "Print an output, the latest version if not told otherwise.\n\n"
        "With --json: what is known of it, and its content if that is text of at most 1 MiB.",
        (
            "swamp data get probe result",
            "swamp data get probe result --version 3 --output result.json",
        ),
    ),
)
def get(
    console: Console,
    model: ModelName,
    name: OutputName,
    version: Annotated[
        int | None,
        typer.Option(parser=number("--version", 1), metavar="N", help=f"This version, {AT_MOST}."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it to a file.")
    ] = None,
) -> None:
    files = _files(console, model)
    stored = files.read(model, name, version)
    if output is not None:
        files.copy(stored, output)
        console.note(f"Wrote version {stored.version}, {stored.size} bytes, to {output}")
    if console.json:
        console.show(_document(files, stored), ())
    elif output is None:
        _print_raw(files, stored)


def _files(console: Console, model: str) -> OutputFiles:
    """The outputs there are; NotFound for a model that has none and is defined nowhere. ShutOut."""
    from datastore.outputs import OutputFiles
    from datastore.shut_out import refuse_if_shut_out

    layout = console.layout()
    refuse_if_shut_out(layout)
    files = OutputFiles(layout)
    if not files.names(model):
        _refuse_unknown(layout, model)
    return files


def _refuse_unknown(layout: Layout, model: str) -> None:
    """NotFound, with a near name, unless a file or a step of a workflow defines the model."""
    from datastore.definitions import Catalog
    from datastore.definitions.suggest import did_you_mean

    catalog = Catalog(layout.root)
    catalog.scan()
    tasks = (step.task for w in catalog.workflows() for job in w.jobs for step in job.steps)
    known = {name for one in catalog.models() for name in (one.name, one.id)}
    known |= {task.model_name for task in tasks if task.model_name is not None}
    if model not in known:
        advice = did_you_mean(model, known) or "see `swamp model list`"
        raise NotFound(f"no model '{model}' and no outputs of one; {advice}")


def _item(stored: StoredOutput) -> dict[str, Any]:
    return {
        "name": stored.name,
        "version": stored.version,
        "contentType": stored.content_type,
        "type": "output",
        "streaming": False,
        "size": stored.size,
        "createdAt": stored.created_at,
    }


def _document(files: OutputFiles, stored: StoredOutput) -> dict[str, Any]:
    from datastore.outputs import InvalidOutput

    origin = stored.origin
    document = {
        **_item(stored),
        "modelName": origin.model,
        "checksum": stored.sha256,
        "contentPath": str(files.raw(stored)),
        "ownerDefinition": {
            "ownerType": "workflow-step",
            "ownerRef": origin.dispatch,
            "workflowRunId": origin.run,
            "jobName": origin.job,
            "stepName": origin.step,
        },
    }
    try:
        document["content"] = files.content(origin.model, stored.name, stored.version)
    except InvalidOutput:
        document["content"] = None
    return document


def _print_raw(files: OutputFiles, stored: StoredOutput) -> None:
    with open_to_read(files.raw(stored)) as file:
        while data := file.read(1 << 20):
            sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def declare(parent: typer.Typer) -> None:
    """Add the group to another one."""
    parent.add_typer(app, name="data")
