from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from record_samples import lease, run, seen, token, worker

from datastore.engine import OpenedEngine, open_engine, open_store
from datastore.errors import DatastoreError
from datastore.journal import Story
from datastore.kinds import KINDS, LEASES, RUNS, TOKENS, WORKERS
from datastore.layout import Layout
from datastore.load_report import LoadReport
from datastore.observed import RescanReport
from datastore.sqlite_file import to_json
from datastore.store import Store
from datastore.yaml_emitter import emit
from datastore.yaml_loader import load


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


@asynccontextmanager
async def opened(layout: Layout) -> AsyncIterator[tuple[Store, LoadReport]]:
    """An open store, stopped cleanly at the end."""
    store, engine, report = open_store(layout)
    engine.start(asyncio.get_running_loop())
    yield store, report
    await asyncio.to_thread(engine.close)


async def crash_after(layout: Layout, commit: Callable[[Store], None]) -> None:
    """Leave what a process killed right after its commit leaves: the journal has it alone."""
    store, engine, _ = open_store(layout)
    engine.observed.follow = lambda first_seq, ops: None  # type: ignore[method-assign]
    engine.start(asyncio.get_running_loop())
    commit(store)
    await store.barrier()
    await asyncio.to_thread(abandon, engine)


def abandon(engine: OpenedEngine) -> None:
    engine._checkpointer.stop()
    engine.observed.stop()
    engine.journal.stop()
    engine.journal.close()
    engine._index.close()


def look(layout: Layout) -> OpenedEngine:
    """What an opening finds, nothing more."""
    engine = open_engine(layout, KINDS.values())
    abandon(engine)
    return engine


def live(engine: OpenedEngine) -> dict[str, bool]:
    """The live records by name, and whether they are vouched for."""
    return {record.name: vouched for record, vouched in engine.records}


def finished(engine: OpenedEngine) -> dict[str, Any]:
    found = engine.finished.values()
    return {name: json.loads(data) for some in found for name, data in some.items()}


def shown(layout: Layout, kind: str, name: str) -> dict[str, Any]:
    path = layout.record_file(kind, name)
    return load(path.read_bytes(), str(path)).value


