"""What a command loads is most of what its start takes: here it cannot grow unnoticed."""

import subprocess
import sys
from typing import Any

from datastore.layout import Layout


def loaded(*words: str) -> set[str]:
    """The modules that a process of its own has loaded at the end of the command."""
    script = (
        "import sys; from swamp.cli import main; code = main(sys.argv[1:]);"
        " print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
    )
    return set(done.stderr.splitlines()[-1].split())


def of(names: set[str], package: str) -> set[str]:
    """Those that are the package or in it."""
    return {name for name in names if f"{name}.".startswith(f"{package}.")}


NEVER = ("aiohttp", "asyncio", "cel_expr_python", "cryptography", "rich", "watchfiles", "yaml")


def test_a_list_of_a_server_loads_no_models(repo: Layout, server: Any) -> None:
    server.answers["GET", "/api/v1/workers"] = (200, {"workers": [], "count": 0})
    names = loaded("worker", "list")
    assert [name for name in (*NEVER, "sqlite3", "controllers") if name in names] == []
    assert of(names, "datastore") == {
        "datastore", "datastore.clock", "datastore.errors", "datastore.layout", "datastore.marker",
        "datastore.regular_file", "datastore.unicode_text",
    }  # fmt: skip


def test_a_list_of_records_loads_what_reads_them_and_no_parser(repo: Layout) -> None:
    names = loaded("worker", "list")
    assert [name for name in NEVER if name in names] == []
    assert "datastore.reader" in names
    too_much = {"desired", "engine", "files", "kinds.access", "kinds.run", "store", "yaml_loader"}
    assert {f"datastore.{name}" for name in too_much} & names == set()
    assert of(names, "controllers") == {
        "controllers", "controllers.asked", "controllers.placement", "controllers.requirement",
    }  # fmt: skip


def test_garbage_is_looked_for_while_a_command_works_not_around_it() -> None:
    script = (
        "import gc, sys; from swamp.cli import main; from swamp.cli.console import Console;"
        " Console.show = lambda *_: print(gc.isenabled());"
        " sys.argv[1:] = ['version']; main(); print(gc.get_freeze_count() > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\nTrue\n"
