from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from datastore.errors import RepositoryLocked, RepositoryTaken
from datastore.layout import Layout
from datastore.lock import RepositoryLock, lock_holder

HOLD = """
import sys
from pathlib import Path
from datastore.layout import Layout
from datastore.lock import RepositoryLock, lock_holder
lock = RepositoryLock(Layout(Path(sys.argv[1]))).acquire()
print("held", flush=True)
sys.stdin.read()
"""


class YearsAgo:
    def now(self) -> datetime:
        return datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)


def holder(root: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, root],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_second_process_is_told_who_holds_the_repository(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(RepositoryLocked) as refused:
            RepositoryLock(Layout(tmp_path)).acquire()
        expected = (
            rf"this repository is served by pid {process.pid} \(since \d\d:\d\d:\d\d\); "
            "stop it first, or talk to it with --server"
        )
        assert re.match(expected, str(refused.value))
        process.kill()


def test_what_it_is_held_for_is_named(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    refused = pytest.raises(
        RepositoryLocked, match=rf"held by run r of workflow 'w', pid {os.getpid()} \(since"
    )
    with RepositoryLock(layout, held_for="run r of workflow 'w'"), refused:
        RepositoryLock(layout).acquire()


def test_lock_ends_with_a_killed_process(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with RepositoryLock(Layout(tmp_path)).acquire():
        pass


def test_released_lock_can_be_taken_again_and_names_nobody(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    first = RepositoryLock(layout).acquire()
    first.release()
    first.release()
    assert layout.lock.read_bytes().strip() == b""
    with RepositoryLock(layout), pytest.raises(RepositoryLocked):
        RepositoryLock(layout).acquire()
    RepositoryLock(layout).acquire().release()


def test_lock_held_since_another_day_shows_the_date(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    refused = pytest.raises(RepositoryLocked, match=r"since 2020-01-0\d ")
    with RepositoryLock(layout, YearsAgo()), refused:
        RepositoryLock(layout).acquire()


def test_a_removed_file_is_written_again_with_the_time_since_which_it_is_held(
    tmp_path: Path,
) -> None:
    class Turned:
        at = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)

        def now(self) -> datetime:
            return self.at

    layout, clock = Layout(tmp_path), Turned()
    with RepositoryLock(layout, clock) as lock:
        taken_at, clock.at = clock.at, clock.at + timedelta(hours=1)
        layout.lock.unlink()
        assert lock.renew()
        holder = lock_holder(layout)
        assert holder is not None and holder.since == taken_at
    with lock:
        holder = lock_holder(layout)
        assert holder is not None and holder.since == clock.at, "given up, it is taken anew"


@pytest.mark.parametrize("content", [b"", b"garbage", b"[1]", b'{"pid": 1}'])
def test_holder_that_did_not_sign_is_another_process(tmp_path: Path, content: bytes) -> None:
    layout = Layout(tmp_path)
    with RepositoryLock(layout):
        layout.lock.write_bytes(content)
        with pytest.raises(RepositoryLocked, match="served by another process"):
            RepositoryLock(layout).acquire()


def test_who_holds_it_is_told_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the room of an earlier signature was given back, and `doctor` saw nobody."""
    layout = Layout(tmp_path)
    RepositoryLock(layout, held_for="a long run of some other workflow").acquire().release()
    assert lock_holder(layout) is None
    room = layout.lock.stat().st_size
    write = os.pwrite

    def full(descriptor: int, data: bytes, at: int) -> int:
        if at + len(data) > os.fstat(descriptor).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, at)

    monkeypatch.setattr("datastore.lock.os.pwrite", full)
    with RepositoryLock(layout):
        holder = lock_holder(layout)
        assert holder is not None
        assert (holder.pid, holder.held) == (os.getpid(), True)
        assert layout.lock.stat().st_size < room


def test_a_file_that_another_held_and_let_go_of_was_taken(tmp_path: Path) -> None:
    """Regression: who came back went on with what it knew, and the other's changes were none."""
    layout = Layout(tmp_path)
    with RepositoryLock(layout) as lock:
        layout.lock.unlink()
        RepositoryLock(layout).acquire().release()
        with pytest.raises(RepositoryTaken, match="another held it meanwhile"):
            lock.renew()
        with pytest.raises(OSError, match="another process serves this folder"):
            lock.layout.expect_not_taken()
        with pytest.raises(RepositoryLocked):
            RepositoryLock(layout).acquire()


def test_a_file_whose_holder_was_killed_was_taken(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with RepositoryLock(layout) as lock:
        layout.lock.unlink()
        with holder(tmp_path) as process:
            process.send_signal(signal.SIGKILL)
            process.wait()
        with pytest.raises(RepositoryTaken):
            lock.renew()


@pytest.mark.parametrize("put", ["touched", "copied", "from a backup"])
def test_a_file_that_nobody_held_is_taken_again(tmp_path: Path, put: str) -> None:
    layout, backup = Layout(tmp_path), tmp_path / "backup"
    RepositoryLock(layout).acquire().release()
    os.utime(layout.lock, (0, 0))
    shutil.copy2(layout.lock, backup)
    with RepositoryLock(layout) as lock:
        if put == "copied":
            shutil.copyfile(layout.lock, backup)
        layout.lock.unlink()
        if put == "touched":
            layout.lock.touch()
        else:
            shutil.copy2(backup, layout.lock)
        assert lock.renew()
        lock.layout.expect_not_taken()