def write_file(layout: Layout, kind: str, name: str, text: str) -> Path:
    path = layout.record_file(kind, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


async def test_everything_is_there_again_after_a_clean_stop(layout: Layout) -> None:
    async with opened(layout) as (store, report):
        assert report == LoadReport()
        store.commit([worker("w"), token("t"), lease("r.j.s.1")])
        store.commit([lease("r.j.s.2", state="bound")])
        failed = lease(state="failed").status
        assert failed is not None
        store.commit([store.get(LEASES, "r.j.s.2").with_status(failed)])
    async with opened(layout) as (store, report):
        assert store.get(WORKERS, "w").document() == worker("w").document()
        assert store.get(LEASES, "r.j.s.2").state == "failed"
        assert [found.name for found in store.live(LEASES)] == ["r.j.s.1"]
        assert report == LoadReport(
            live={"workers": 1, "tokens": 1, "leases": 1}, finished={"leases": 1}
        )
        store.commit([seen(store.get(WORKERS, "w"), "later")])


async def test_loaded_records_can_be_changed_and_finished_ones_cannot(layout: Layout) -> None:
    async with opened(layout) as (store, _):
        store.commit([worker("w", state="disconnected"), worker("v")])
    async with opened(layout) as (store, _):
        store.commit([seen(store.get(WORKERS, "w"), "later", "connected")])
        store.commit([seen(store.get(WORKERS, "v"), "later", "disconnected")])
    async with opened(layout) as (store, _):
        assert store.get(WORKERS, "w").state == "connected"
        assert store.get(WORKERS, "v").state == "disconnected"


async def test_journal_deleted_after_a_clean_stop_loses_nothing(layout: Layout) -> None:
    async with opened(layout) as (store, _):
        store.commit([worker("w")], story=Story("wf", "r1", "a: 1\n"))
        store.commit([seen(store.get(WORKERS, "w"), "later")])
    delete(layout.journal)
    engine = look(layout)
    assert [record.document() for record, _ in engine.records] == [
        seen(worker("w"), "later").document()
    ]
    assert live(engine) == {"w": True}
    assert layout.story_file("wf", "r1").read_text() == "a: 1\n"


async def test_after_a_crash_the_journal_brings_files_and_index_up_to_date(layout: Layout) -> None:
    async with opened(layout) as (store, _):
        store.commit([worker("changed"), worker("removed")])

    def commit(store: Store) -> None:
        story = Story("wf", "r1", "a: 1\n")
        changed = seen(store.get(WORKERS, "changed"), "later")
        store.commit([changed, token("new")], [(WORKERS, "removed")], story)

    await crash_after(layout, commit)
    assert not layout.record_file("tokens", "new").exists()
    engine = look(layout)
    assert live(engine) == {"changed": True, "new": True}
    assert engine.report.replayed == 4
    assert shown(layout, "workers", "changed") == seen(worker("changed"), "later").document()
    assert shown(layout, "tokens", "new") == token("new").document()
    assert not layout.record_file("workers", "removed").exists()
    assert layout.story_file("wf", "r1").read_text() == "a: 1\n"


async def test_edit_of_a_file_behind_the_journal_is_overwritten(layout: Layout) -> None:
    async with opened(layout) as (store, _):
        store.commit([worker("w")])
    await crash_after(layout, lambda s: s.commit([seen(s.get(WORKERS, "w"), "later")]))
    write_file(layout, "workers", "w", "edited: true\n")
    look(layout)
    assert shown(layout, "workers", "w") == seen(worker("w"), "later").document()


async def test_files_edited_or_deleted_while_stopped_are_put_back(layout: Layout) -> None:
    async with opened(layout) as (store, _):
        store.commit([worker("edited"), worker("gone"), worker("same"), run("r", "failed")])
    text = layout.record_file("runs", "r").read_text()
    write_file(layout, "runs", "r", text.replace("failed", "running"))
    write_file(layout, "workers", "edited", "kind: Nonsense\n")
    layout.record_file("workers", "gone").unlink()
    engine = look(layout)
    assert engine.report.put_back == [
        "datastore/observed/workers/edited.yaml",
        "datastore/observed/runs/r.yaml",
    ]
    assert engine.report.restored == ["datastore/observed/workers/gone.yaml"]
    assert live(engine) == {"edited": True, "gone": True, "same": True}
    assert finished(engine) == {"r": run("r", "failed").document()}
    for name in ("edited", "gone"):
        assert shown(layout, "workers", name) == worker(name).document()
    assert shown(layout, "runs", "r")["status"]["state"] == "failed"
    again = look(layout).report
    assert (again.put_back, again.restored) == ([], [])


async def test_without_journal_and_index_the_finished_stay_and_the_live_are_unvouched(
    layout: Layout,
) -> None:
    async with opened(layout) as (store, _):
        store.commit([lease("r.j.a.1"), lease("r.j.b.1"), worker("w")])
        failed = lease(state="failed").status
        assert failed is not None
        store.commit([store.get(LEASES, "r.j.b.1").with_status(failed)])
        ended = store.get(LEASES, "r.j.b.1").document()
    delete(layout.journal)
    delete(layout.index)
    for _ in range(2):
        # The second time too: being looked at does not make a live record vouched for.
        engine = look(layout)
        assert live(engine) == {"r.j.a.1": False, "w": False}
        assert set(engine.report.unvouched) == {("leases", "r.j.a.1"), ("workers", "w")}
        assert finished(engine) == {"r.j.b.1": ended}


async def test_without_journal_and_index_a_token_stays_valid_and_is_the_servers_own_again(
    layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(layout) as (store, _):
        store.commit([token("t")])
    delete(layout.journal)
    delete(layout.index)
    store, engine, report = open_store(layout)
    file = "datastore/observed/tokens/t.yaml"
    assert (report.taken_over, report.unvouched) == ([file], [])
    (said,) = caplog.messages
    assert said.startswith(f"{file} was not written by this server and is taken over as it is")
    assert store.get(TOKENS, "t").live
    assert engine.rescan() == RescanReport(), "nor is it told as a file of nobody"
    path = layout.record_file("tokens", "t")
    path.write_text(path.read_text() + "# mine\n")
    assert engine.rescan().put_back == (file,)
    assert shown(layout, "tokens", "t") == token("t").document()
    abandon(engine)
    assert look(layout).report.taken_over == []


async def test_finished_file_of_somebody_else_is_taken_once_as_it_is(layout: Layout) -> None:
    text = "# restored from a backup\n" + emit(token("t", "revoked").document())
    path = write_file(layout, "tokens", "t", text)
    engine = look(layout)
    assert engine.report.adopted == ["datastore/observed/tokens/t.yaml"]
    assert finished(engine) == {"t": token("t", "revoked").document()}
    assert path.read_text() == text
    assert look(layout).report.adopted == []


async def test_ended_unvouched_record_stays_ended(layout: Layout) -> None:
    write_file(layout, "leases", "r.j.s.1", emit(lease("r.j.s.1").document()))
    _, engine, report = open_store(layout)
    assert report.unvouched == [("leases", "r.j.s.1")]
    abandon(engine)
    expired = lease(state="expired").status
    assert expired is not None

    def end(store: Store) -> None:
        store.commit([store.get(LEASES, "r.j.s.1").with_status(expired)])

    await crash_after(layout, end)
    engine = look(layout)
    assert live(engine) == {}
    assert finished(engine)["r.j.s.1"]["status"]["state"] == "expired"
    assert finished(engine)["r.j.s.1"]["spec"] == lease("r.j.s.1").document()["spec"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("kind: Worker", "kind: Lease"), r"w.yaml:2:1: kind is 'Lease', expected 'Worker'"),
        (("name: w", "name: v"), r"w.yaml:4:3: metadata.name is 'v', expected 'w'"),
        (("swamp/v1", "swamp/v2"), r"w.yaml:1:1: apiVersion is 'swamp/v2'"),
        (("capacity: 2", "capacity: many"), r"w.yaml:\d+:3: status.capacity: .*integer"),
        (("schedulable: true", "shedulable: true"), r"w.yaml:8:3: spec.shedulable: "),
        (("state: connected", "state: [connected"), r"w.yaml:\d+:\d+: "),
        (("uid: uid-w", "uid: 7"), r"w.yaml:5:3: metadata.uid is missing or no text"),
    ],
)
async def test_file_that_is_no_record_is_reported_and_left_alone(
    layout: Layout, change: tuple[str, str], problem: str
) -> None:
    text = emit(worker("w").document())
    assert change[0] in text
    path = write_file(layout, "workers", "w", text.replace(*change))
    before = path.read_bytes()
    write_file(layout, "workers", "good", emit(worker("good").document()))
    engine = look(layout)
    (found,) = engine.report.invalid
    assert str(found).startswith("datastore/observed/workers/")
    assert re.search(problem, str(found)), str(found)
    assert live(engine) == {"good": False}
    assert path.read_bytes() == before


