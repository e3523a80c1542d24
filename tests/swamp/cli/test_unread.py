"""What nobody reads: events are dropped, which is said once; a command that prints ends quietly."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from datastore.layout import Layout
from swamp.cli.command import EXIT_CODES
from swamp.cli.console import Console
from swamp.cli.unread import CLOSED, tell


@pytest.mark.parametrize("as_json", [True, False])
def test_a_closed_pipe_is_said_once_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    said = io.StringIO()
    with os.fdopen(writes, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", said)
        for _ in range(3):
            tell(Console(json=as_json), {"kind": "draining"}, "draining")
    assert said.getvalue().splitlines() == [CLOSED]


def test_a_full_disk_below_stdout_costs_lines_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        tell(Console(), {"kind": "draining"}, "draining")
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def ended(where: Path, *command: str, stderr: bool = False) -> tuple[int, str]:
    """Exit code and stderr of a command whose stdout, and with `stderr` that too, nobody reads."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "swamp", *command],
            cwd=where,
            stdout=writes,
            stderr=writes if stderr else subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writes)
    return done.returncode, done.stderr or ""


@pytest.mark.parametrize(
    "command",
    [
        ("run", "list"),
        ("run", "list", "--json"),
        ("doctor",),
        ("--help",),
        ("worker", "queue", "-w"),
    ],
)
def test_a_command_whose_reader_has_gone_ends_quietly_as_other_tools_do(
    repo: Layout, command: tuple[str, ...]
) -> None:
    """Regression: `| head -1` ended with 1, which says that the reason is on stderr; none was."""
    assert ended(repo.root, *command) == (141, "")
    assert ended(repo.root, *command, stderr=True)[0] == 141
    assert "141" in EXIT_CODES


def test_what_such_a_command_was_to_change_is_changed(repo: Layout) -> None:
    create = ("worker", "token", "create", "w1", "--duration", "1h")
    assert ended(repo.root, *create) == (141, "")
    code, told = ended(repo.root, *create)
    assert (code, "exists" in told or "already" in told) == (1, True)


def test_an_error_that_nobody_reads_is_an_error_all_the_same(repo: Layout) -> None:
    assert ended(repo.root, "run", "show", "none", stderr=True)[0] == 1
    assert ended(repo.root, "run", "list", "--no-such", stderr=True)[0] == 2
