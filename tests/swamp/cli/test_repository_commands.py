"""`init` and `vault create`: what is on disk afterwards, and what is left alone."""

from pathlib import Path
from typing import Any

import pytest

from datastore.layout import Layout
from datastore.yaml_loader import load

FIRST = "# What swamp keeps for itself: journal, keys, data, logs.\n.swamp/\n"


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_init_makes_marker_folders_and_gitignore(tmp_path: Path, swamp: Any) -> None:
    root = tmp_path / "new"
    result = swamp("init", str(root))
    assert result.code == 0
    assert result.out.startswith(f"Initialized a swamp repository in {root}\n\nNext:\n")
    marker = load((root / ".swamp.yaml").read_bytes(), ".swamp.yaml").value
    assert marker["version"] == 1
    assert (root / ".gitignore").read_text() == FIRST
    for folder in ("models", "workflows", "vaults", "datastore/history", ".swamp"):
        assert (root / folder).is_dir()
    assert (root / "datastore/observed/runs/.gitignore").read_text().startswith("*\n")


def test_a_second_init_changes_nothing_and_mends_what_is_missing(
    tmp_path: Path, swamp: Any
) -> None:
    first = swamp("init", str(tmp_path), "--json").json
    before = contents(tmp_path)
    again = swamp("init", str(tmp_path), "--json").json
    assert contents(tmp_path) == before
    assert (first["alreadyInitialized"], again["alreadyInitialized"]) == (False, True)
    assert (first["gitignoreAction"], again["gitignoreAction"]) == ("created", "unchanged")
    assert again["initializedAt"] == first["initializedAt"]
    (tmp_path / "workflows").rmdir()
    assert swamp("repo", "init", str(tmp_path)).code == 0
    assert (tmp_path / "workflows").is_dir()


@pytest.mark.parametrize(
    "command",
    [
        ("init",), ("serve", "--port", "0"), ("doctor",), ("run", "list"), ("run", "prune"),
        ("workflow", "run", "w"), ("workflow", "list"), ("model", "list"), ("queue", "pause"),
        ("worker", "token", "create", "t", "--duration", "1h"), ("worker", "list"),
        ("vault", "create", "local_encryption", "main"), ("access", "token", "list"),
    ],
)  # fmt: skip
def test_a_repository_of_a_later_swamp_is_refused_and_left_alone(
    repo: Layout, swamp: Any, command: tuple[str, ...]
) -> None:
    repo.marker.write_text("# Mine.\nversion: 9\n")
    (repo.root / "workflows").rmdir()
    before = contents(repo.root)
    result = swamp(*command)
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "Error: .swamp.yaml:2:1: version 9 of a repository is newer than this swamp knows (1):"
        " upgrade swamp\n"
    )
    assert contents(repo.root) == before
    assert not (repo.root / "workflows").exists()


@pytest.mark.parametrize("version", ['"9"', "-1", "null", "1.0", "true"])
def test_a_version_that_is_none_is_refused(repo: Layout, swamp: Any, version: str) -> None:
    repo.marker.write_text(f"version: {version}\n")
    result = swamp("run", "list")
    assert result.code == 1
    assert "version is" in result.err and "expected 1" in result.err


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("*.log\n", f"*.log\n{FIRST}"),
        ("*.log", f"*.log\n{FIRST}"),
        ("", FIRST),
        ("a\n/.swamp\nb", "a\n/.swamp\nb"),
        ("  .swamp/  \r\n", "  .swamp/  \r\n"),
    ],
)
def test_lines_of_a_gitignore_stay_as_they_are(
    tmp_path: Path, swamp: Any, before: str, after: str
) -> None:
    (tmp_path / ".gitignore").write_bytes(before.encode())
    assert swamp("init", str(tmp_path)).code == 0
    assert (tmp_path / ".gitignore").read_bytes() == after.encode()


def test_vault_create_writes_settings_and_refuses_a_second_one(repo: Layout, swamp: Any) -> None:
    made = swamp("vault", "create", "local_encryption", "main", "--json").json
    assert made["path"] == "vaults/local_encryption/main.yaml"
    file = load((repo.root / made["path"]).read_bytes(), "vault").value
    assert file["createdAt"]
    assert {key: file[key] for key in ("id", "name", "type", "config")} == {
        "id": made["id"], "name": "main", "type": "local_encryption", "config": {}
    }  # fmt: skip
    before = contents(repo.vaults)
    again = swamp("vault", "create", "local_encryption", "main")
    assert again.code == 1
    assert again.err == "Error: vault 'main' is there already: vaults/local_encryption/main.yaml\n"
    assert contents(repo.vaults) == before


def test_a_vault_has_its_configuration(repo: Layout, swamp: Any) -> None:
    assert swamp("vault", "create", "local_encryption", "v", "--config", '{"a": [1]}').code == 0
    file = (repo.vaults / "local_encryption/v.yaml").read_bytes()
    assert load(file, "v").value["config"] == {"a": [1]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["aws", "v"], "unknown vault type 'aws'; types: local_encryption"),
        (["local_encryption", "../v"], "'../v' cannot name a vault"),
        (["local_encryption", "v", "--config", "{"], "--config is not JSON"),
        (["local_encryption", "v", "--config", "[]"], "must be a JSON object"),
    ],
)
def test_what_cannot_be_a_vault_leaves_nothing(
    repo: Layout, swamp: Any, arguments: list[str], said: str
) -> None:
    result = swamp("vault", "create", *arguments)
    assert result.code == 1
    assert said in result.err
    assert contents(repo.vaults) == {}
