"""What is asked of a worker is taken back as a whole: by uncordon, and by forgetting it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from datastore.kinds import TOKENS, WORKERS, TokenSpec, TokenStatus, WorkerSpec, WorkerStatus
from datastore.layout import Layout
from datastore.record import Record
from datastore.store import Store
from datastore.yaml_loader import load
from swamp.cli.locked_store import with_store

AT = "2026-10-10T14:29:05.251Z"
FOREVER = "2099-01-01T00:00:00.000Z"


@pytest.fixture
def file(repo: Layout, swamp: Any) -> Path:
    """The desired file, not there yet, of a worker that has been here."""
    status = WorkerStatus(
        state="disconnected", instance="i", machine="m", token="w1", platform="linux",
        arch="x86_64", version="1", capacity=1, enrolled_at=AT, last_seen_at=AT,
    )  # fmt: skip
    used = TokenStatus(state="enrolled", secret_hash="00ff", enrollments=1)
    records = (
        Record(WORKERS, "w1", "u", AT, WorkerSpec(), status),
        Record(TOKENS, "w1", "t", AT, TokenSpec(expires_at=FOREVER), used),
    )

    async def write(store: Store) -> dict[str, Any]:
        store.commit(records)
        await store.barrier()
        return {}

    asyncio.run(with_store(repo, write))
    return repo.desired("workers") / "w1.yaml"


def spec(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = load(file.read_bytes(), "").value["spec"]
    return found


def test_uncordon_takes_the_note_of_the_cordon_with_it(file: Path, swamp: Any) -> None:
    assert swamp("worker", "cordon", "w1", "--note", "disk swap").code == 0
    file.write_text(file.read_text().replace("note: disk swap", "note: disk swap  # on Friday"))
    assert swamp("worker", "uncordon", "w1").code == 0
    assert spec(file) == {"schedulable": True, "note": None, "drain": False}
    assert "# on Friday" in file.read_text()
    assert swamp("worker", "drain", "w1").code == 0
    assert spec(file)["note"] is None
    assert swamp("worker", "uncordon", "w1", "--note", "back again").code == 0
    assert spec(file)["note"] == "back again"


def test_a_note_stays_where_more_is_asked(file: Path, swamp: Any) -> None:
    assert swamp("worker", "cordon", "w1", "--note", "disk swap").code == 0
    assert swamp("worker", "drain", "w1").code == 0
    assert spec(file) == {"schedulable": False, "note": "disk swap", "drain": True}


def test_uncordon_without_anything_to_take_back_writes_no_note(file: Path, swamp: Any) -> None:
    assert swamp("worker", "uncordon", "w1").code == 0
    assert spec(file) == {"schedulable": True, "drain": False}


def test_resume_takes_the_note_of_the_pause_with_it(repo: Layout, swamp: Any) -> None:
    assert swamp("queue", "pause", "--note", "freeze").code == 0
    assert swamp("queue", "resume").code == 0
    [file] = repo.desired("pauses").glob("*.yaml")
    assert spec(file) == {"paused": False, "note": None}


@pytest.mark.parametrize("more", [[], ["uncordon"], ["uncordon", "cordon"]])
def test_forget_takes_back_what_commands_wrote(file: Path, swamp: Any, more: list[str]) -> None:
    assert swamp("worker", "drain", "w1", "--note", 'it\'s "old"').code == 0
    for verb in more:
        assert swamp("worker", verb, "w1").code == 0
    forgotten = swamp("worker", "forget", "w1")
    assert forgotten.out == "Forgot worker w1: its place with token w1 is free\n"
    assert not file.exists()
    [token] = swamp("worker", "token", "list", "--json").json
    assert (token["state"], token["bindingCount"]) == ("unused", 0)
    again = swamp("worker", "uncordon", "w1")
    assert again.code == 1
    assert again.err == "Error: no worker 'w1' is known here; see `swamp worker list --all`\n"


@pytest.mark.parametrize(
    ("written", "does"),
    [
        ("spec:\n  drain: true # for good\n", "is drained at once"),
        ("spec: {schedulable: false}\n", "gets no steps"),
        ("spec:\n  note: mine\n", "keeps no steps"),
        ("spec: [\n", "does not parse"),
    ],
)
def test_what_a_person_wrote_stays_and_what_it_does_is_said(
    file: Path, swamp: Any, written: str, does: str
) -> None:
    file.write_text(written)
    forgotten = swamp("worker", "forget", "w1", "--json").json
    assert forgotten["fileStays"].startswith(
        "datastore/desired/workers/w1.yaml stays, a person wrote in it: "
    )
    assert does in forgotten["fileStays"]
    assert file.read_text() == written
    assert forgotten["fileStays"] in swamp("worker", "cordon", "w1").err
    assert file.read_text() == written
