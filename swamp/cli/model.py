"""`swamp model list | show | validate`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datastore.errors import InvalidFile, SwampError
from datastore.regular_file import read_bytes
from swamp.cli.command import Help, command, group
from swamp.cli.completion import model_names
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
)
from swamp.cli.table import table

if TYPE_CHECKING:
    from datastore.definitions import ModelDefinition
    from datastore.yaml_loader import Document
    from swamp.cli.definition_files import Looked

app = group("Models are what steps call: a type, its arguments and its methods.")

_COLUMNS = ("NAME", "TYPE", "METHODS")


@command(app, "list", Help("Show the models.", ("swamp model list", "swamp model list --json")))
def list_models(console: Console) -> None:
    from datastore.definitions import Catalog

    catalog = Catalog(console.layout().root)
    catalog.scan()
    results = [
        {
            "id": model.id,
            "name": model.name,
            "type": model.type,
            "methods": list(model.methods),
        }
        for model in catalog.models()
    ]
    problems = problem_lines(console, catalog, "models")
    document = {"results": results, "problems": problems}
    console.show(document, _list_lines(results))
    for problem in problems:
        console.note(f"not in force: {problem}")


@command(app, "show", Help("Show a model as it is written.", ("swamp model show build",)))
def show(
    console: Console,
    name: Annotated[
        str, typer.Argument(help="The model's name or id.", autocompletion=model_names)
    ],
) -> None:
    layout = console.layout()
    found = chosen(look_at_all(layout, layout.models), "model", name)
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
        "Check one model, or all of them: keys, type, methods and their arguments.",
        ("swamp model validate", "swamp model validate build --json"),
    ),
)
def validate(
    console: Console,
    name: Annotated[
        str | None,
        typer.Argument(
            help="The model's name or id; all if not given.", autocompletion=model_names
        ),
    ] = None,
) -> None:
    from datastore.definitions import Catalog

    layout = console.layout()
    files = chosen(look_at_all(layout, layout.models), "model", name)
    catalog = Catalog(layout.root)
    catalog.scan()
    if name is None:
        files += passed_over(catalog, "models", files)
    results = [_checked(file) for file in files]
    add_rivals(console, catalog, results)
    passed = [result for result in results if result["passed"]]
    document = {
        "models": results,
        "totalPassed": len(passed),
        "totalFailed": len(results) - len(passed),
        "passed": len(passed) == len(results),
    }
    lines = [line for result in results for line in finding_lines(result["validations"])]
    console.show(document, [*lines, f"{len(passed)} of {len(results)} models are valid"])
    if not document["passed"]:
        raise typer.Exit(1)


def _checked(file: Looked) -> dict[str, Any]:
    validations = [broken(file.problem)] if file.problem is not None else []
    name = file.path
    if file.document is not None:
        name = str(file.document.value.get("name", file.path))
        validations = _checks(file.document, file.path)
    return {
        "modelName": name,
        "path": file.path,
        "validations": validations,
        "passed": all(one["passed"] for one in validations),
    }


def _checks(document: Document, path: str) -> list[dict[str, Any]]:
    from datastore.definitions import ModelDefinition
    from datastore.definitions.problems import find_problems

    model, problems = find_problems(ModelDefinition, document)
    if model is None:
        return [broken(InvalidFile(path, one.text, one.position)) for one in problems]
    well = {"name": "Schema validation", "passed": True, "path": path}
    return [well, *_method_checks(model, document, path)]


def _method_checks(model: ModelDefinition, document: Document, path: str) -> list[dict[str, Any]]:
    """Whether each method exists and takes what the model gives it."""
    from datastore.kinds import Call
    from swamp.execute.calls import check_written

    checks = []
    for method, written in model.methods.items():
        check: dict[str, Any] = {"name": f"Method '{method}'", "passed": True, "path": path}
        try:
            # The step may bring the rest, and expressions are values only at run time.
            arguments = {"run": "-"} | written.arguments
            computed = [key for key, value in arguments.items() if "${{" in json.dumps(value)]
            literal = {key: value for key, value in arguments.items() if key not in computed}
            call = Call(model_type=model.type, model=model.name, method=method, arguments=literal)
            check_written(call, computed)
        except SwampError as error:
            argument = getattr(error, "argument", None)
            inner = () if argument is None else ("arguments", argument)
            where = document.position("methods", method, *inner)
            check |= {"passed": False, "error": str(error)}
            check |= {"line": where.line, "column": where.column}
        checks.append(check)
    return checks


def _list_lines(results: list[dict[str, Any]]) -> list[str]:
    if not results:
        return ["No models: write one to models/<type>/<name>.yaml"]
    return table(
        _COLUMNS, ((one["name"], one["type"], ", ".join(one["methods"])) for one in results)
    )


def declare(parent: typer.Typer) -> None:
    """Add the group to another one."""
    parent.add_typer(app, name="model")
