from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from record_samples import AT, run, seen, worker

from datastore.errors import DatastoreError, Degraded
from datastore.journal import Op, Put, Remove, Story
from datastore.kinds import WORKERS
from datastore.sqlite_journal import BATCH_MAX, Row, SqliteJournal


class Batches:
    """What the journal says is durable: the first seq and the ops of each transaction."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def __call__(self, first_seq: int, ops: Sequence[Op]) -> None:
        self.seen.append((first_seq, len(ops)))


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[SqliteJournal]:
    journal = SqliteJournal(tmp_path / "journal.db")
    yield journal
    await asyncio.to_thread(journal.stop)
    journal.close()


def rows_of(path: Path) -> list[Row]:
    with sqlite3.connect(path) as db:
        found = [Row(*row) for row in db.execute("SELECT * FROM rows ORDER BY seq")]
    db.close()
    return found


async def written(journal: SqliteJournal, *ops: Op) -> None:
    """Append one commit and wait until it is durable."""
    done = asyncio.Event()
    journal.append(ops, done.set)
    await done.wait()


def run_script(text: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a script on a journal in a process of its own."""
    here = Path(__file__)
    return subprocess.run(
        [sys.executable, "-c", text, path],
        cwd=here.parents[2],
        env={"PYTHONPATH": f"{here.parent}:{here.parents[2]}:{':'.join(sys.path)}"},
        capture_output=True,
        text=True,
        timeout=30,
    )


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread does without telling anybody."""
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_commit_is_on_disk_when_it_is_acknowledged(
    journal: SqliteJournal, tmp_path: Path
) -> None:
    journal.start(asyncio.get_running_loop(), Batches())
    found: list[list[Row]] = []
    done = asyncio.Event()

    def look() -> None:
        found.append(rows_of(tmp_path / "journal.db"))
        assert threading.current_thread() is threading.main_thread()
        done.set()

    journal.append((Put(worker("a")), Remove(WORKERS, "b")), look)
    await done.wait()
    assert [(row.kind, row.name, row.commit_no) for row in found[0]] == [
        ("workers", "a", 1),
        ("workers", "b", 1),
    ]
    assert json.loads(found[0][0].body or b"") == worker("a").document()
    assert found[0][1].body is None


async def test_everything_that_waits_becomes_one_transaction(journal: SqliteJournal) -> None:
    batches = Batches()
    for number in range(BATCH_MAX):
        journal.append((Put(worker(f"w{number}")),))
    journal.start(asyncio.get_running_loop(), batches)
    await written(journal, Put(worker("last")))
    assert batches.seen == [(1, BATCH_MAX), (BATCH_MAX + 1, 1)]


async def test_transactions_are_limited_but_no_commit_is_split(journal: SqliteJournal) -> None:
    batches = Batches()
    for size in (300, 150, 100, BATCH_MAX + 200, 1):
        journal.append(tuple(Remove(WORKERS, f"w{number}") for number in range(size)))
    last = asyncio.ensure_future(written(journal, Remove(WORKERS, "last")))
    # Not while the thread is at work: it may have written all before that.
    await asyncio.sleep(0)
    journal.start(asyncio.get_running_loop(), batches)
    await last
    assert [size for _, size in batches.seen] == [450, 100, BATCH_MAX + 200, 2]
    assert [first for first, _ in batches.seen] == [1, 451, 551, 1251]


async def test_acknowledgements_come_in_order_of_the_commits(journal: SqliteJournal) -> None:
    journal.start(asyncio.get_running_loop(), Batches())
    order: list[int] = []
    for number in range(2_000):
        journal.append((Remove(WORKERS, "w"),), lambda number=number: order.append(number))  # type: ignore[misc]
    await written(journal, Remove(WORKERS, "w"))
    assert order == list(range(2_000))


async def test_callback_that_raises_does_not_keep_the_others_from_being_told(
    journal: SqliteJournal,
) -> None:
    loop = asyncio.get_running_loop()
    complaints: list[object] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context["exception"]))
    error = RuntimeError("a bug of somebody else")

    def broken() -> None:
        raise error

    done = asyncio.Event()
    journal.append((Remove(WORKERS, "w"),), broken)
    journal.append((Remove(WORKERS, "w"),), done.set)
    journal.start(loop, Batches())
    await asyncio.wait_for(done.wait(), 5)
    assert complaints == [error]


async def test_status_change_does_not_write_the_spec_again(
    journal: SqliteJournal, tmp_path: Path
) -> None:
    journal.start(asyncio.get_running_loop(), Batches())
    big = worker("w", note="x" * 10_000)
    await written(journal, Put(big))
    await written(journal, Put(seen(big, "later"), status_only=True))
    body = rows_of(tmp_path / "journal.db")[1].body
    assert body is not None and len(body) < 1_000
    assert set(json.loads(body)) == {"metadata", "status"}
    assert json.loads(body)["status"]["lastSeenAt"] == "later"


async def test_story_is_a_row_of_its_own_kind(journal: SqliteJournal, tmp_path: Path) -> None:
    journal.start(asyncio.get_running_loop(), Batches())
    await written(journal, Story("@a/b", "r1", "a: 1\n"))
    row = rows_of(tmp_path / "journal.db")[0]
    assert (row.kind, row.name) == ("history", "r1")
    assert json.loads(row.body or b"") == {"workflow": "@a/b", "text": "a: 1\n"}


async def test_locked_journal_is_trouble_until_it_is_free_and_keeps_the_order(
    journal: SqliteJournal, tmp_path: Path
) -> None:
    journal.start(asyncio.get_running_loop(), Batches())
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for name in "abc":
        journal.append((Put(worker(name)),))
    await until(lambda: journal.trouble is not None)
    assert "journal.db cannot be written: database is locked" in str(journal.trouble)
    assert "\n" not in str(journal.trouble)
    journal.append((Put(worker("d")),))
    other.execute("ROLLBACK")
    other.close()
    await written(journal, Put(worker("e")))
    assert journal.trouble is None
    assert [row.name for row in rows_of(tmp_path / "journal.db")] == list("abcde")


async def test_stop_writes_everything_that_waits(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.start(asyncio.get_running_loop(), Batches())
    for number in range(1_234):
        journal.append((Remove(WORKERS, f"w{number}"),))
    await asyncio.to_thread(journal.stop)
    journal.close()
    assert len(rows_of(tmp_path / "journal.db")) == 1_234


async def test_stop_gives_up_when_the_disk_never_gives_in(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.start(asyncio.get_running_loop(), Batches())
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    told: list[str] = []
    journal.append((Remove(WORKERS, "w"),), lambda: told.append("durable"))
    with pytest.raises(Degraded, match="database is locked"):
        await asyncio.to_thread(journal.stop, 0.0)
    other.close()
    journal.close()
    await asyncio.sleep(0)
    assert told == [] and rows_of(tmp_path / "journal.db") == []


async def test_rows_go_in_the_background_while_commits_go_on(
    journal: SqliteJournal, tmp_path: Path
) -> None:
    batches = Batches()
    journal.start(asyncio.get_running_loop(), batches)
    for _ in range(6):
        for number in range(500):
            journal.append((Put(worker(f"w{number}")),))
        await written(journal, Put(worker("last")))
        await asyncio.to_thread(journal.delete_through, journal.last_seq - 3)
    await until(lambda: len(rows_of(tmp_path / "journal.db")) == 3)
    assert [row.seq for row in rows_of(tmp_path / "journal.db")] == [3004, 3005, 3006]


async def test_wal_stays_within_its_room_under_steady_load(
    journal: SqliteJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it grows, each sync waits for what others change in the file system."""
    monkeypatch.setattr("datastore.sqlite_journal._WAL_DUE_BYTES", 1 << 20)
    journal.start(asyncio.get_running_loop(), Batches())
    big = worker("w", note="x" * 20_000)
    sizes = [(tmp_path / "journal.db-wal").stat().st_size]
    for _ in range(40):
        # Commits go on while rows go, so there is always one more page to move.
        going = asyncio.ensure_future(asyncio.to_thread(journal.delete_through, journal.last_seq))
        for _ in range(25):
            await written(journal, Put(big))
        await going
        sizes.append((tmp_path / "journal.db-wal").stat().st_size)
    assert set(sizes) == {8 << 20}


