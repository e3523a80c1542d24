"""What a runner finds in its environment beside what is shipped to it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from swamp.execute import environment
from swamp.execute.environment import commands_folder, with_commands


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"PATH": "/usr/bin:/bin"}, "/usr/bin:/bin:/opt/s/bin"),
        ({"PATH": "/opt/s/bin:/bin"}, "/opt/s/bin:/bin"),
        ({"PATH": "/bin:/opt/s/bin/"}, "/bin:/opt/s/bin/"),
        ({"PATH": ""}, ":/opt/s/bin"),
        ({}, f"{os.defpath}:/opt/s/bin"),
    ],
)
def test_the_folder_of_swamp_is_the_last_one_of_a_path(before: dict[str, str], after: str) -> None:
    assert with_commands({"A": "b", **before}, "/opt/s/bin") == {"A": "b", "PATH": after}
    assert with_commands(before, None) == before


def test_the_folder_is_that_of_the_command_as_it_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "get_path", lambda name: str(tmp_path / "none"))
    called = tmp_path / "linked" / "swamp"
    called.parent.mkdir()
    monkeypatch.setattr(sys, "argv", [str(called), "serve"])
    assert commands_folder() is None, "nothing is there"
    called.write_text("#!/bin/sh\n")
    assert commands_folder() is None, "nobody may run it"
    called.chmod(0o755)
    assert commands_folder() == str(called.parent)
    monkeypatch.chdir(called.parent)
    monkeypatch.setattr(sys, "argv", ["./swamp"])
    assert commands_folder() == str(called.parent)
    # `python -m swamp`: the command beside this Python, if it has one.
    monkeypatch.setattr(sys, "argv", ["/x/swamp/__main__.py"])
    assert commands_folder() is None
    monkeypatch.setattr(environment, "get_path", lambda name: str(called.parent))
    assert commands_folder() == str(called.parent)
    # What no PATH could name.
    odd = tmp_path / "a:b"
    called.parent.rename(odd)
    monkeypatch.setattr(sys, "argv", [str(odd / "swamp")])
    assert commands_folder() is None
