from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from record_samples import run, worker

from datastore import private_folder
from datastore.clock import SystemClock
from datastore.engine import OpenedEngine, open_store
from datastore.errors import Degraded, RepositoryLocked, RepositoryMoved, RepositoryTaken
from datastore.event_tail import TAIL_EVENTS
from datastore.events import EventLog
from datastore.files import Edition
from datastore.index import DefinitionRow, Index
from datastore.journal import Put
from datastore.kinds import RUNS, WORKERS
from datastore.layout import Layout
from datastore.lock import RepositoryLock
from datastore.private_folder import PrivateFolder
from datastore.sqlite_journal import SqliteJournal
from datastore.store import Store
from datastore.watched_folders import WatchedFolders


class Served:
    """What a server has open."""

    def __init__(self, lock: RepositoryLock) -> None:
        self.lock = lock
        self.layout = lock.layout
        self.store: Store
        self.engine: OpenedEngine
        self.store, self.engine, _ = open_store(self.layout)
        self.engine.start(asyncio.get_running_loop())
        self.events = EventLog(
            self.layout.events, SystemClock(), self.store.after_barrier, self.layout.expect_root
        )
        self.private = PrivateFolder(self.layout, lock, self.engine, self.events)

    async def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 5
        while not true():
            assert time.monotonic() < deadline, "waited in vain"
            await asyncio.sleep(0.01)

    async def log(self, name: str, count: int) -> list[dict[str, object]]:
        """The events in a run's file once there are so many."""
        path = self.layout.events / f"{name}.jsonl"
        async with asyncio.timeout(5):
            while True:
                lines = path.read_bytes().splitlines() if path.exists() else []
                if len(lines) == count:
                    return [json.loads(line) for line in lines]
                await asyncio.sleep(0.01)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    with RepositoryLock(Layout(tmp_path)) as lock:
        made = Served(lock)
        keeping = asyncio.ensure_future(made.private.keep())
        await asyncio.sleep(0)
        yield made
        keeping.cancel()
        await asyncio.wait([keeping])
        await asyncio.to_thread(made.events.close)
        await asyncio.to_thread(made.engine.close)


