from __future__ import annotations

from pathlib import Path

import pytest

from datastore.errors import NoRepository
from datastore.kinds import KINDS
from datastore.layout import Layout, create_folders, find_root, folder_name


def test_folders_keep_themselves_in_git_and_records_out_of_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    create_folders(layout)
    create_folders(layout)
    for kind in KINDS:
        assert (layout.observed(kind) / ".gitignore").read_text() == "*\n!.gitignore\n"
        ignored = (layout.desired(kind) / ".gitignore").read_text().splitlines()
        assert all(line.startswith("#") for line in ignored)
    for folder in ("models", "workflows", "vaults", "datastore/history", ".swamp/data"):
        assert (tmp_path / folder).is_dir()
    assert layout.private.stat().st_mode & 0o077 == 0


def test_root_is_found_from_below(tmp_path: Path) -> None:
    (tmp_path / ".swamp.yaml").touch()
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_root(below) == find_root(tmp_path) == tmp_path.resolve()


def test_no_repository_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoRepository, match="run `swamp init`"):
        find_root(tmp_path)


@pytest.mark.parametrize(
    ("workflow", "folder"),
    [
        ("deploy", "deploy"),
        ("@scope/name", "@scope%2Fname"),
        ("..", "%2E."),
        ("a b", "a%20b"),
        ("é", "%C3%A9"),
        ("100%", "100%25"),
        ("", "%"),
    ],
)
def test_workflow_names_become_one_safe_folder(workflow: str, folder: str) -> None:
    assert folder_name(workflow) == folder
    assert Layout(Path("/r")).story_file(workflow, "r1").parent.parent == Layout(Path("/r")).history


def test_very_long_workflow_names_still_fit_a_folder() -> None:
    assert len(folder_name("ü" * 500)) <= 255
