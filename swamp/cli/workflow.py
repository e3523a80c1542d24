"""`swamp workflow list | show | validate | run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swamp.cli.command import Help, Server, command, group
from swamp.cli.completion import workflow_names
from swamp.cli.console import Console
from swamp.cli.definition_files import (
    add_rivals,
    broken,
    chosen,
    finding_lines,
    look_at_all,
    validation,
)
from swamp.cli.follow import OnInterrupt
from swamp.cli.table import table

if TYPE_CHECKING:
    from swamp.cli.definition_files import Looked

app = group("Workflows say which steps run, in which order, and where.")

_COLUMNS = ("NAME", "JOBS", "STEPS", "DESCRIPTION")
Name = Annotated[
    str, typer.Argument(help="The workflow's name or id.", autocompletion=workflow_names)
]


@command(
    app,
    "list",
    Help("Show the workflows.", ("swamp workflow list", "swamp workflow list --json")),
)
def list_workflows(console: Console) -> None:
    from datastore.definitions import Catalog

    catalog = Catalog(console.layout().root)
    catalog.scan()
    results = [
        {
            "id": workflow.id,
            "name": workflow.name,
            "description": workflow.description or "",
            "jobCount": len(workflow.jobs),
            "stepCount": sum(len(job.steps) for job in workflow.jobs),
            "hasInputs": workflow.inputs is not None,
        }
        for workflow in catalog.workflows()
    ]
    problems = [one for one in catalog.problems() if one.path.startswith("workflows")]
    document = {"results": results, "problems": [str(problem) for problem in problems]}
    console.show(document, _list_lines(results))
    for problem in problems:
        console.note(f"not in force: {problem}")


@command(
    app,
    "show",
    Help("Show a workflow as it is written.", ("swamp workflow show deploy",)),
)
def show(console: Console, name: Name) -> None:
    layout = console.layout()
    file = chosen(look_at_all(layout, layout.workflows), "workflow", name)[0]
    if file.document is None:
        assert file.problem is not None
        raise file.problem
    text = (layout.root / file.path).read_text(encoding="utf-8")
    lines = [f"# {file.path}", *text.splitlines()]
    console.show({**file.document.value, "path": file.path}, lines)


@command(
    app,
    "validate",
    Help(
        "Check one workflow, or all of them: keys, types, names, dependencies, cycles.",
        ("swamp workflow validate", "swamp workflow validate deploy --json"),
    ),
)
def validate(
    console: Console,
    name: Annotated[
        str | None,
        typer.Argument(
            help="The workflow's name or id; all if not given.", autocompletion=workflow_names
        ),
    ] = None,
) -> None:
    layout = console.layout()
    files = chosen(look_at_all(layout, layout.workflows), "workflow", name)
    results = [_checked(file) for file in files]
    add_rivals(layout, results)
    passed = [result for result in results if result["passed"]]
    document: dict[str, Any] = {
        "workflows": results,
        "totalPassed": len(passed),
        "totalFailed": len(results) - len(passed),
        "totalWarnings": sum(result["totalWarnings"] for result in results),
        "passed": len(passed) == len(results),
    }
    lines = [line for result in results for line in finding_lines(result["validations"])]
    summary = f"{len(passed)} of {len(results)} workflows are valid"
    console.show(results[0] if name is not None and len(results) == 1 else document,
                 [*lines, summary])  # fmt: skip
    if not document["passed"]:
        raise typer.Exit(1)


@command(
    app,
    "run",
    Help(
        "Run a workflow and follow it to its end.\n\n"
        "Leaves with 0 only if the run succeeded. With a server the run belongs to that: Ctrl-C "
        "asks whether to cancel it or to leave it running. Without one this command runs it: steps "
        "that need a worker fail, and Ctrl-C cancels it. With --json only the final run is "
        "printed.",
        (
            "swamp workflow run deploy",
            "swamp workflow run deploy --server http://127.0.0.1:9090 --input env=prod",
            'swamp workflow run fan-out --input hosts:json=\'["a","b"]\' --json',
        ),
    ),
)
def run(
    console: Console,
    name: Name,
    server: Server = None,
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="KEY=VALUE",
            help="An input; repeatable. Dots nest keys, KEY:json=… gives JSON.",
        ),
    ] = None,
    input_file: Annotated[
        Path | None, typer.Option(help="A YAML or JSON file with inputs.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(min=1, max=5, help="1 (most urgent) to 5; else what the workflow says."),
    ] = None,
    on_interrupt: Annotated[
        OnInterrupt,
        typer.Option(help="What Ctrl-C does to the run of a server; one without is cancelled."),
    ] = OnInterrupt.ASK,
) -> None:
    from swamp.cli.follow import Watch, follow
    from swamp.cli.here import run_here
    from swamp.cli.inputs import read_inputs
    from swamp.cli.run_lines import RunLines

    body: dict[str, Any] = {"workflow": name, "inputs": read_inputs(input_ or [], input_file)}
    if priority is not None:
        body["priority"] = priority
    body["initiatedBy"] = _who()
    lines = RunLines(verbose=console.verbose)
    client = console.server(server)
    if client is None:
        run_here(console, body, lines)
        return
    started = client.post("/api/v1/runs", body)
    console.detail(f"run {started['id']}")
    follow(console, Watch(client, started["id"], 0, on_interrupt, server), lines)


def _who() -> str:
    """Who starts the run, for those who look later."""
    import getpass
    import socket

    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()


def _checked(file: Looked) -> dict[str, Any]:
    from datastore.definitions import check_workflow

    if file.document is None:
        assert file.problem is not None
        name, identity, validations = file.path, "", [broken(file.problem)]
    else:
        value = file.document.value
        name, identity = str(value.get("name", file.path)), str(value.get("id", ""))
        validations = [validation(one) for one in check_workflow(file.document, file.path)]
    return {
        "workflowId": identity,
        "workflowName": name,
        "path": file.path,
        "validations": validations,
        "totalWarnings": sum("warning" in one for one in validations),
        "passed": all(one["passed"] for one in validations),
    }


def _list_lines(results: list[dict[str, Any]]) -> list[str]:
    if not results:
        return ["No workflows: write one to workflows/<name>.yaml"]
    rows = (
        (one["name"], str(one["jobCount"]), str(one["stepCount"]), one["description"])
        for one in results
    )
    return table(_COLUMNS, rows)