async def test_everything_is_written_again_though_nothing_happens(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    layout = served.layout
    layout.key.write_bytes(b"k" * 32)
    served.store.commit([worker("w1"), run("r1")])
    await served.store.barrier()
    await asyncio.sleep(0.7)
    assert caplog.messages == []
    shutil.rmtree(layout.private)
    for path in (layout.lock, layout.journal, layout.index, layout.key, layout.data):
        await served.until(path.exists)
    assert layout.key.read_bytes() == b"k" * 32 and layout.key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(RepositoryLocked):
        RepositoryLock(layout).acquire()
    await served.until(lambda: ".swamp/key were removed: written again" in caplog.text)
    assert ".swamp/data/ was removed: what was in it is lost" in caplog.text

    # A power cut now would lose nothing: what is on disk is enough for a start.
    copy = layout.root.with_name("copy")
    shutil.copytree(layout.root, copy)
    found, engine, _ = await asyncio.to_thread(open_store, Layout(copy))
    assert found.get(WORKERS, "w1").live and found.get(RUNS, "r1").live
    engine.start(asyncio.get_running_loop())
    await asyncio.to_thread(engine.close)


async def test_the_journal_is_whole_at_its_place_again(tmp_path: Path) -> None:
    """Its rows may be in no other file yet."""
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.start(asyncio.get_running_loop(), lambda first_seq, ops: None)
    durable = asyncio.Event()
    journal.append((Put(worker("w1"), False), Put(run("r1"), False)), durable.set)
    await durable.wait()
    path.unlink()
    assert journal.removed
    journal.restore()
    await asyncio.to_thread(journal.stop)
    again = SqliteJournal(path)
    assert [row.name for row in again.rows()] == ["w1", "r1"]
    journal.close()
    again.close()


@pytest.mark.parametrize("count", [3, TAIL_EVENTS + 10])
async def test_events_of_live_runs_keep_their_numbers(served: Served, count: int) -> None:
    for number in range(count):
        served.events.emit("r1", f"k{number}", "note", text=str(number))
    await served.log("r1", count)
    shutil.rmtree(served.layout.events)
    served.events.emit("r1", "later", "note", text="later")
    lines = await served.log("r1", count + 1)
    assert [line["seq"] for line in lines] == list(range(1, count + 2))
    known = [line for line in lines if line["kind"] == "note"]
    assert [line["text"] for line in known][-2:] == [str(count - 1), "later"]
    assert len(known) == min(count + 1, TAIL_EVENTS)

    # After a restart nothing is told twice.
    again = EventLog(served.layout.events, SystemClock(), served.store.after_barrier)
    again.recover(["r1"])
    for number in (0, count - 1):
        again.emit("r1", f"k{number}", "note", text="twice")
    again.emit("r1", "last", "run_completed")
    assert (await served.log("r1", count + 2))[-1]["kind"] == "run_completed"
    await asyncio.to_thread(again.close)


async def test_a_lock_that_another_process_took_ends_it(tmp_path: Path) -> None:
    """Regression: it went on, and wrote between the rows of the other's journal."""
    with RepositoryLock(Layout(tmp_path)) as lock:
        made = Served(lock)
        made.store.commit([worker("w1")])
        await made.store.barrier()
        keeping = asyncio.ensure_future(made.private.keep())
        tmp_path.joinpath(".swamp/lock").unlink()
        with RepositoryLock(Layout(tmp_path)) as other:
            other_store, other_engine, _ = await asyncio.to_thread(open_store, other.layout)
            other_engine.start(asyncio.get_running_loop())
            async with asyncio.timeout(5):
                with pytest.raises(RepositoryTaken, match=f"is served by pid {os.getpid()} "):
                    await keeping
            made.store.commit([run("r1")])
            made.events.emit("r1", "k", "note", text="text")
            other_store.commit([run("r2")])
            await other_store.barrier()
            await asyncio.to_thread(made.events.close, 0.1)
            with pytest.raises(Degraded, match="another process serves this folder"):
                await asyncio.to_thread(made.engine.close, 0.0)
            await asyncio.to_thread(other_engine.close)
            assert list(made.layout.events.iterdir()) == []
            found, engine, _ = await asyncio.to_thread(open_store, other.layout)
            engine.abandon()
        assert found.find(RUNS, "r1") is None
        assert found.get(RUNS, "r2").live and found.get(WORKERS, "w1").live


@pytest.mark.parametrize("removed", [".swamp/lock", ".swamp"])
async def test_nothing_gets_into_the_journal_of_who_has_the_lock(
    tmp_path: Path, removed: str
) -> None:
    """Regression: until the lock was looked at, rows of the same numbers went into that journal, or
    another one was put in its place."""
    with RepositoryLock(Layout(tmp_path)) as lock:
        made = Served(lock)
        gone = tmp_path / removed
        await asyncio.to_thread(shutil.rmtree if gone.is_dir() else Path.unlink, gone)
        with RepositoryLock(Layout(tmp_path)) as other:
            store, engine, _ = await asyncio.to_thread(open_store, other.layout)
            engine.start(asyncio.get_running_loop())
            store.commit([run("r2")])
            await store.barrier()
            inode = other.layout.journal.stat().st_ino
            made.store.commit([run("r1")])
            await made.until(lambda: made.engine.journal.trouble is not None)
            await asyncio.to_thread(made.events.close)
            with pytest.raises(Degraded, match="another process serves this folder"):
                await asyncio.to_thread(made.engine.close, 0.0)
            assert other.layout.journal.stat().st_ino == inode
            await asyncio.to_thread(engine.close)
            found, engine, _ = await asyncio.to_thread(open_store, other.layout)
            engine.abandon()
        assert found.names(RUNS) == ("r2",)


async def test_a_lock_that_goes_while_room_is_looked_for_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: that look waits for a slow disk, and the lock was looked at before it."""
    with RepositoryLock(Layout(tmp_path)) as lock:
        made, other = Served(lock), RepositoryLock(Layout(tmp_path))
        taken: list[RepositoryLock] = []

        def look(folder: Path) -> bool:
            if not taken:
                lock.layout.lock.unlink()
                taken.append(other.acquire())
            return False

        monkeypatch.setattr("datastore.sqlite_journal.is_full", look)
        made.store.commit([run("r1")])
        await made.until(lambda: made.engine.journal.trouble is not None or not made.store.behind)
        assert "another process serves this folder" in str(made.engine.journal.trouble)
        await asyncio.to_thread(made.events.close)
        with pytest.raises(Degraded):
            await asyncio.to_thread(made.engine.close, 0.0)
        other.release()
        found, engine, _ = await asyncio.to_thread(open_store, Layout(tmp_path))
        engine.abandon()
        assert found.names(RUNS) == ()


async def test_nothing_that_waits_gets_into_the_files_of_who_has_the_lock(tmp_path: Path) -> None:
    """Regression: until the lock was looked at, what had waited to follow the journal was written
    over what the other one had made of it since, into its index as well."""
    with RepositoryLock(Layout(tmp_path)) as lock:
        made = Served(lock)
        made.store.commit([worker("w1"), run("r1")])
        await made.store.barrier()
        made.events.emit("r2", "k", "note")
        await made.log("r2", 1)
        layout, observed = made.layout, made.engine.observed
        with observed.files_lock:
            made.store.commit(removals=[(WORKERS, "w1"), (RUNS, "r1")])
            made.store.commit([run("r3")])
            await made.store.barrier()
            layout.lock.unlink()
            other = RepositoryLock(Layout(tmp_path)).acquire()
        # As the other one has made them again meanwhile.
        kept = [layout.record_file("runs", "r1"), layout.record_file("workers", "w1")]
        for path in kept:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("theirs")
        gone = asyncio.Event()
        made.events.forget("r2", gone.set)
        async with asyncio.timeout(5):
            await gone.wait()
        made.events.emit("r1", "k", "note")
        stale = DefinitionRow("path", Edition(1, 1, 1), "digest", "ok", "name", "", b"{}")
        assert not made.engine.definitions.update([stale], ())
        await made.until(lambda: observed.trouble is not None)
        assert "another process serves this folder" in str(observed.trouble)
        with contextlib.suppress(Degraded):
            await asyncio.to_thread(made.engine.close, 0.0)
        assert [path.read_text() for path in kept] == ["theirs"] * 2
        assert not layout.record_file("runs", "r3").exists()
        assert [path.name for path in layout.events.iterdir()] == ["r2.jsonl"]
        index = Index(layout.index, [RUNS.folder])
        assert index.document(RUNS.folder, "r3") is None and list(index.definitions()) == []
        index.close()
        assert layout.held is not None
        # So that no thread of it goes on to try.
        layout.held.locked_by(layout.lock, layout.lock.stat().st_ino)
        await asyncio.to_thread(made.events.close)
        other.release()


async def test_that_no_file_can_be_opened_is_told_as_that(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(private_folder, "read_bytes", refuse)
        await served.until(lambda: bool(caplog.messages))
    assert caplog.messages[0].startswith(".swamp/ cannot be looked at: ")
    await served.until(lambda: len(caplog.messages) > 1)
    assert caplog.messages[1].startswith("no longer so: ") and "removed" not in caplog.text


async def test_to_begin_without_a_file_to_open_ends_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: it ended the whole server, where a moment later it would have been told."""

    def refuse(self: WatchedFolders) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    another = PrivateFolder(served.layout, served.lock, served.engine, served.events)
    with monkeypatch.context() as patched:
        patched.setattr(WatchedFolders, "hold", refuse)
        keeping = asyncio.ensure_future(another.keep())
        await served.until(lambda: another.trouble is not None or keeping.done())
    await served.until(lambda: another.trouble is None or keeping.done())
    assert not keeping.done()
    keeping.cancel()
    await asyncio.wait([keeping])
    assert caplog.messages[0].startswith(".swamp/ cannot be looked at: Too many open files")


async def test_a_root_that_is_another_folder_is_left_alone(tmp_path: Path) -> None:
    root, moved = tmp_path / "root", tmp_path / "moved"
    root.mkdir()
    with RepositoryLock(Layout(root)) as lock:
        made = Served(lock)
        keeping = asyncio.ensure_future(made.private.keep())
        made.store.commit([worker("w1")])
        await made.store.barrier()
        await made.until((root / "datastore/observed/workers/w1.yaml").exists)
        root.rename(moved)
        root.mkdir()
        made.store.commit([run("r1")])
        made.events.emit("r1", "k", "note", text="text")
        await made.store.barrier()
        async with asyncio.timeout(5):
            with pytest.raises(RepositoryMoved, match=f"was moved to {moved} .* another folder is"):
                await keeping
        with pytest.raises(RepositoryLocked):
            RepositoryLock(Layout(moved)).acquire()
        await asyncio.to_thread(made.events.close, 0.1)
        await asyncio.to_thread(made.engine.close, 0.0)
        assert list(root.iterdir()) == []
    with RepositoryLock(Layout(moved)) as lock:
        found, engine, _ = await asyncio.to_thread(open_store, lock.layout)
        assert found.get(RUNS, "r1").live, "what was acknowledged went along"
        engine.abandon()


async def test_a_root_that_is_gone_for_a_moment_is_served_on(served: Served) -> None:
    root, moved = served.layout.root, served.layout.root.with_name("for-a-moment")
    root.rename(moved)
    await asyncio.sleep(0.1)
    moved.rename(root)
    served.store.commit([worker("w1")])
    await served.until((root / "datastore/observed/workers/w1.yaml").exists)
    assert served.private.trouble is None


async def test_the_journal_goes_along_with_a_root_that_is_moved(served: Served) -> None:
    """Regression: it looked for room at the old path, and acknowledged nothing any more."""
    root, moved = served.layout.root, served.layout.root.with_name("for-longer")
    await asyncio.sleep(0.2)
    root.rename(moved)
    served.store.commit([worker("w1")])
    async with asyncio.timeout(2):
        await served.store.barrier()
    assert not root.exists()
    moved.rename(root)
    await served.until((root / "datastore/observed/workers/w1.yaml").exists)


async def test_a_root_that_was_removed_ends_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with RepositoryLock(Layout(root)) as lock:
        made = Served(lock)
        keeping = asyncio.ensure_future(made.private.keep())
        await asyncio.sleep(0)
        await asyncio.to_thread(shutil.rmtree, root)
        async with asyncio.timeout(5):
            with pytest.raises(RepositoryMoved, match=r"was removed .* nothing is there now"):
                await keeping
        await asyncio.to_thread(made.events.close, 0.1)
        await asyncio.to_thread(made.engine.close, 0.0)
    assert not root.exists()
