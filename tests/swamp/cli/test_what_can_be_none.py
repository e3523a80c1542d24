"""Addresses, tokens and numbers that can be none: one line and an exit code, never a traceback."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from datastore.layout import Layout

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize("token", ["a.\nb", "a.\xe9", "a.b\r\nX: y", "a.\x7f"])
def test_an_access_token_that_is_none(
    repo: Layout, swamp: Any, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("SWAMP_SERVER_TOKEN", token)
    found = swamp("run", "list", "--server", NOBODY, "--json")
    assert (found.code, found.out) == (2, "")
    assert "the access token holds characters that none has" in found.err
    assert token not in found.err


def test_a_line_end_of_another_system_is_no_part_of_a_token(
    repo: Layout, swamp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWAMP_SERVER_TOKEN", "a.b\r")
    found = swamp("run", "list", "--server", NOBODY)
    assert found.code == 1
    assert "no server listens" in found.err


@pytest.mark.parametrize("host", ["a" * 300 + ".x", "a" * 64, "..x", "a..b", "a b", "\xe9" * 64])
def test_a_host_that_can_be_none(repo: Layout, swamp: Any, host: str) -> None:
    found = swamp("run", "list", "--server", f"http://{host}:1")
    assert found.code == 2
    assert "is no server URL" in found.err
    found = swamp("worker", "connect", f"ws://{host}:1", "--no-reconnect", "--token", "w.x")
    assert found.code == 2
    assert "is not an address of an orchestrator" in found.err


def test_an_input_that_is_nested_without_end(repo: Layout, swamp: Any) -> None:
    found = swamp("workflow", "run", "w", "--input", f"x{'.a' * 3_000}=1")
    assert found.code == 2
    assert "is nested deeper than 64 levels" in found.err


def test_a_file_that_the_server_does_not_read_is_not_valid(repo: Layout, swamp: Any) -> None:
    name = os.fsdecode(b"b\xff.yaml")
    (repo.models / name).write_text("name: m\ntype: command/shell\n")
    found = swamp("model", "validate")
    assert found.code == 1
    assert "its name is no UTF-8" in found.out + found.err


@pytest.mark.parametrize("kind", ["workflow", "model"])
def test_what_is_passed_over_is_not_valid(repo: Layout, swamp: Any, kind: str) -> None:
    """Regression: only the server and `swamp doctor` told of it."""
    folder = repo.root / f"{kind}s"
    (folder / "m.yml").write_text("name: m\n")
    (folder / "linked").symlink_to(repo.root)
    found = swamp(kind, "validate", "--json")
    document = json.loads(found.out)
    assert (found.code, document["totalFailed"]) == (1, 2)
    told = json.dumps(document)
    assert "its name must be m.yaml" in told and "is a link to a folder" in told


def test_a_path_may_hold_any_letter(repo: Layout, swamp: Any) -> None:
    found = swamp("run", "list", "--server", f"{NOBODY}/\u65e5\u672c")
    assert found.code == 1
    assert "no server listens" in found.err


@pytest.mark.parametrize("token", ["a.\nb", "a.\xe9", ".b", "a."])
def test_an_enrollment_token_that_is_none(repo: Layout, swamp: Any, token: str) -> None:
    found = swamp("worker", "connect", "ws://127.0.0.1:1", "--no-reconnect", "--token", token)
    assert found.code == 2
    assert "this is no token" in found.err
    assert token not in found.err


def test_what_a_step_says_of_an_output(
    repo: Layout, swamp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo.root / "f").write_text("x")
    monkeypatch.setenv("SWAMP_DATA_URL", NOBODY)
    monkeypatch.setenv("SWAMP_DATA_TOKEN", "\xe9")
    found = swamp("data", "put", "x", "f")
    assert (found.code, "SWAMP_DATA_TOKEN is no token" in found.err) == (1, True)
    monkeypatch.setenv("SWAMP_DATA_TOKEN", "good")
    found = swamp("data", "put", "x", "f", "--content-type", "a\nb")
    assert (found.code, "expected one like text/plain" in found.err) == (2, True)


@pytest.mark.parametrize("config", ['{"a":1e999}', '{"a":"\\ud800"}', '{"a":NaN}', "["])
def test_a_configuration_that_can_be_none(repo: Layout, swamp: Any, config: str) -> None:
    found = swamp("vault", "create", "local_encryption", "v", "--config", config)
    assert found.code == 1
    assert "--config" in found.err


@pytest.mark.parametrize("most", ["0", "-1", "9" * 19, "9" * 5_000, "1.5", ""])
def test_so_many_enrollments_as_can_be_none(repo: Layout, swamp: Any, most: str) -> None:
    found = swamp("worker", "token", "create", "t", "--duration", "1h", "--max-enrollments", most)
    assert found.code == 2
    assert "expected a number from 1 to 1000000000, or unlimited" in found.err