@pytest.mark.parametrize("rows_stay", [False, True])
async def test_a_journal_that_was_long_is_short_again_once_its_rows_have_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_stay: bool
) -> None:
    """Regression: after a large fan-out it stayed as long as it had ever been, for good."""
    monkeypatch.setattr("datastore.sqlite_file.FREE_BYTES", 1 << 20)
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.start(asyncio.get_running_loop(), Batches())
    await written(journal, Remove(WORKERS, "first"))
    await written(journal, *(Put(worker("w", note="x" * 20_000)) for _ in range(200)))
    await asyncio.to_thread(journal.stop)
    journal.close(delete_through=0 if rows_stay else journal.last_seq - 1)
    assert (path.stat().st_size > 4_000_000) is rows_stay
    again = SqliteJournal(path)
    again.start(asyncio.get_running_loop(), Batches())
    await written(again, Remove(WORKERS, "b"))
    await asyncio.to_thread(again.stop)
    again.close()
    assert [row.seq for row in rows_of(path)] == [*(range(1, 203) if rows_stay else (201, 202))]


async def test_numbers_go_on_where_an_earlier_process_stopped(tmp_path: Path) -> None:
    first = SqliteJournal(tmp_path / "journal.db")
    first.start(asyncio.get_running_loop(), Batches())
    await written(first, Remove(WORKERS, "a"), Remove(WORKERS, "b"))
    await asyncio.to_thread(first.stop)
    first.close()
    second = SqliteJournal(tmp_path / "journal.db")
    assert [row.name for row in second.rows()] == ["a", "b"]
    second.start(asyncio.get_running_loop(), Batches())
    await written(second, Remove(WORKERS, "c"))
    await asyncio.to_thread(second.stop)
    second.close()
    found = [(row.seq, row.commit_no) for row in rows_of(tmp_path / "journal.db")]
    assert found == [(1, 1), (2, 1), (3, 2)]


