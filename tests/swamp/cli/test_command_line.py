"""What holds for every command: global options, errors, exit codes, help."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from datastore.errors import AlreadyExists, NotFound
from datastore.layout import Layout
from swamp.cli.app import app
from swamp.cli.lazy_group import Commands, declared


def commands(
    found: Any = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group with the words that call it."""
    found = found or typer.main.get_command(app)
    yield path, found
    for name, inner in getattr(found, "commands", {}).items():
        yield from commands(inner, (*path, name))


EVERY = list(commands())
LEAVES = [(path, found) for path, found in EVERY if not hasattr(found, "commands")]
GROUPS = [
    (path, found) for path, found in EVERY if isinstance(getattr(found, "commands", None), Commands)
]
GLOBAL = {"--json", "--quiet", "--verbose", "--no-color", "--repo-dir"}


def test_the_commands_are_these() -> None:
    assert {" ".join(path) for path, _ in LEAVES} >= {
        "init", "repo init", "vault create", "model list", "model show", "model validate",
        "workflow list", "workflow show", "workflow validate", "workflow run", "run list",
        "run show", "run watch", "run cancel", "serve", "worker connect", "worker list",
        "worker queue", "worker token create", "worker token list", "worker token revoke",
        "version",
    }  # fmt: skip


@pytest.mark.parametrize(("path", "found"), EVERY, ids=lambda value: str(value))
def test_every_command_and_option_says_what_it_is(path: tuple[str, ...], found: Any) -> None:
    assert found.help, f"swamp {' '.join(path)} has no help"
    for parameter in found.params:
        assert parameter.help, f"{parameter.name} of swamp {' '.join(path)} has no help"
    options = {option for parameter in found.params for option in parameter.opts}
    assert options >= GLOBAL


@pytest.mark.parametrize(("path", "found"), LEAVES, ids=lambda value: str(value))
def test_every_command_shows_an_example_and_its_exit_codes(
    path: tuple[str, ...], found: Any, swamp: Any
) -> None:
    result = swamp(*path, "--help")
    assert result.code == 0
    assert f"Examples:\n    " in result.out  # noqa: F541
    assert f"swamp {' '.join(path[-2:] if path[0] == 'repo' else path)}" in result.out
    assert "Exit codes: 0" in result.out


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (("workflow", "show"), "NAME"),
        (("worker", "forget"), "NAME"),
        (("worker", "token", "create"), "NAME"),
        (("run", "show"), "ID"),
        (("data", "get"), "MODEL"),
    ],
)
def test_a_missing_argument_is_spelled_as_in_the_help(
    swamp: Any, command: tuple[str, ...], missing: str
) -> None:
    """Regression: 'name' of one command, 'NAME' of the next."""
    assert f" {{{missing}}}" in swamp(*command, "--help").out.splitlines()[0]
    refused = swamp(*command)
    assert refused.code == 2
    assert refused.err.startswith(f"Error: Missing argument '{missing}' (see ")


@pytest.mark.parametrize("path", [(), ("worker",), ("worker", "token")])
def test_a_group_alone_shows_its_help_and_is_wrong_usage(path: tuple[str, ...], swamp: Any) -> None:
    result = swamp(*path)
    assert result.code == 2
    assert "Commands:" in result.out


@pytest.mark.parametrize(
    "given", [("--json",), ("--json", "worker"), ("worker", "token", "--json")]
)
def test_a_group_alone_says_to_machines_on_stderr_that_a_command_is_missing(
    given: tuple[str, ...], swamp: Any
) -> None:
    """Regression: usage for people was printed where JSON is read."""
    result = swamp(*given)
    assert (result.code, result.out) == (2, "")
    path = " ".join(("swamp", *(one for one in given if one != "--json")))
    assert json.loads(result.err) == {
        "error": f"a command is missing (see `{path} --help`)",
        "code": "usage",
    }


@pytest.mark.parametrize(
    "arguments",
    [("--json", "version"), ("version", "--json")],
)
def test_global_options_work_before_and_after_the_command(arguments: Any, swamp: Any) -> None:
    assert swamp(*arguments).json["version"] == "0.1.0"


