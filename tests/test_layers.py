"""The folder tree is the architecture: who may import whom, who may write files, who loads what."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RANK = {"datastore": 0, "controllers": 1, "swamp": 2}

# The controllers: they meet in the records and nowhere else. Whatever else lies in the package is
# what they are made of, and knows none of them.
INDEPENDENT = ("scheduler", "lease", "enrollment", "access", "run", "boot_sweep", "retention")
WIRING = ("manager",)

ONLY_IN = {
    "typer": ("swamp/cli/",),
    "aiohttp": ("swamp/serve/", "swamp/worker/"),
    "yaml": ("datastore/",),
    "watchfiles": ("datastore/",),
    "sqlite3": ("datastore/", "swamp/cli/doctor.py"),
    "opentelemetry": ("swamp/traces.py", "swamp/serve/metrics_export.py"),
}

# Outside datastore/, these write files: none of them below a repository's datastore/, and in
# .swamp/ only in scratch folders.
MAY_WRITE = {
    "swamp/cli/demo.py": "the definitions of the scratch repository, and logs",
    "swamp/execute/removal.py": "what is deep is moved up before it is removed",
    "swamp/execute/scratch.py": "a folder gets another name before the last of it goes",
    "swamp/worker/machine.py": "the machine's id in the worker's own cache folder",
}
WRITING_METHODS = {"write_text", "write_bytes", "rename", "renames", "symlink_to", "hardlink_to"}
WRITING_CALLS = {"os.replace", "os.rename", "os.link", "shutil.move", "shutil.copy"}

HEAVY = (
    "aiohttp", "pydantic", "watchfiles", "cel_expr_python", "cryptography", "yaml", "sqlite3",
    "opentelemetry",
)  # fmt: skip


def modules(*folders: str) -> list[str]:
    """The source files of these packages, as paths from the root."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"), module)


def imports(module: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that the module imports, also inside functions."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def calls(module: str) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def part(module: str) -> str:
    """`run` for controllers/run/steps.py, `lease` for controllers/lease.py."""
    return module.split("/")[1].removesuffix(".py")


def test_no_package_imports_one_above_it() -> None:
    wrong = [
        f"{module}:{line}: {package} must not import {name}"
        for package in RANK
        for module in modules(package)
        for line, name in imports(module)
        if RANK.get(name.partition(".")[0], -1) > RANK[package]
    ]
    assert wrong == []


def test_controllers_do_not_import_each_other() -> None:
    wrong = []
    for module in modules("controllers"):
        own = part(module)
        if own in WIRING:
            continue
        for line, name in imports(module):
            package, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if package == "controllers" and other in (*INDEPENDENT, *WIRING) and other != own:
                wrong.append(f"{module}:{line}: {own} must not import {name}")
    assert wrong == []


def test_every_controller_is_known_here() -> None:
    """Whatever has a `reconcile` is a controller; the loop around it declares one only."""
    found = {
        part(module)
        for module in modules("controllers")
        for node in ast.walk(tree(module))
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "reconcile"
    }
    assert found - {"controller"} == set(INDEPENDENT) - {"boot_sweep"}


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_only_where_it_belongs(library: str) -> None:
    wrong = [
        f"{module}:{line}: only {' and '.join(ONLY_IN[library])} may import {library}"
        for module in modules(*RANK)
        for line, name in imports(module)
        if name.partition(".")[0] == library and not module.startswith(ONLY_IN[library])
    ]
    assert wrong == []


def test_the_loader_of_yaml_is_the_only_one() -> None:
    wrong = [
        f"{module}:{call.lineno}: read YAML with datastore.yaml_loader"
        for module in modules(*RANK)
        for call, name in calls(module)
        if name in ("yaml.load", "yaml.safe_load") or name.startswith("yaml.dump")
    ]
    assert wrong == []


def test_only_the_datastore_writes_files() -> None:
    found = {
        module: f"{module}:{call.lineno}: {name} writes a file"
        for module in modules("controllers", "swamp")
        for call, name in calls(module)
        if writes(call, name)
    }
    assert [told for module, told in found.items() if module not in MAY_WRITE] == []
    assert sorted(found) == sorted(MAY_WRITE), "an exception that is not needed any more"


def writes(call: ast.Call, name: str) -> bool:
    method = name.rpartition(".")[2]
    if name in WRITING_CALLS or method in WRITING_METHODS:
        return True
    if name == "os.open":
        return any(flag in ast.unparse(call) for flag in ("O_WRONLY", "O_RDWR")) and (
            "devnull" not in ast.unparse(call)
        )
    return method in ("open", "fdopen") and any(
        isinstance(argument, ast.Constant)
        and isinstance(argument.value, str)
        and len(argument.value) <= 3
        and set(argument.value) & set("wax+")
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
    )


def test_durations_are_parsed_by_the_command_line_alone() -> None:
    wrong = [
        f"{module}:{line}: take seconds"
        for module in modules(*RANK)
        for line, name in imports(module)
        if name.endswith("parse_duration") and not module.startswith("swamp/cli/")
    ]
    assert wrong == []


def test_the_command_line_loads_nothing_heavy() -> None:
    """`swamp version` must not pay for what `swamp serve` needs."""
    look = "import json, sys, swamp.cli.running; print(json.dumps(sorted(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, cwd=ROOT
    )
    names = {name.partition(".")[0] for name in json.loads(loaded.stdout)}
    assert "typer" in names
    assert [name for name in HEAVY if name in names] == []


def test_the_guard_of_a_worker_loads_no_library() -> None:
    """One guard process per worker: it has to stay small."""
    look = "import json, sys, swamp.worker.guard; print(json.dumps(sorted(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, cwd=ROOT
    )
    names = {name.partition(".")[0] for name in json.loads(loaded.stdout)}
    assert [name for name in (*HEAVY, "typer", "asyncio") if name in names] == []


def test_a_worker_starts_without_what_only_a_server_needs() -> None:
    code = "import sys, swamp.worker.connect; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    server = {"yaml", "watchfiles", "sqlite3", "aiohttp.web", "controllers", "datastore.store"}
    kinds = {f"datastore.kinds.{name}" for name in ("dispatch", "every", "fleet")}
    assert not (server | kinds) & loaded
