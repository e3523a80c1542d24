"""Tokens with the server stopped (on real records) and with it running."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from datastore.engine import open_store
from datastore.kinds import TOKENS
from datastore.layout import Layout
from datastore.lock import RepositoryLock
from datastore.reader import read_records


def desired(repo: Layout, name: str) -> Path:
    return repo.desired("tokens") / f"{name}.yaml"


def test_a_token_made_without_a_server_is_a_record_and_a_file_and_shown_once(
    repo: Layout, swamp: Any
) -> None:
    made = swamp("worker", "token", "create", "t1", "--duration", "1h", "--json").json
    name, _, secret = made["token"].rpartition(".")
    assert (made["name"], name, len(secret)) == ("t1", "t1", 64)
    assert made["maxEnrollments"] == 1
    (record,) = read_records(repo, TOKENS)
    assert record.status is not None
    assert record.status.secret_hash == hashlib.sha256(secret.encode()).hexdigest()
    assert record.spec.expires_at == made["expiresAt"]
    assert desired(repo, "t1").read_text().endswith(
        "spec:\n"
        f'  expiresAt: "{made["expiresAt"]}"\n'
        "  maxEnrollments: 1\n"
    )  # fmt: skip
    everything = [path for path in repo.root.rglob("*") if path.is_file()]
    assert not [path for path in everything if secret.encode() in path.read_bytes()]


def test_a_taken_name_is_refused_and_changes_nothing(repo: Layout, swamp: Any) -> None:
    create = ("worker", "token", "create", "t1", "--duration", "1h")
    assert swamp(*create).code == 0
    before = desired(repo, "t1").read_bytes()
    again = swamp(*create, "--json")
    assert again.code == 1
    assert '"code": "exists"' in again.err, "as with a server"
    assert desired(repo, "t1").read_bytes() == before


def test_a_file_that_a_person_left_refuses_the_name_before_a_record_exists(
    repo: Layout, swamp: Any
) -> None:
    desired(repo, "t1").write_text("spec: {revoked: true}\n")
    result = swamp("worker", "token", "create", "t1", "--duration", "1h")
    assert result.code == 1
    assert "datastore/desired/tokens/t1.yaml is there already" in result.err
    assert read_records(repo, TOKENS) == []


READ = ("--role", "read")


@pytest.mark.parametrize("name", ["../x", ".t", "a b"])
def test_a_name_that_cannot_be_a_files_is_refused(repo: Layout, swamp: Any, name: str) -> None:
    for command in (
        ("worker", "token", "create", name),
        ("access", "token", "create", name, *READ),
    ):
        result = swamp(*command, "--duration", "1h")
        assert result.code == 2
        assert "cannot name a token" in result.err


def test_a_name_that_is_too_long_is_told_its_length(repo: Layout, swamp: Any) -> None:
    result = swamp("worker", "token", "create", "t" * 300, "--duration", "1h")
    assert result.code == 2
    assert "it has 300 bytes, at most 200 fit" in result.err
    assert len(result.err) < 200


def test_list_shows_people_columns_and_machines_an_array(repo: Layout, swamp: Any) -> None:
    assert swamp("worker", "token", "list", "--json").json == []
    assert swamp("worker", "token", "list").out.startswith("No tokens. Create one:")
    made = swamp(
        "worker", "token", "create", "fleet", "--duration", "1d", "--max-enrollments", "unlimited",
        "--json",
    ).json  # fmt: skip
    assert swamp("worker", "token", "list").out == (
        "NAME   STATE   EXPIRES                   ENROLLMENTS\n"
        f"fleet  unused  {made['expiresAt']}  0/unlimited\n"
    )
    (shown,) = swamp("worker", "token", "list", "--json").json
    assert (shown["name"], shown["bindings"]) == ("fleet", [])


def test_revoke_keeps_the_comments_of_the_file_and_is_final(repo: Layout, swamp: Any) -> None:
    swamp("worker", "token", "create", "t1", "--duration", "1h")
    file = desired(repo, "t1")
    file.write_text(file.read_text() + "# my own remark\n")
    result = swamp("worker", "token", "revoke", "t1")
    assert (result.code, result.out) == (0, "Revoked token t1\n")
    text = file.read_text()
    assert "# my own remark\n" in text
    assert "  revoked: true\n" in text
    again = swamp("worker", "token", "revoke", "t1", "--json").json
    assert (again["state"], again["alreadyRevoked"]) == ("revoked", True)
    assert swamp("worker", "token", "list", "--json").json[0]["effectiveState"] == "revoked"


@pytest.mark.parametrize("text", [None, "spec: {a: b\n"])
def test_revoke_needs_no_readable_file(repo: Layout, swamp: Any, text: str | None) -> None:
    swamp("worker", "token", "create", "t1", "--duration", "1h")
    file = desired(repo, "t1")
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    assert swamp("worker", "token", "revoke", "t1", "--json").json["state"] == "revoked"
    assert (file.read_text() if file.exists() else None) == text


def test_an_unknown_token_cannot_be_revoked(repo: Layout, swamp: Any) -> None:
    result = swamp("worker", "token", "revoke", "nobody")
    assert result.code == 1
    assert "nobody" in result.err


def test_a_repository_that_another_process_holds_is_left_alone(repo: Layout, swamp: Any) -> None:
    with RepositoryLock(repo):
        repo.lock.write_text("")  # Nobody signed it, so nobody is waited for.
        result = swamp("worker", "token", "create", "t1", "--duration", "1h", "--json")
    assert result.code == 1
    assert '"code": "repository_locked"' in result.err
    assert not desired(repo, "t1").exists()


def test_what_a_command_wrote_is_in_the_store_of_the_next_process(repo: Layout, swamp: Any) -> None:
    swamp("worker", "token", "create", "t1", "--duration", "1h")
    with RepositoryLock(repo):
        store, engine, report = open_store(repo)
        assert [token.name for token in store.live(TOKENS)] == ["t1"]
        assert (report.unvouched, report.replayed) == ([], 0)
        engine.close()


def test_with_a_server_all_goes_through_it(repo: Layout, server: Any, swamp: Any) -> None:
    made = {"name": "t1", "token": "t1.s3cret", "expiresAt": "2026", "maxEnrollments": 3}
    server.answers["POST", "/api/v1/tokens"] = (201, made)
    server.answers["GET", "/api/v1/tokens"] = (200, [])
    server.answers["POST", "/api/v1/tokens/t1/revoke"] = (
        200, {"name": "t1", "state": "revoked", "revokedAt": "2026", "alreadyRevoked": False}
    )  # fmt: skip
    created = swamp(
        "worker", "token", "create", "t1", "--duration", "90m", "--max-enrollments", "3"
    )
    assert created.out == "t1.s3cret\n"
    assert "lets 3 machines enroll until 2026" in created.err
    assert swamp("worker", "token", "list", "--json").json == []
    assert swamp("worker", "token", "revoke", "t1").out == "Revoked token t1\n"
    assert next(asked for asked in server.asked if asked[0] == "POST")[2] == {
        "name": "t1", "durationS": 5400.0, "maxEnrollments": 3
    }  # fmt: skip
    assert read_records(repo, TOKENS) == []


def test_revoke_leaves_a_file_that_is_no_text_alone(repo: Layout, swamp: Any) -> None:
    swamp("worker", "token", "create", "t1", "--duration", "1h")
    desired(repo, "t1").write_bytes(b"spec: {note: \xff}\n")
    assert swamp("worker", "token", "revoke", "t1", "--json").json["state"] == "revoked"
    assert desired(repo, "t1").read_bytes() == b"spec: {note: \xff}\n"
