"""The count of a machine's processes, which orders what they say."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
from pathlib import Path

import pytest

from swamp.worker.machine import STARTS_NAME, next_process

PROCESSES, STARTS = 4, 250


def _start_many(cache: Path) -> list[int]:
    return [next_process(cache).dials for _ in range(STARTS)]


def test_processes_that_start_at_once_are_all_counted(tmp_path: Path) -> None:
    """Regression: they shared a temporary file, found it empty, and began anew at 1."""
    next_process(tmp_path)
    (tmp_path / STARTS_NAME).write_text("1000\n")
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        lists = pool.map(_start_many, [tmp_path] * PROCESSES, chunksize=1)
    found = sorted(dials >> 32 for one in lists for dials in one)
    assert found == list(range(1001, 1001 + PROCESSES * STARTS))
    assert (tmp_path / STARTS_NAME).read_text() == f"{found[-1]}\n"
    assert sorted(os.listdir(tmp_path)) == ["machine-id", STARTS_NAME]


def test_a_count_that_cannot_be_kept_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is full or read-only: what it says is counted on, for this process."""
    first = next_process(tmp_path)

    def no_room(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("tempfile.mkstemp", no_room)
        for _ in range(2):
            assert next_process(tmp_path).dials == 2 * first.dials
    with monkeypatch.context() as full:
        full.setattr("os.replace", no_room)
        full.setattr(Path, "replace", no_room)
        assert next_process(tmp_path).dials == 2 * first.dials
    assert sorted(os.listdir(tmp_path)) == ["machine-id", STARTS_NAME], "nothing is left behind"
    with monkeypatch.context() as without_locks:
        without_locks.setattr(fcntl, "flock", no_room)
        assert next_process(tmp_path).dials == 2 * first.dials
    assert next_process(tmp_path).dials == 3 * first.dials


@pytest.mark.parametrize("content", ["", "x\n", "-4\n", "7" * 5000, "\N{SNOWMAN}"])
def test_a_count_that_says_nothing_begins_anew(tmp_path: Path, content: str) -> None:
    first = next_process(tmp_path)
    (tmp_path / STARTS_NAME).write_text(content, encoding="utf-8")
    assert next_process(tmp_path).dials == first.dials
