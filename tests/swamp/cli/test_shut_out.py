"""A user whom the permissions of `.swamp/` shut out is told whose it is, and guesses nothing."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from datastore.layout import Layout
from datastore.lock import RepositoryLock

PermissionBits = Callable[[], AbstractContextManager[None]]
NOBODY = 65534


@pytest.fixture
def closed(repo: Layout, permission_bits: PermissionBits) -> Iterator[Layout]:
    """A repository whose `.swamp/` is another user's; without root, one that is closed to all."""
    repo.lock.touch()
    if os.geteuid() == 0:
        os.chown(repo.private, NOBODY, NOBODY)
    else:
        repo.private.chmod(0)
    with permission_bits():
        yield repo
    repo.private.chmod(0o700)


def whose() -> str:
    return "belongs to " if os.geteuid() == 0 else "is this user's own"


@pytest.mark.parametrize(
    "command",
    [
        ("worker", "list"),
        ("run", "list"),
        ("run", "prune", "--dry-run"),
        ("run", "prune"),
        ("data", "list", "shell"),
        ("worker", "token", "list"),
        ("worker", "token", "create", "w1", "--duration", "1h"),
        ("worker", "cordon", "w1"),
        ("worker", "forget", "w1"),
        ("worker", "queue"),
        ("run", "watch", "0193a1"),
        ("workflow", "run", "one"),
    ],
)
def test_commands_say_whose_the_records_are_and_what_to_do(
    closed: Layout, swamp: Any, command: tuple[str, ...]
) -> None:
    """Regression: `Permission denied` of a file, and "commands that only read work all the same".

    `worker queue` and `run watch` said that no server runs here, which nobody could tell.
    """
    result = swamp(*command)
    assert result.code == 1
    assert f"may not look into {closed.private}, which {whose()}" in result.err
    assert "work all the same" not in result.err
    if os.geteuid() == 0:
        assert f"(uid {NOBODY})" in result.err
        assert "--server URL and an access token" in result.err
    assert '"code": "shut_out"' in swamp(*command, "--json").err


def test_what_needs_no_records_works(closed: Layout, swamp: Any) -> None:
    assert swamp("workflow", "list").code == 0
    assert swamp("workflow", "validate").code == 0


def test_doctor_says_that_it_cannot_look(closed: Layout, swamp: Any) -> None:
    """Regression: it said that somebody holds the repository, and to move the lock away."""
    (closed.workflows / "bad.yaml").write_text("a: [")
    result = swamp("doctor", "--json")
    assert result.code == 1
    found = {one["check"]: one for one in result.json["findings"]}
    assert found["server"]["message"] == "nobody can tell whether one runs here, see below"
    ((level, message),) = (
        (one["level"], one["message"])
        for one in result.json["findings"]
        if one["check"] == "permissions"
    )
    assert level == "error"
    assert f"may not look into {closed.private}, which {whose()}" in message
    assert not found.keys() & {"lock", "records", "runs", "databases"}
    assert found["files"]["message"].startswith("workflows/bad.yaml")
    assert "move" not in result.out
    assert "holds" not in result.out


def test_a_lock_that_cannot_be_read_is_never_to_be_moved_away(
    repo: Layout, swamp: Any, permission_bits: PermissionBits
) -> None:
    """Regression: nobody held the repository, though somebody did."""
    with RepositoryLock(repo):
        repo.lock.chmod(0)
        with permission_bits():
            result = swamp("doctor", "--json")
            refused = swamp("run", "prune").err
    found = {one["check"]: one for one in result.json["findings"]}
    assert found["server"]["message"] == "nobody can tell whether one runs here, see below"
    assert found["lock"]["level"] == "error"
    assert f"may not read {repo.lock}" in found["lock"]["message"]
    assert "leave it where it is" in found["lock"]["wayOut"]
    assert "move" not in result.out
    assert "cannot be written" in refused
    assert "to write its records, which belong to " in refused
