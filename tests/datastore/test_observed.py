from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from record_samples import lease, run, seen, token, worker

from datastore.checkpoint import Checkpointer
from datastore.files import stat_of
from datastore.index import Index
from datastore.journal import Put, Remove, Story
from datastore.kinds import KINDS, LEASES, WORKERS
from datastore.layout import Layout, create_folders
from datastore.observed import ObservedWriter, RescanReport, Verdict
from datastore.observed_files import data_of
from datastore.yaml_loader import load


@dataclass
class Fixture:
    layout: Layout
    index: Index
    writer: ObservedWriter

    def file(self, kind: str, name: str) -> Path:
        return self.layout.record_file(kind, name)

    def shown(self, kind: str, name: str) -> dict[str, Any]:
        return load(self.file(kind, name).read_bytes(), name).value


@pytest.fixture
def observed(tmp_path: Path) -> Iterator[Fixture]:
    layout = Layout(tmp_path)
    create_folders(layout)
    index = Index(layout.index, KINDS)
    writer = ObservedWriter(layout, KINDS.values(), index)
    yield Fixture(layout, index, writer)
    writer.stop(0.0)
    index.close()


def until(holds: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait for what another thread does without telling anybody."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.002)


def test_file_and_index_show_the_latest_change_of_each_record(observed: Fixture) -> None:
    first = worker("a")
    observed.writer.follow(1, [Put(first), Put(token("t"))])
    observed.writer.follow(3, [Put(seen(first, "later")), Put(lease("r.j.s.1", state="failed"))])
    observed.writer.catch_up()
    assert observed.shown("workers", "a") == seen(first, "later").document()
    assert observed.shown("tokens", "t") == token("t").document()
    (row,) = observed.index.rows("workers")
    assert (row.stat, row.finished) == (stat_of(observed.file("workers", "a")), False)
    assert [row.finished for row in observed.index.rows("leases")] == [True]
    assert observed.writer.shown_through() == 4


def test_removed_record_loses_its_file_and_its_row(observed: Fixture) -> None:
    observed.writer.follow(1, [Put(worker("a")), Remove(LEASES, "never")])
    observed.writer.catch_up()
    observed.writer.follow(3, [Remove(WORKERS, "a")])
    observed.writer.catch_up()
    assert not observed.file("workers", "a").exists()
    assert list(observed.index.rows("workers")) == []
    assert observed.writer.trouble is None


def test_more_than_one_round_is_written_in_order(
    observed: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datastore.observed.ROUND_MAX", 3)
    observed.writer.follow(1, [Put(worker(f"w{number}")) for number in range(7)])
    assert observed.writer.round() == 3
    assert observed.writer.shown_through() == 3
    observed.writer.catch_up()
    assert observed.writer.shown_through() == 7


def test_thread_writes_soon_after_it_is_told(observed: Fixture) -> None:
    observed.writer.start()
    observed.writer.follow(1, [Put(worker("a"))])
    until(lambda: observed.writer.shown_through() == 1)
    for number in range(200):
        observed.writer.follow(2 + number, [Put(seen(worker("a"), str(number)))])
    until(lambda: observed.writer.shown_through() == 201)
    assert observed.shown("workers", "a")["status"]["lastSeenAt"] == "199"


def test_stop_writes_everything_first(observed: Fixture) -> None:
    observed.writer.start()
    observed.writer.follow(1, [Put(worker(f"w{number}")) for number in range(500)])
    observed.writer.stop()
    assert len(list(observed.layout.observed("workers").glob("*.yaml"))) == 500


def test_story_is_written_once_in_a_safe_folder_and_never_again(observed: Fixture) -> None:
    observed.writer.follow(1, [Story("@a/../b", "r1", "first: 1\n")])
    observed.writer.catch_up()
    path = observed.layout.history / "@a%2F..%2Fb" / "r1.yaml"
    assert path.read_text() == "first: 1\n"
    observed.writer.follow(2, [Story("@a/../b", "r1", "second: 2\n")])
    observed.writer.catch_up()
    assert path.read_text() == "first: 1\n"


def test_story_that_a_power_cut_left_empty_is_written_again(observed: Fixture) -> None:
    path = observed.layout.story_file("wf", "r1")
    path.parent.mkdir()
    path.touch()
    observed.writer.follow(1, [Story("wf", "r1", "whole: 1\n")])
    observed.writer.catch_up()
    assert path.read_text() == "whole: 1\n"


def test_removed_folder_is_made_again_with_its_gitignore(observed: Fixture) -> None:
    folder = observed.layout.observed("workers")
    shutil.rmtree(folder)
    observed.writer.follow(1, [Put(worker("a"))])
    observed.writer.catch_up()
    assert (folder / ".gitignore").read_text() == "*\n!.gitignore\n"
    assert observed.shown("workers", "a") == worker("a").document()


def test_troubles_of_a_round_after_the_other_are_told_once_each(
    observed: Fixture, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: while more was refused than a round takes, each round told its own trouble as if
    it were a new one, and one that went well said that all was over: 20 lines a minute for ever."""
    monkeypatch.setattr("datastore.observed.ROUND_MAX", 2)
    monkeypatch.setattr("datastore.observed._BACKOFF_MAX_S", 0.0)
    monkeypatch.setattr("datastore.observed._BACKOFF_FIRST_S", 0.0)
    history = observed.layout.story_file("w", "r").parent.parent
    workers = observed.layout.observed("workers")
    shutil.rmtree(workers)
    shutil.rmtree(history, ignore_errors=True)
    workers.touch()
    history.touch()
    records = [Put(worker(name)) for name in "abc"]
    stories = [Story("w", run, "text") for run in ("r1", "r2", "r3")]
    fine = [Put(token(name)) for name in "tuv"]
    observed.writer.follow(1, [*records, *stories, *fine])
    for _ in range(20):
        observed.writer.round()
    assert [message.split(" cannot")[0] for message in caplog.messages] == [
        "the files of datastore/observed/",
        "the files of datastore/history/",
    ]
    told = str(observed.writer.trouble)
    assert "datastore/observed/" in told.split("; ")[0] and "datastore/history/" in told
    caplog.clear()
    history.unlink()
    for _ in range(20):
        observed.writer.round()
    (over,) = caplog.messages
    assert over.startswith("no longer so: the files of datastore/history/ cannot be written")
    assert "history" not in str(observed.writer.trouble)
    workers.unlink()
    observed.writer.catch_up()
    assert caplog.messages[1:] == ["the files of datastore/ can be written again"]
    assert observed.writer.trouble is None


def test_refused_write_is_retried_and_holds_up_nobody_else(observed: Fixture) -> None:
    folder = observed.layout.observed("workers")
    shutil.rmtree(folder)
    folder.touch()
    observed.writer.start()
    observed.writer.follow(1, [Put(token("t")), Put(worker("a"))])
    until(lambda: observed.writer.trouble is not None)
    assert observed.shown("tokens", "t") == token("t").document()
    observed.writer.follow(3, [Put(seen(worker("a"), "later")), Put(token("u"))])
    until(lambda: observed.file("tokens", "u").exists())
    assert observed.writer.shown_through() == 1
    assert "cannot be written" in str(observed.writer.trouble)
    folder.unlink()
    until(lambda: observed.writer.shown_through() == 4)
    assert observed.writer.trouble is None
    assert observed.shown("workers", "a")["status"]["lastSeenAt"] == "later"


def test_a_tree_that_cannot_be_written_is_one_line_whatever_changes_in_it(
    observed: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = ("workers", "tokens")
    for kind in kinds:
        shutil.rmtree(observed.layout.observed(kind))
        observed.layout.observed(kind).touch()
    observed.writer.start()
    for seq, op in enumerate((Put(worker("a")), Put(token("t")), Put(worker("b"))), 1):
        observed.writer.follow(seq, [op])
        until(lambda seq=seq: len(observed.writer._failed) == seq)
    assert caplog.messages == [
        "the files of datastore/observed/ cannot be written: Not a directory;"
        " nothing is lost, it is tried again until it succeeds"
    ]
    for kind in kinds:
        observed.layout.observed(kind).unlink()
    until(lambda: observed.writer.shown_through() == 3)
    until(lambda: caplog.messages[1:] == ["the files of datastore/ can be written again"])


def test_change_that_was_refused_never_undoes_a_newer_one(observed: Fixture) -> None:
    folder = observed.layout.observed("workers")
    shutil.rmtree(folder)
    folder.touch()
    observed.writer.follow(1, [Put(worker("a"))])
    observed.writer.catch_up()
    folder.unlink()
    observed.writer.follow(2, [Put(seen(worker("a"), "newer"))])
    observed.writer.catch_up()
    assert observed.writer.shown_through() == 2
    observed.writer.start()
    observed.writer.stop()
    assert observed.shown("workers", "a")["status"]["lastSeenAt"] == "newer"


def test_record_that_is_no_clean_yaml_is_kept_and_holds_up_nobody(observed: Fixture) -> None:
    odd = run("odd", inputs={"huge": 1 << 70})
    observed.writer.follow(1, [Put(odd), Put(run("plain"))])
    observed.writer.catch_up()
    assert observed.writer.shown_through() == 2
    assert str(1 << 70) in observed.file("runs", "odd").read_text()
    assert {row.name for row in observed.index.rows("runs")} == {"odd", "plain"}


def test_own_writes_are_known_by_their_stat(observed: Fixture) -> None:
    observed.writer.follow(1, [Put(worker("a"))])
    observed.writer.catch_up()
    path = observed.file("workers", "a")
    assert observed.writer.is_own(path, stat_of(path))
    assert not observed.writer.is_own(observed.file("tokens", "a"), stat_of(path))
    assert not observed.writer.is_own(observed.layout.desired("workers") / "a.yaml", stat_of(path))
    path.write_text("edited: true\n")
    assert not observed.writer.is_own(path, stat_of(path))


def test_rescan_puts_back_restores_and_leaves_unknown_files_alone(observed: Fixture) -> None:
    observed.writer.follow(1, [Put(worker(name)) for name in ("edited", "gone", "same")])
    observed.writer.catch_up()
    assert observed.writer.rescan() == RescanReport()
    observed.file("workers", "edited").write_text("kind: Edited\n")
    observed.file("workers", "gone").unlink()
    unknown = observed.file("workers", "unknown")
    unknown.write_text("kind: Unknown\n")
    folder = "datastore/observed/workers/"
    assert observed.writer.rescan() == RescanReport(
        put_back=(folder + "edited.yaml",),
        restored=(folder + "gone.yaml",),
        unknown=(folder + "unknown.yaml",),
    )
    for name in ("edited", "gone"):
        assert observed.shown("workers", name) == worker(name).document()
    assert unknown.read_text() == "kind: Unknown\n"
    assert observed.writer.rescan() == RescanReport(unknown=(folder + "unknown.yaml",))
    stats = {row.name: row.stat for row in observed.index.rows("workers")}
    assert stats["edited"] == stat_of(observed.file("workers", "edited"))


def test_rescan_restores_a_whole_folder(observed: Fixture) -> None:
    observed.writer.follow(1, [Put(worker("a")), Put(worker("b"))])
    observed.writer.catch_up()
    shutil.rmtree(observed.layout.datastore)
    assert len(observed.writer.rescan().restored) == 2
    assert observed.shown("workers", "b") == worker("b").document()
    assert (observed.layout.observed("workers") / ".gitignore").exists()


def test_file_about_to_be_written_is_left_to_that(observed: Fixture) -> None:
    observed.writer.follow(1, [Put(worker("a"))])
    observed.writer.catch_up()
    observed.file("workers", "a").write_text("edited: true\n")
    observed.writer.follow(2, [Put(seen(worker("a"), "newer"))])
    assert observed.writer.put_back("workers", "a") is Verdict.SAME
    observed.writer.catch_up()
    assert observed.shown("workers", "a")["status"]["lastSeenAt"] == "newer"


def test_rescans_do_not_fight_with_the_writer(observed: Fixture) -> None:
    observed.writer.start()
    for number in range(60):
        changed = [Put(seen(worker(f"w{n}"), str(number))) for n in range(10)]
        observed.writer.follow(1 + 10 * number, changed)
        assert observed.writer.rescan() == RescanReport()
    observed.writer.stop()
    shown = {observed.shown("workers", f"w{n}")["status"]["lastSeenAt"] for n in range(10)}
    assert shown == {"59"}


def test_index_that_breaks_is_filled_again_from_the_files(observed: Fixture) -> None:
    observed.writer.follow(1, [Put(worker("a")), Put(token("t"))])
    observed.writer.catch_up()
    before = {kind: list(observed.index.rows(kind)) for kind in KINDS}
    with sqlite3.connect(observed.layout.index) as db:
        db.execute("DROP TABLE workers")
    db.close()
    observed.writer.start()
    observed.writer.follow(3, [Put(worker("b"))])
    until(lambda: observed.writer.shown_through() == 3)
    assert {row.name for row in observed.index.rows("workers")} == {"a", "b"}
    assert list(observed.index.rows("tokens")) == before["tokens"]
    assert observed.writer.trouble is None


def test_checkpoint_never_passes_what_the_files_do_not_show(observed: Fixture) -> None:
    deleted: list[int] = []
    checkpointer = Checkpointer(observed.layout, observed.writer, deleted.append)
    observed.writer.follow(1, [Put(worker("a"))])
    assert checkpointer.run_once() == 0
    observed.writer.catch_up()
    observed.writer.follow(2, [Put(seen(worker("a"), "later"))])
    assert checkpointer.run_once() == 1
    observed.writer.catch_up()
    assert checkpointer.run_once() == 2


def test_checkpoint_runs_by_itself_when_enough_rows_have_come(
    observed: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datastore.checkpoint.ROWS", 3)
    deleted: list[int] = []
    checkpointer = Checkpointer(observed.layout, observed.writer, deleted.append)
    checkpointer.start()
    observed.writer.follow(1, [Put(worker(name)) for name in "abc"])
    observed.writer.catch_up()
    checkpointer.note(3)
    until(lambda: deleted == [3], within_s=30)
    checkpointer.stop()


def test_rows_that_files_do_not_show_yet_do_not_make_a_checkpoint_run_again_and_again(
    observed: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datastore.checkpoint.ROWS", 3)
    looked = threading.Semaphore(0)
    shown_through = observed.writer.shown_through

    def look() -> int:
        looked.release()
        return shown_through()

    monkeypatch.setattr(observed.writer, "shown_through", look)
    checkpointer = Checkpointer(observed.layout, observed.writer, lambda seq: None)
    observed.writer.follow(1, [Put(worker(name)) for name in "abc"])
    checkpointer.start()
    checkpointer.note(3)
    assert looked.acquire(timeout=30)
    for seq in (4, 5):
        checkpointer.note(seq)
    assert not checkpointer._due.is_set(), "two have come since"
    assert not looked.acquire(timeout=0.05)
    checkpointer.note(6)
    assert looked.acquire(timeout=30)
    checkpointer.stop()


def test_failed_sync_keeps_the_rows(observed: Fixture) -> None:
    checkpointer = Checkpointer(observed.layout, observed.writer, lambda seq: None)
    observed.writer.follow(1, [Put(worker("a"))])
    observed.writer.catch_up()
    shutil.move(observed.layout.datastore, observed.layout.root / "elsewhere")
    with pytest.raises(OSError):
        checkpointer.run_once()
    os.rename(observed.layout.root / "elsewhere", observed.layout.datastore)
    assert checkpointer.run_once() == 1


def test_a_checkpoint_that_the_disk_refuses_is_told_once_and_tried_again(
    observed: Fixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = 0

    def refuse() -> None:
        nonlocal refused
        refused += 1
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr("datastore.checkpoint.INTERVAL_S", 0.01)
    deleted: list[int] = []
    checkpointer = Checkpointer(observed.layout, observed.writer, deleted.append)
    observed.writer.follow(1, [Put(worker("a"))])
    observed.writer.catch_up()
    with monkeypatch.context() as read_only:
        read_only.setattr(observed.writer, "sync_index", refuse)
        checkpointer.start()
        until(lambda: refused > 3)
    until(lambda: deleted == [1])
    checkpointer.stop()
    assert sum("no checkpoint for now" in line and "again" in line for line in caplog.messages) == 1


def test_a_file_that_was_only_copied_or_touched_is_as_it_was_written(observed: Fixture) -> None:
    observed.writer.follow(1, [Put(worker("a"))])
    observed.writer.catch_up()
    path = observed.file("workers", "a")
    shutil.copy2(path, path.with_name(".copy"))
    os.replace(path.with_name(".copy"), path)
    os.utime(path, (1, 1))
    copied = stat_of(path)
    assert observed.writer.rescan() == RescanReport()
    assert stat_of(path) == copied, "left as it is"
    (row,) = observed.index.rows("workers")
    assert row.stat == copied, "and known from now on"
    assert observed.writer.put_back("workers", "a") is Verdict.SAME


def test_a_record_that_is_no_clean_yaml_in_two_ways_is_written_all_the_same() -> None:
    for document in ({"a": "\ud800", "n": 2**70}, {"n": float("nan"), "a": "\ud800"}):
        assert data_of("x.yaml", document).decode()
