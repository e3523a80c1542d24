"""House style that no linter checks: sizes, docstrings, and what must not be in any file."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("datastore", "controllers", "swamp")

LINE_MAX = 100
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 7
NESTING_MAX = 4

# Commands have one parameter per option.
COMMANDS = "swamp/cli/"

# Where any exception may be caught: the loop that retries, and the edge of a process.
MAY_CATCH_ALL = {
    "controllers/controller.py": "a reconcile that failed is tried again",
    "swamp/cli/follow.py": "a thread hands its error to whoever waits for more",
    "swamp/serve/own_run.py": "a thread hands its error to whoever started it",
    "swamp/worker/runners.py": "a runner that failed to start is a failed dispatch",
}

NAMES_OF_NOTHING = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
LEFTOVERS = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
OF_ONE_MACHINE = re.compile(r"(?<![\w.])/(?:wo" r"rk|fa" r"rm|op" r"t/wheels)\b")
TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".sh", ".svg", ".lock", ""}


def sources() -> list[str]:
    """The source files of the three packages."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def all_texts() -> list[str]:
    """Every text file of the project, whether git knows it already or not."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = sorted(set(listed.stdout.splitlines()))
    return [path for path in paths if Path(path).suffix in TEXT and (ROOT / path).is_file()]


@cache
def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def tree(path: str) -> ast.Module:
    return ast.parse(text(path), path)


def functions(path: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body: an option of a command is many lines of signature and no logic."""
    assert function.end_lineno is not None
    return function.end_lineno - function.body[0].lineno + 1


def depth(node: ast.AST, level: int = 0) -> int:
    deepest = level
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        chained = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        blocks = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith)
        inside = isinstance(child, blocks) and not chained
        deepest = max(deepest, depth(child, level + inside))
    return deepest


@pytest.mark.parametrize("path", sources())
def test_a_source_file_is_of_a_size_to_read(path: str) -> None:
    wrong = []
    count = len(text(path).splitlines())
    if count > FILE_LINES_MAX:
        wrong.append(f"{path}: {count} lines, at most {FILE_LINES_MAX}")
    for function in functions(path):
        where = f"{path}:{function.lineno}: {function.name}"
        given = function.args
        parameters = len(given.posonlyargs + given.args + given.kwonlyargs)
        if lines_of(function) > FUNCTION_LINES_MAX:
            wrong.append(f"{where}: {lines_of(function)} lines, at most {FUNCTION_LINES_MAX}")
        if parameters > PARAMETERS_MAX and not path.startswith(COMMANDS):
            wrong.append(f"{where}: {parameters} parameters, at most {PARAMETERS_MAX}")
        if depth(function) > NESTING_MAX:
            wrong.append(f"{where}: {depth(function)} levels deep, at most {NESTING_MAX}")
    assert wrong == []


@pytest.mark.parametrize("path", sources())
def test_a_module_says_what_it_promises(path: str) -> None:
    said = ast.get_docstring(tree(path))
    assert said, f"{path}: no docstring"
    assert said.splitlines()[0].endswith((".", ":", ",")) or len(said.splitlines()) > 1


def test_no_module_is_named_after_nothing() -> None:
    assert [path for path in sources() if Path(path).name in NAMES_OF_NOTHING] == []


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by name alone, as their folders are no packages."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in sorted(names.items()) if count > 1] == []


def test_lines_of_yaml_fit() -> None:
    """Those of Python are the linter's business."""
    wrong = [
        f"{path}:{number}: {len(line)} characters"
        for path in all_texts()
        if path.endswith(".yaml")
        for number, line in enumerate(text(path).splitlines(), start=1)
        if len(line) > LINE_MAX
    ]
    assert wrong == []


@pytest.mark.parametrize("pattern", [LEFTOVERS, OF_ONE_MACHINE], ids=["leftovers", "machine"])
def test_no_file_holds_what_belongs_elsewhere(pattern: re.Pattern[str]) -> None:
    wrong = [
        f"{path}:{number}: {line.strip()}"
        for path in all_texts()
        for number, line in enumerate(text(path).splitlines(), start=1)
        if pattern.search(line)
    ]
    assert wrong == []


def test_tasks_belong_to_a_group() -> None:
    """A bare task is lost when nobody holds it, and its exception with it."""
    loose = {"asyncio.create_task", "asyncio.ensure_future", "loop.create_task", "ensure_future"}
    wrong = [
        f"{path}:{node.lineno}: start it in a TaskGroup"
        for path in sources()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in loose
    ]
    assert wrong == []


def test_errors_are_caught_by_name() -> None:
    found = {
        path: f"{path}:{node.lineno}: catch what you can act on"
        for path in sources()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler) and catches_all(node)
    }
    assert [told for path, told in found.items() if path not in MAY_CATCH_ALL] == []
    assert sorted(found) == sorted(MAY_CATCH_ALL), "an exception that is not needed any more"


def catches_all(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {ast.unparse(one) for one in caught}
    # What is raised again afterwards was only looked at.
    if isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None:
        return False
    return bool(names & {"Exception", "BaseException"})
