"""Output counts as stored, and is acknowledged, only once it is in the file."""

import asyncio
from pathlib import Path

from datastore.clock import SystemClock
from datastore.events import EventLog


async def test_a_piece_sent_twice_is_acknowledged_only_once_the_first_copy_is_written(
    tmp_path: Path,
) -> None:
    # A folder in the place of the log: the writer tries again until it is gone.
    (tmp_path / "r.jsonl").mkdir()
    log = EventLog(tmp_path, SystemClock(), lambda action: action())
    first, second = asyncio.Event(), asyncio.Event()
    try:
        log.output("r", "d", 1, {"text": "x"}, first.set)
        log.output("r", "d", 1, {"text": "x"}, second.set)
        await asyncio.sleep(0.1)
        assert not first.is_set()
        assert not second.is_set()
        assert log.output_count("r", "d") == 0
        (tmp_path / "r.jsonl").rmdir()
        async with asyncio.timeout(5):
            await second.wait()
        assert first.is_set()
        assert log.output_count("r", "d") == 1
    finally:
        await asyncio.to_thread(log.close)
    assert (tmp_path / "r.jsonl").read_bytes().count(b"\n") == 1


async def test_a_finished_run_whose_log_lacks_the_end_is_untold(tmp_path: Path) -> None:
    log = EventLog(tmp_path, SystemClock(), lambda action: action())
    log.emit("cut", "run_started", "run_started")
    log.emit("whole", "run_started", "run_started")
    log.emit("whole", "run_completed", "run_completed", status="succeeded")
    await asyncio.to_thread(log.close)
    reopened = EventLog(tmp_path, SystemClock(), lambda action: action())
    try:
        assert reopened.untold(["cut", "whole", "lost"]) == ["cut", "lost"]
    finally:
        await asyncio.to_thread(reopened.close)
