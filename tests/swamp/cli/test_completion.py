"""What the shell offers after Tab: quick, from files, and never an error."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from datastore.layout import Layout
from swamp.cli.completion import run_ids, workflow_names

ROOT = Path(__file__).parents[3]


def offered(words: str, cwd: Path) -> list[str]:
    """What bash is offered for the last word."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_SWAMP_COMPLETE": "complete_bash",
        "COMP_WORDS": f"swamp {words}",
        "COMP_CWORD": str(len(words.split(" "))),
    }
    done = subprocess.run(
        [sys.executable, "-m", "swamp"],
        env=environment, cwd=cwd, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def test_the_shell_is_offered_commands_names_and_ids(repo: Layout) -> None:
    (repo.workflows / "any-file.yaml").write_text("# what it does\nname: deploy\njobs: []\n")
    (repo.workflows / "other.yaml").write_text("name: 'depth'  # quoted\njobs: []\n")
    (repo.models / "command").mkdir()
    (repo.models / "command" / "x.yaml").write_text("name: build\ntype: command/shell\n")
    (repo.observed("runs") / "0193aa.yaml").touch()
    (repo.observed("tokens") / "fleet.yaml").touch()
    assert offered("workflow run dep", repo.root) == ["deploy", "depth"]
    assert offered("workflow validate depl", repo.root) == ["deploy"]
    assert offered("model show ", repo.root) == ["build"]
    assert offered("run show 01", repo.root) == ["0193aa"]
    assert offered("worker token revoke f", repo.root) == ["fleet"]
    (repo.observed("workers") / "rack-7.yaml").touch()
    for verb in ("cordon", "uncordon", "drain", "forget"):
        assert offered(f"worker {verb} ra", repo.root) == ["rack-7"]
    assert "workflow" in offered("work", repo.root)


def test_nothing_is_offered_where_nothing_is(
    tmp_path: Path, repo: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offered("workflow run ", Path("/")) == []
    (repo.workflows / "bad.yaml").write_bytes(b"\xff\xfename: [\n")
    (repo.workflows / "folder.yaml").mkdir()
    for path in repo.observed("runs").iterdir():
        path.unlink()
    repo.observed("runs").rmdir()
    assert workflow_names("") == []
    assert run_ids("") == []


def test_the_newest_runs_come_first(repo: Layout) -> None:
    for name in ("01a", "01c", "01b"):
        (repo.observed("runs") / f"{name}.yaml").touch()
    assert run_ids("01") == ["01c", "01b", "01a"]


def test_the_repository_may_be_named_by_the_environment(
    repo: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo.workflows / "w.yaml").write_text("name: w\n")
    monkeypatch.chdir("/")
    assert workflow_names("") == []
    monkeypatch.setenv("SWAMP_REPO_DIR", str(repo.root))
    assert workflow_names("") == ["w"]


def test_the_scripts_can_be_shown(swamp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: ("bash", "/bin/bash"))
    shown = swamp("--show-completion")
    assert shown.code == 0
    assert "complete -o default -F _swamp_completion swamp" in shown.out