async def test_one_bad_row_in_index_or_journal_never_stops_the_start(layout: Layout) -> None:
    async with opened(layout) as (store, _):
        store.commit([worker("bad"), worker("garbled"), worker("good")])
    with sqlite3.connect(layout.index) as db:
        somewhere = worker("bad").document()
        somewhere["status"]["state"] = "somewhere"
        change = "UPDATE workers SET document = ? WHERE name = ?"
        db.execute(change, (to_json(somewhere), "bad"))
        db.execute(change, (b"\xff{", "garbled"))
    db.close()
    with sqlite3.connect(layout.journal) as db:
        rows = [
            (1, 1, "workers", "lost", b'{"metadata":{"uid":"u"},"status":{}}'),
            (2, 2, "unknown", "x", b'{"spec":{}}'),
        ]
        db.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", rows)
    db.close()
    engine = look(layout)
    assert live(engine) == {"good": True}
    problems = sorted(str(error) for error in engine.report.invalid)
    assert [problem.split(": ")[0].rpartition("/")[2] for problem in problems] == [
        "journal.db",
        "bad.yaml",
        "garbled.yaml",
        "lost.yaml",
    ]


async def test_status_is_not_laid_over_the_spec_of_another_record_of_that_name(
    layout: Layout,
) -> None:
    async with opened(layout) as (store, _):
        store.commit([worker("w")])
    await crash_after(layout, lambda s: s.commit([seen(s.get(WORKERS, "w"), "later")]))
    delete(layout.index)
    text = emit(worker("w").document())
    write_file(layout, "workers", "w", text.replace("uid-w", "uid-of-another"))
    engine = look(layout)
    assert live(engine) == {}
    assert "only its last status is known" in str(engine.report.invalid[0])


async def test_broken_index_is_begun_anew_and_the_journal_still_counts(layout: Layout) -> None:
    async with opened(layout) as (store, _):
        store.commit([worker("w"), worker("v")])
    await crash_after(layout, lambda s: s.commit([seen(s.get(WORKERS, "w"), "later")]))
    layout.index.write_bytes(b"garbage" * 1000)
    engine = look(layout)
    # The status is in the journal, the spec below it in the file.
    assert live(engine) == {"w": True, "v": False}
    assert shown(layout, "workers", "w") == seen(worker("w"), "later").document()


