from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from record_samples import run, seen, token, worker

from datastore.engine import OpenedEngine, open_store
from datastore.journal import Story
from datastore.kinds import RUNS, TOKENS, WORKERS
from datastore.layout import Layout
from datastore.reader import read_live, read_records, read_story
from datastore.store import Store
from datastore.yaml_emitter import emit


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def running(layout: Layout, *, files: bool = True) -> tuple[Store, OpenedEngine]:
    """A started store; without `files` only its journal is written, as right before a crash."""
    store, engine, _ = open_store(layout)
    if not files:
        engine.observed.follow = lambda first_seq, ops: None  # type: ignore[method-assign]
    engine.start(asyncio.get_running_loop())
    return store, engine


async def stopped(layout: Layout) -> None:
    """A repository after a clean stop: workers `a` and `b`, a finished run, a story."""
    store, engine = running(layout)
    story = Story("@scope/wf", "r", "story: 1\n")
    store.commit([worker("b"), worker("a"), run("r", "failed")], story=story)
    await store.barrier()
    await asyncio.to_thread(engine.close)


def names(layout: Layout) -> list[str]:
    return [record.name for record in read_records(layout, WORKERS)]


async def test_records_of_a_stopped_repository_finished_ones_too(layout: Layout) -> None:
    await stopped(layout)
    found = read_records(layout, WORKERS)
    assert [record.document() for record in found] == [
        worker("a").document(),
        worker("b").document(),
    ]
    assert [record.state for record in read_records(layout, RUNS)] == ["failed"]
    assert read_records(layout, TOKENS) == []


async def test_journal_counts_over_index_and_files(layout: Layout) -> None:
    await stopped(layout)
    store, engine = running(layout, files=False)
    changed = seen(store.get(WORKERS, "a"), "later")
    store.commit([changed, worker("c")], [(WORKERS, "b")], Story("wf", "r2", "story: 2\n"))
    await store.barrier()
    found = {record.name: record.document() for record in read_records(layout, WORKERS)}
    assert found == {"a": changed.document(), "c": worker("c").document()}
    assert read_story(layout, "r2") == "story: 2\n"
    await asyncio.to_thread(engine.close)


async def test_without_journal_and_index_the_files_count(layout: Layout) -> None:
    await stopped(layout)
    layout.journal.unlink()
    layout.index.unlink()
    assert names(layout) == ["a", "b"]
    assert not layout.journal.exists() and not layout.index.exists()


@pytest.mark.parametrize("without", [(), ("journal.db",), ("journal.db", "index.db")])
@pytest.mark.parametrize("files", [True, False], ids=["files too", "journal ahead"])
async def test_the_live_ones_alone_are_those_among_all(
    layout: Layout, files: bool, without: tuple[str, ...]
) -> None:
    await stopped(layout)
    store, engine = running(layout, files=files)
    store.commit([run("r2", "failed"), run("r3"), worker("c")], removals=[(WORKERS, "b")])
    await store.barrier()
    if files:
        await asyncio.to_thread(engine.close)
    for name in without:
        for path in layout.private.glob(f"{name}*"):
            path.unlink()
    for kind in (RUNS, WORKERS, TOKENS):
        records = read_records(layout, kind)
        live = [record for record in records if record.live]
        assert read_live(layout, kind) == (live, len(records) - len(live))
    if not files:
        await asyncio.to_thread(engine.close)


async def test_a_folder_older_than_the_index_is_not_listed(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stopped(layout)
    for kind in (RUNS, WORKERS):
        os.utime(layout.observed(kind.folder), ns=(0, 0))
    monkeypatch.setattr(os, "listdir", lambda _: 1 / 0)
    live, others = read_live(layout, WORKERS)
    assert ([record.name for record in live], others) == (["a", "b"], 0)
    assert read_live(layout, RUNS) == ([], 1)


async def test_a_file_put_there_after_the_server_stopped_is_found(layout: Layout) -> None:
    await stopped(layout)
    layout.record_file("workers", "c").write_text(emit(worker("c").document()))
    live, others = read_live(layout, WORKERS)
    assert ([record.name for record in live], others) == (["a", "b", "c"], 0)


async def test_broken_journal_and_index_are_passed_over_with_a_word(
    layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    await stopped(layout)
    layout.journal.write_bytes(b"garbage" * 1000)
    layout.index.write_bytes(b"garbage" * 1000)
    with caplog.at_level(logging.WARNING):
        assert names(layout) == ["a", "b"]
    assert "journal.db is passed over" in caplog.text and "index.db" in caplog.text


async def test_file_that_is_no_record_is_passed_over_with_a_word(
    layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    await stopped(layout)
    layout.record_file("workers", "bad").write_text("kind: [\n")
    layout.record_file("workers", "good").write_text(emit(worker("good").document()))
    assert names(layout) == ["a", "b", "good"]
    assert "datastore/observed/workers/bad.yaml:" in caplog.text


async def test_reading_writes_no_record_and_no_database(layout: Layout) -> None:
    await stopped(layout)
    before = {
        path: path.stat().st_mtime_ns
        for path in layout.root.rglob("*")
        if path.is_file() and path.suffix != ".db-shm"
    }
    names(layout)
    read_story(layout, "r")
    after = {path: path.stat().st_mtime_ns for path in before}
    assert after == before


async def test_reading_beside_a_running_server_does_not_disturb_it(layout: Layout) -> None:
    store, engine = running(layout)
    for number in range(50):
        store.commit([worker(f"w{number:02}")])
        await store.barrier()
        assert len(await asyncio.to_thread(names, layout)) == number + 1
    assert engine.trouble is None
    await asyncio.to_thread(engine.close)


async def test_story_is_found_by_its_run(layout: Layout) -> None:
    await stopped(layout)
    assert read_story(layout, "r") == "story: 1\n"
    assert read_story(layout, "unknown") is None
    assert read_story(layout, "*") is None


def test_empty_folder_has_no_records(layout: Layout) -> None:
    assert read_records(layout, WORKERS) == []
    assert read_story(layout, "r") is None
    assert list(layout.root.iterdir()) == []


def test_reader_starts_without_the_event_loop(tmp_path: Path) -> None:
    code = "import sys, datastore.reader; print('asyncio' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"


async def test_one_kind_is_read_at_the_cost_of_that_kind(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stopped(layout)
    layout.record_file("tokens", "broken").write_text("kind: [\n")
    layout.record_file("tokens", "t").write_text(emit(token("t").document()))
    monkeypatch.setattr("datastore.record_file.load", lambda *_, **__: 1 / 0)
    assert names(layout) == ["a", "b"]
