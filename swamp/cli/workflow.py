"""`swamp workflow list | show | validate | run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datastore.regular_file import read_bytes
from swamp.cli.command import Help, Server, command, group
from swamp.cli.completion import workflow_names
from swamp.cli.console import Console
from swamp.cli.definition_files import (
    add_rivals,
    broken,
    chosen,
    finding_lines,
    in_force,
    look_at_all,
    passed_over,
    problem_lines,
    validation,
)
from swamp.cli.follow import OnInterrupt
from swamp.cli.options import number
from swamp.cli.table import table

if TYPE_CHECKING:
    from datastore.definitions import Catalog, Workflow
    from datastore.yaml_loader import Document
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
    problems = problem_lines(console, catalog, "workflows")
    document = {"results": results, "problems": problems}
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
    found = chosen(look_at_all(layout, layout.workflows), "workflow", name)
    file, remark = in_force(console, found)
    if file.document is None:
        assert file.problem is not None
        raise file.problem
    text = read_bytes(layout.root / file.path).decode()
    lines = [f"# {file.path}", *text.splitlines()]
    console.show({**file.document.value, "path": file.path}, lines)
    if remark is not None:
        console.note(remark)


@command(
    app,
    "validate",
    Help(
        "Check these workflows, or all of them: keys, types, names, dependencies, cycles, "
        "expressions, and the models and arguments of steps.",
        (
            "swamp workflow validate",
            "swamp workflow validate build deploy",
            "swamp workflow validate deploy --json",
        ),
    ),
)
def validate(
    console: Console,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Their names or ids; all if not given.",
            autocompletion=workflow_names,
        ),
    ] = None,
) -> None:
    from datastore.definitions import Catalog

    layout = console.layout()
    files = list(look_at_all(layout, layout.workflows))
    if names:
        named = [file for name in names for file in chosen(files, "workflow", name)]
        # A name given twice, or one beside its id, is one workflow.
        files = list({file.path: file for file in named}.values())
    catalog = Catalog(layout.root)
    catalog.scan()
    if not names:
        files += passed_over(catalog, "workflows", files)
    results = [_checked(file, catalog) for file in files]
    add_rivals(console, catalog, results)
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
    is_one = names is not None and len(names) == len(results) == 1
    console.show(results[0] if is_one else document, [*lines, summary])
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
        typer.Option(
            parser=number("--priority", 1, 5),
            metavar="N",
            help="1 (most urgent) to 5; else what the workflow says.",
        ),
    ] = None,
    on_interrupt: Annotated[
        OnInterrupt,
        typer.Option(
            help="What Ctrl-C, SIGTERM or SIGHUP do to the run of a server; "
            "one without is cancelled."
        ),
    ] = OnInterrupt.ASK,
) -> None:
    from swamp.cli.follow import Watch, code_of, follow, signals_interrupt
    from swamp.cli.here import run_here
    from swamp.cli.inputs import read_inputs
    from swamp.cli.run_lines import RunLines

    body: dict[str, Any] = {"workflow": name, "inputs": read_inputs(input_ or [], input_file)}
    if priority is not None:
        body["priority"] = priority
    lines = RunLines(verbose=console.verbose)
    client = console.server(server, needs_it=True)
    if client is None:
        run_here(console, body, lines)
        return
    with signals_interrupt():
        try:
            started = client.post("/api/v1/runs", body)
        except KeyboardInterrupt as interrupt:
            console.note("The server may have taken the run on already; see: swamp run list")
            raise typer.Exit(code_of(interrupt)) from None
        console.detail(f"run {started['id']}")
        for warning in started.get("warnings", ()):
            console.warn(warning)
        follow(console, Watch(client, started["id"], 0, on_interrupt, server), lines)


def _checked(file: Looked, catalog: Catalog) -> dict[str, Any]:
    from datastore.definitions import check_workflow, workflow_from_source

    if file.document is None:
        assert file.problem is not None
        name, identity, validations = file.path, "", [broken(file.problem)]
    else:
        value = file.document.value
        name, identity = str(value.get("name", file.path)), str(value.get("id", ""))
        validations = [validation(one) for one in check_workflow(file.document, file.path)]
        if all(one["passed"] for one in validations):
            workflow = workflow_from_source(value)
            validations += _preflight(workflow, file.document, file.path, catalog)
    return {
        "workflowId": identity,
        "workflowName": name,
        "path": file.path,
        "validations": validations,
        "totalWarnings": sum("warning" in one for one in validations),
        "passed": all(one["passed"] for one in validations),
    }


def _preflight(
    workflow: Workflow, document: Document, path: str, catalog: Catalog
) -> list[dict[str, Any]]:
    """What a server would refuse to start; one finding also for each check that passed."""
    from controllers.run.preflight import CHECKS, preflight
    from datastore.definitions import Finding
    from swamp.execute.calls import check_written

    troubles = list(preflight(workflow, catalog.model, check_written))
    failed = {one.check for one in troubles}
    findings = [Finding(check, True, path) for check in CHECKS if check not in failed]
    for one in troubles:
        position = document.position(*one.keys)
        findings.append(Finding(one.check, False, path, one.text, position=position))
    return [validation(finding) for finding in findings]


def _list_lines(results: list[dict[str, Any]]) -> list[str]:
    if not results:
        return ["No workflows: write one to workflows/<name>.yaml"]
    rows = (
        (one["name"], str(one["jobCount"]), str(one["stepCount"]), one["description"])
        for one in results
    )
    return table(_COLUMNS, rows)


def declare(parent: typer.Typer) -> None:
    """Add the group to another one."""
    parent.add_typer(app, name="workflow")
