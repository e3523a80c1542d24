"""A finished run's event log goes after everything that was committed before, and tells it."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datastore.clock import SystemClock
from datastore.event_file import parse_line
from datastore.event_tail import TAIL_EVENTS
from datastore.events import EventLog


def test_a_log_is_forgotten_behind_the_barrier_and_its_last_lines(tmp_path: Path) -> None:
    async def scenario() -> None:
        held: list[Callable[[], Any]] = []
        durable = False

        def after_barrier(action: Callable[[], Any]) -> None:
            if durable:
                action()
            else:
                held.append(action)

        events = EventLog(tmp_path, SystemClock(), after_barrier)
        (tmp_path / "r1.jsonl").write_text('{"seq":1}\n')
        (tmp_path / "r2.jsonl").write_text('{"seq":1}\n')
        events.emit("r1", "run_completed", "run_completed", status="failed")
        gone = asyncio.Event()
        events.forget("r1", gone.set)
        await asyncio.sleep(0)
        assert (tmp_path / "r1.jsonl").exists(), "not before what came first is durable"

        durable = True
        for action in held:
            action()
        async with asyncio.timeout(5):
            await gone.wait()
        assert [*os.listdir(tmp_path)] == ["r2.jsonl"]
        assert [lot async for lot in events.read("r1", 0, follow=True)] == []
        events.forget("never-there", gone.set)
        await asyncio.to_thread(events.close)

    asyncio.run(scenario())


async def test_who_is_far_behind_comes_to_the_end_of_a_log_that_is_forgotten(
    tmp_path: Path,
) -> None:
    """Regression: the server said for ever that it was still there, and the command hung."""
    events = EventLog(tmp_path, SystemClock(), lambda action: action())
    count = 2 * TAIL_EVENTS
    written = asyncio.Event()
    for number in range(1, count + 1):
        events.output("r1", "d", number, {"text": "x"}, written.set if number == count else str)
    async with asyncio.timeout(5):
        await written.wait()
    follower = events.read("r1", 0, follow=True)
    seqs = [(parse_line(line) or {})["seq"] for line in await anext(follower)]
    events.emit("r1", "run_completed", "run_completed")
    gone = asyncio.Event()
    events.forget("r1", gone.set)
    async with asyncio.timeout(5):
        await gone.wait()
        seqs += [(parse_line(line) or {})["seq"] async for lot in follower for line in lot]
    await asyncio.to_thread(events.close)
    kept = range(count + 2 - TAIL_EVENTS, count + 2)
    assert 0 < len(seqs) - TAIL_EVENTS < kept.start, "those between are gone"
    assert seqs[-TAIL_EVENTS:] == [*kept]


async def test_logs_go_also_while_other_events_find_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: removals, which would have made the room, waited behind what had none."""
    events = EventLog(tmp_path, SystemClock(), lambda action: action())
    append, refused = os.write, threading.Event()

    def full(handle: int, data: bytes) -> int:
        if (tmp_path / "old.jsonl").exists() and b'"new"' in data:
            refused.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return append(handle, data)

    async def written(run: str, number: int) -> None:
        done = asyncio.Event()
        events.output(run, "d", number, {"text": "text"}, done.set)
        async with asyncio.timeout(5):
            await done.wait()

    await written("old", 1)
    monkeypatch.setattr("datastore.event_file.os.write", full)
    waits = asyncio.ensure_future(written("new", 1))
    assert await asyncio.to_thread(refused.wait, 5)
    async with asyncio.timeout(5):
        gone, order = asyncio.Event(), list[str]()
        # Of one of which something is still to be written, that comes first.
        events.output("new", "d", 2, {"text": "text"}, lambda: order.append("written"))
        events.forget("new", lambda: order.append("gone"))
        events.forget("old", gone.set)
        await gone.wait()
        await waits
    await asyncio.to_thread(events.close)
    await asyncio.sleep(0)
    assert order == ["written", "gone"]
    assert events.trouble is None
    assert os.listdir(tmp_path) == []
