"""Until when a server lived is told by a file that nobody but a server writes."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from datastore.alive import HELD_MOST, NOBODY_KNOWS, held_back, last_alive, say_alive
from datastore.layout import Layout
from datastore.lock import RepositoryLock

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EARLIER = NOW - timedelta(minutes=3)


class At:
    def __init__(self, moment: datetime) -> None:
        self.moment = moment

    def now(self) -> datetime:
        return self.moment


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    made.private.mkdir()
    return made


def test_the_moment_is_what_was_said_last_whatever_the_times_of_files(layout: Layout) -> None:
    say_alive(layout, At(EARLIER - timedelta(hours=1)))
    say_alive(layout, At(EARLIER))
    assert layout.alive.stat().st_mode & 0o777 == 0o600
    for path in (layout.alive, layout.lock):
        path.touch()
    assert last_alive(layout, NOW, lock_held=NOW) == EARLIER


def test_it_is_never_later_than_now(layout: Layout) -> None:
    assert last_alive(layout, NOW, lock_held=NOW + timedelta(minutes=20)) == NOW
    say_alive(layout, At(NOW + timedelta(minutes=20)))
    assert last_alive(layout, NOW, lock_held=None) == NOW


def test_the_lock_tells_it_only_where_an_earlier_version_served(layout: Layout) -> None:
    assert last_alive(layout, NOW, lock_held=EARLIER) == EARLIER
    for content in (b"", b"garbage", b"\xff\n", b"9999-99-99\n"):
        layout.alive.write_bytes(content)
        assert last_alive(layout, NOW, lock_held=EARLIER) == NOBODY_KNOWS
    say_alive(layout, At(EARLIER))
    assert last_alive(layout, NOW, lock_held=None) == EARLIER, "what was there is written over"


def test_when_the_disk_held_everything_back_is_told_as_well(layout: Layout) -> None:
    minute = timedelta(minutes=1)
    spans = [(EARLIER + number * minute, EARLIER + (number + 1) * minute) for number in range(99)]
    assert held_back(layout) == []
    say_alive(layout, At(NOW), spans[:2])
    assert (last_alive(layout, NOW, lock_held=None), held_back(layout)) == (NOW, spans[:2])
    say_alive(layout, At(NOW), spans)
    assert held_back(layout) == spans[-HELD_MOST:]
    assert layout.alive.stat().st_size < 4096
    say_alive(layout, At(NOW))
    assert held_back(layout) == []
    for content in (b"", b"\xff\n\n", b"2026-01-02T03:04:05Z\ngarbage\n", b"\na b\n"):
        layout.alive.write_bytes(content)
        assert held_back(layout) == []


def test_what_is_no_file_is_never_waited_for(layout: Layout) -> None:
    os.mkfifo(layout.alive)
    say_alive(layout, At(EARLIER))
    assert last_alive(layout, NOW, lock_held=EARLIER) == NOBODY_KNOWS


def test_it_is_written_in_place_on_a_full_disk(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    say_alive(layout, At(EARLIER - timedelta(hours=1)))
    write = os.pwrite

    def full(descriptor: int, data: bytes, at: int) -> int:
        if at + len(data) > os.fstat(descriptor).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, at)

    monkeypatch.setattr("datastore.alive.os.pwrite", full)
    say_alive(layout, At(EARLIER))
    assert last_alive(layout, NOW, lock_held=None) == EARLIER


def test_a_lock_that_was_not_there_tells_nothing(layout: Layout) -> None:
    with RepositoryLock(layout) as lock:
        assert lock.last_held is None
    with lock:
        assert lock.last_held is not None
