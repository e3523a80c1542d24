"""A finished run's event log goes after everything that was committed before, and tells it."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