def test_journal_that_is_no_database_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"no database " * 100)
    with pytest.raises(DatastoreError, match=r"journal.db cannot be read: .*move it away"):
        SqliteJournal(tmp_path / "journal.db")
    assert (tmp_path / "journal.db").read_bytes() == b"no database " * 100


def test_record_with_text_that_is_no_unicode_does_not_stop_the_journal(tmp_path: Path) -> None:
    async def write() -> None:
        journal = SqliteJournal(tmp_path / "journal.db")
        journal.start(asyncio.get_running_loop(), Batches())
        await written(journal, Put(run("r", inputs={"text": "\ud800"})))
        await asyncio.to_thread(journal.stop)
        journal.close()

    asyncio.run(write())
    assert len(rows_of(tmp_path / "journal.db")) == 1


def test_what_lies_in_the_room_of_the_wal_is_not_taken_for_rows(tmp_path: Path) -> None:
    """As a process leaves it that is killed: nobody moved the rows out of the WAL."""
    killed = f"""
import asyncio, os, sys
from pathlib import Path
from record_samples import worker
from datastore.journal import Put
from datastore.sqlite_journal import SqliteJournal

async def main(path):
    journal = SqliteJournal(path)
    journal.start(asyncio.get_running_loop(), lambda first, ops: None)
    for name in "abc":
        done = asyncio.Event()
        journal.append((Put(worker(name)),), done.set)
        await done.wait()
    os.kill(os.getpid(), {signal.SIGKILL})

asyncio.run(main(Path(sys.argv[1])))
"""
    done = run_script(killed, tmp_path / "journal.db")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / "journal.db-wal").stat().st_size == 8 << 20
    journal = SqliteJournal(tmp_path / "journal.db")
    assert [row.name for row in journal.rows()] == ["a", "b", "c"]
    journal.close()


