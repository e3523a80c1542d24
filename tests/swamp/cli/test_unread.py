"""Events that nobody reads are dropped, and said once."""

import io
import os
import sys

import pytest

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