async def test_index_broken_in_the_middle_vouches_for_nothing(layout: Layout) -> None:
    async with opened(layout) as (store, _):
        store.commit([worker(f"w{number}", note="x" * 500) for number in range(300)])
        store.commit([token("t", "revoked"), run("r", "failed")])
    data = bytearray(layout.index.read_bytes())
    for page in range(8, len(data) // 4096):
        data[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    layout.index.write_bytes(data)
    engine = look(layout)
    assert set(live(engine).values()) == {False} and len(live(engine)) == 300
    assert finished(engine) == {
        "t": token("t", "revoked").document(),
        "r": run("r", "failed").document(),
    }
    assert set(look(layout).report.adopted) == set()


async def test_broken_journal_refuses_the_start(layout: Layout) -> None:
    async with opened(layout) as (store, _):
        store.commit([worker("w")])
    layout.journal.write_bytes(b"garbage" * 1000)
    with pytest.raises(DatastoreError, match=r"journal.db cannot be read.*move it away"):
        open_engine(layout, KINDS.values())


async def test_start_does_not_parse_files_that_the_index_vouches_for(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(layout) as (store, _):
        store.commit([worker("w"), token("t", "revoked")])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr("datastore.record_file.load", refuse)
    assert live(look(layout)) == {"w": True}


async def test_left_over_temporary_files_are_swept(layout: Layout) -> None:
    async with opened(layout) as (store, _):
        store.commit([worker("w")])
    left = layout.observed("workers") / ".123-4.tmp"
    person = layout.observed("workers") / ".w.yaml.swp"
    left.touch()
    person.touch()
    look(layout)
    assert not left.exists() and person.exists()


async def test_files_follow_within_fifty_milliseconds(layout: Layout) -> None:
    async with opened(layout) as (store, _):
        await asyncio.sleep(0.05)
        late = []
        for number in range(20):
            store.commit([worker(f"w{number}")])
            await store.barrier()
            started_at = asyncio.get_running_loop().time()
            while not layout.record_file("workers", f"w{number}").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            late.append(asyncio.get_running_loop().time() - started_at)
        assert sorted(late)[len(late) // 2] < 0.05


async def test_rescan_puts_back_while_running(layout: Layout) -> None:
    store, engine, _ = open_store(layout)
    engine.start(asyncio.get_running_loop())
    store.commit([worker("w")])
    await store.barrier()
    while not layout.record_file("workers", "w").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    shutil.rmtree(layout.observed("workers"))
    while engine.observed.shown_through() < 1:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    report = await asyncio.to_thread(engine.rescan)
    assert report.restored == ("datastore/observed/workers/w.yaml",)
    assert engine.trouble is None
    await asyncio.to_thread(engine.close)


async def test_close_leaves_an_empty_journal(layout: Layout) -> None:
    async with opened(layout) as (store, _):
        for number in range(50):
            store.commit([worker(f"w{number}")])
    with sqlite3.connect(layout.journal) as db:
        assert db.execute("SELECT count(*) FROM rows").fetchone() == (0,)
    db.close()


async def test_close_keeps_in_the_journal_what_the_files_could_not_take(layout: Layout) -> None:
    store, engine, _ = open_store(layout)
    shutil.rmtree(layout.observed("workers"))
    layout.observed("workers").touch()
    engine.start(asyncio.get_running_loop())
    store.commit([worker("w"), token("t")])
    await store.barrier()
    while engine.trouble is None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.to_thread(engine.close, 0.1)
    layout.observed("workers").unlink()
    assert live(look(layout)) == {"w": True, "t": True}
    assert shown(layout, "workers", "w") == worker("w").document()


def test_kinds_without_records_cost_nothing(layout: Layout) -> None:
    store, engine, report = open_store(layout)
    assert report == LoadReport()
    assert store.count(RUNS) == store.count(TOKENS) == 0
    engine.close()


async def test_private_folder_removed_while_running_loses_nothing(layout: Layout) -> None:
    """`git clean -fdx` removes journal, index and records, as git ignores them all."""
    store, engine, _ = open_store(layout)
    engine.start(asyncio.get_running_loop())
    store.commit([worker("settled"), token("t")])
    await store.barrier()
    while engine.observed.shown_through() < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.to_thread(engine._checkpointer.run_once)
    engine.journal.delete_through(2)
    engine.observed.follow = lambda first_seq, ops: None  # type: ignore[method-assign]
    store.commit([seen(store.get(WORKERS, "settled"), "only in the journal")])
    await store.barrier()
    shutil.rmtree(layout.private)
    shutil.rmtree(layout.observed("workers"))
    store.commit([worker("later")])
    await store.barrier()
    await asyncio.to_thread(engine.rescan)
    # From here on as after kill -9.
    shutil.copytree(layout.root, layout.root / "copy")
    found = look(Layout(layout.root / "copy"))
    assert live(found) == {"settled": True, "later": True, "t": True}
    settled = {record.name: record for record, _ in found.records}["settled"]
    assert settled.document() == seen(worker("settled"), "only in the journal").document()
    await asyncio.to_thread(engine.close)