def test_who_writes_but_shortly_makes_no_room(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db", with_room=False)
    assert (tmp_path / "journal.db-wal").stat().st_size < 100_000
    journal.close()


NO_ROOM = """
import asyncio, resource, sys
from pathlib import Path
from record_samples import worker
from datastore.journal import Put
from datastore.sqlite_journal import SqliteJournal

async def main(path):
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    journal = SqliteJournal(path)
    print(path.with_name("journal.db-wal").stat().st_size)
    journal.start(asyncio.get_running_loop(), lambda first, ops: None)
    done = asyncio.Event()
    journal.append((Put(worker("w")),), done.set)
    await done.wait()
    await asyncio.to_thread(journal.stop)
    journal.close()

asyncio.run(main(Path(sys.argv[1])))
"""


def test_disk_without_the_room_for_the_wal_is_filled_by_rows_alone(tmp_path: Path) -> None:
    done = run_script(NO_ROOM, tmp_path / "journal.db")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100_000
    assert [row.name for row in rows_of(tmp_path / "journal.db")] == ["w"]


FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from record_samples import worker
from datastore.journal import Put
from datastore.sqlite_journal import SqliteJournal

async def main(path):
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    journal = SqliteJournal(path)
    journal.start(asyncio.get_running_loop(), lambda first, ops: None)
    order = []
    for number in range(60):
        put = Put(worker(f"w{number}", note="x" * 20_000))
        journal.append((put,), lambda number=number: order.append(number))
        await asyncio.sleep(0.001)
    while journal.trouble is None:
        await asyncio.sleep(0.001)
    print(journal.trouble, flush=True)
    acknowledged = len(order)
    await asyncio.sleep(0.2)
    assert acknowledged == len(order) < 60, (acknowledged, len(order))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    while len(order) < 60:
        await asyncio.sleep(0.001)
    assert order == list(range(60)) and journal.trouble is None
    await asyncio.to_thread(journal.stop)
    journal.close()

asyncio.run(main(Path(sys.argv[1])))
"""


def test_full_disk_is_trouble_and_loses_nothing_once_there_is_room(tmp_path: Path) -> None:
    done = run_script(FULL_DISK, tmp_path / "journal.db")
    assert done.returncode == 0, done.stderr
    assert "cannot be written" in done.stdout
    assert [row.name for row in rows_of(tmp_path / "journal.db")] == [f"w{n}" for n in range(60)]


async def test_trouble_is_logged_once_and_its_end_too(
    journal: SqliteJournal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    journal.start(asyncio.get_running_loop(), Batches())
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    journal.append((Put(seen(worker("w"), AT)),))
    await until(lambda: journal.trouble is not None)
    await asyncio.sleep(0.4)
    other.execute("ROLLBACK")
    other.close()
    await written(journal, Remove(WORKERS, "w"))
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


@pytest.mark.parametrize("at_its_end", [False, True])
async def test_no_row_of_whoever_has_the_journal_by_now_is_let_go(
    tmp_path: Path, at_its_end: bool
) -> None:
    """Regression: the numbers of the other one begin anew, so that its rows went as ours, and what
    it had acknowledged was lost if it was killed before its files had followed."""
    path, taken = tmp_path / "journal.db", False

    def expect() -> None:
        if taken:
            raise OSError("another process serves this folder")

    batches = Batches()
    ours = SqliteJournal(path, expect=expect)
    ours.start(asyncio.get_running_loop(), batches)
    for number in range(3):
        await written(ours, Put(worker(f"w{number}"), False))
    ours.delete_through(3)
    await until(lambda: rows_of(path) == [])
    taken = True
    other = SqliteJournal(path)
    other.start(asyncio.get_running_loop(), Batches())
    await written(other, Put(run("r1"), False))
    (row,) = rows_of(path)
    assert row.seq == 1, "its numbers begin anew"
    if not at_its_end:
        ours.delete_through(5)
        await asyncio.to_thread(ours.stop)
        assert rows_of(path) == [row]
    await asyncio.to_thread(ours.stop)
    with contextlib.suppress(OSError):
        ours.close(delete_through=3)
    assert rows_of(path) == [row]
    await asyncio.to_thread(other.stop)
    other.close()