def test_repo_dir_works_before_and_after_the_command_and_by_environment(
    repo: Layout, monkeypatch: pytest.MonkeyPatch, swamp: Any
) -> None:
    monkeypatch.chdir("/")
    root = str(repo.root)
    assert swamp("--repo-dir", root, "workflow", "list").code == 0
    assert swamp("workflow", "--repo-dir", root, "list").code == 0
    assert swamp("workflow", "list", "--repo-dir", root).code == 0
    monkeypatch.setenv("SWAMP_REPO_DIR", root)
    assert swamp("workflow", "list").code == 0
    assert swamp("workflow", "list", "--repo-dir", f"{root}/nowhere").code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["worker", "lst"], "Did you mean 'list'?"),
        (["worker", "list", "--al"], "--al"),
        (["run", "list", "--limit", "x"], "--limit 'x': expected a number from 1 "),
        (["run", "list", "--limit", "0"], "--limit '0': expected a number from 1 "),
        (["run", "list", "--limit", "1001"], "--limit '1001': expected a number from 1 to 1000 "),
        (["run", "prune", "--keep", "-1"], "--keep '-1': expected a number from 0 "),
        (["run", "prune", "--keep", "9" * 23], "': expected a number from 0 to 1000000000 "),
        (["run", "watch", "x", "--from", "9" * 20], "': expected a number from 1 to 1000000000 "),
        (["serve", "--keep-runs", "9" * 20], "': expected a number from 1 to 1000000000 "),
        (["serve", "--port", "99999"], "--port '99999': expected a number from 0 to 65535 "),
        (["run", "list", "--status", "lost"], "expected one of running"),
        (["worker", "token", "create", "t"], "--duration"),
        (["worker", "token", "create", "t", "--duration", "soon"], "expected a duration"),
        (["worker", "token", "create", "t", "--duration", "0"], "must be more than 0"),
        (["worker", "connect"], "no server"),
        (["worker", "connect", "ws://x"], "no token"),
        (["worker", "connect", "ftp://x", "--token", "a.b"], "ws://HOST:PORT"),
        (["worker", "connect", "ws://h:99999", "--token", "a.b"], "a number from 1 to 65535 "),
        (
            ["worker", "connect", "ws://x", "--token", "s3cret"],
            "Error: this is no token: expected ",
        ),
        (
            ["worker", "connect", "ws://x", "--token", ".x"],
            "this is no token: expected NAME.SECRET",
        ),
        (
            ["worker", "connect", "ws://x", "--token", "x."],
            "this is no token: expected NAME.SECRET",
        ),
        (
            ["worker", "connect", "ws://x", "--token", "a.b", "--max-dispatches", "0"],
            "Error: --max-dispatches '0': expected a number from 1 to 1000000000 (",
        ),
        (
            ["worker", "connect", "ws://x", "--token", "a.b", "--concurrency", "100000000"],
            "Error: --concurrency '100000000': expected a number from 1 to 4096, or auto ",
        ),
        (["worker", "list", "--server", "ftp://x"], "Error: --server 'ftp://x' is no server URL"),
        (["run", "list", "--server", "http://h:99999"], "Error: --server 'http://h:99999' is no "),
        (["run", "list", "--server", "http://h:0"], "Error: --server 'http://h:0' is no "),
        (
            ["workflow", "run", "w", "--priority", "9"],
            "--priority '9': expected a number from 1 to 5 ",
        ),
        (
            ["workflow", "run", "w", "--on-interrupt", "die"],
            "--on-interrupt 'die': expected one of ask, cancel, detach",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, swamp: Any
) -> None:
    result = swamp(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Error: ")
    assert said in result.err
    assert result.err.count("\n") == 1
    as_json = swamp(*arguments, "--json")
    assert as_json.code == 2
    assert json.loads(as_json.err)["code"] == "usage"


def test_a_missing_repository_is_one_line_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swamp: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    result = swamp("worker", "list")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("Error: no .swamp.yaml in ")
    assert "swamp init" in result.err
    error = json.loads(swamp("worker", "list", "--json").err)
    assert error["code"] == "no_repository"


def test_errors_out_of_task_groups_are_one_line(
    monkeypatch: pytest.MonkeyPatch, swamp: Any
) -> None:
    def raises(*errors: Exception) -> None:
        def fail(*_: Any) -> None:
            raise ExceptionGroup("outer", [ExceptionGroup("inner", errors)])

        monkeypatch.setattr("datastore.repository_init.initialize", fail)

    raises(NotFound("not here"))
    result = swamp("init", ".")
    assert (result.code, result.err) == (1, "Error: not here\n")
    raises(NotFound("not here"), AlreadyExists("nor there"))
    assert json.loads(swamp("init", ".", "--json").err) == {
        "error": "not here",
        "code": "not_found",
    }
    raises(OSError(28, "No space left on device", "/a/file"))
    assert swamp("init", ".").err == "Error: /a/file: No space left on device\n"
    raises(NotFound("not here"), ZeroDivisionError())
    with pytest.raises(ExceptionGroup, match="inner"):
        swamp("init", ".")


def test_an_error_of_the_system_names_the_file(tmp_path: Path, swamp: Any) -> None:
    (tmp_path / "file").write_text("")
    result = swamp("init", str(tmp_path / "file" / "repo"))
    assert result.code == 1
    assert result.err == f"Error: {tmp_path}/file/repo: Not a directory\n"


def test_an_interrupt_is_130_and_silent(monkeypatch: pytest.MonkeyPatch, swamp: Any) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("datastore.repository_init.initialize", interrupted)
    result = swamp("init", ".")
    assert (result.code, result.out, result.err) == (130, "", "")


def test_a_reader_that_has_gone_is_no_error_message(repo: Layout) -> None:
    # The pipe is closed before the command writes, as by `swamp … | head -0`.
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "swamp", "version"],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_starting_up_loads_nothing_heavy() -> None:
    heavy = "pydantic yaml aiohttp watchfiles rich cryptography sqlite3 asyncio cel_expr_python"
    script = (
        f"import sys, swamp.cli; print([name for name in {heavy.split()!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_command_loads_no_module_of_another() -> None:
    script = (
        "import sys; from swamp.cli.running import run; run(['worker', 'list', '--help']);"
        " print(*(name for name in sys.modules if name.startswith('swamp.cli.')), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    declaring = {module for _, found in GROUPS for module in found.commands.modules.values()}
    loaded = {name.removeprefix("swamp.cli.") for name in done.stderr.split()}
    assert loaded & declaring == {"worker", "worker_list"}


def test_the_tables_of_commands_name_all_that_is_declared() -> None:
    for path, found in GROUPS:
        table = found.commands.modules
        for module in table.values():
            here = {name for name in table if table[name] == module}
            assert set(declared(module)) == here, " ".join(path)


@pytest.mark.parametrize(
    "start", [["-m", "swamp"], ["-c", "from swamp.cli import main; exit(main())"]]
)
def test_an_interrupt_while_it_still_loads_is_130_and_silent(
    tmp_path: Path, start: list[str]
) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}
    done = subprocess.run(
        [sys.executable, *start, "version"], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("daemon", [True, False])
def test_a_process_ends_at_once_beside_a_thread_that_was_given_up(daemon: bool) -> None:
    """Regression: a server whose collector was inside of OpenSSL ended with a segmentation fault.

    The interpreter must not end below a thread that is still in somebody's native code.
    """
    how = "daemon=True" if daemon else "args=(0.1,)"
    code = (
        "import atexit, sys, threading, swamp.cli, swamp.cli.running\n"
        "def run(arguments):\n"
        f"    threading.Thread(target=threading.Event().wait, {how}).start()\n"
        "    print('done')\n"
        "    return 3\n"
        "swamp.cli.running.run = run\n"
        "atexit.register(print, 'the interpreter ends')\n"
        "sys.exit(swamp.cli.main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout == ("done\n" if daemon else "done\nthe interpreter ends\n")
