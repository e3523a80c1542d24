"""Output counts as stored, and events are read, only once they are in the file."""

import asyncio
from pathlib import Path

import pytest

from datastore import events
from datastore.clock import SystemClock
from datastore.event_file import parse_line, read_lines
from datastore.event_tail import READ_BYTES, READ_EVENTS, TAIL_BYTES, TAIL_EVENTS
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
        assert "Is a directory" in str(log.trouble)
        (tmp_path / "r.jsonl").rmdir()
        async with asyncio.timeout(5):
            await second.wait()
        assert first.is_set()
        assert log.output_count("r", "d") == 1
        assert log.trouble is None
    finally:
        await asyncio.to_thread(log.close)
    assert (tmp_path / "r.jsonl").read_bytes().count(b"\n") == 1


async def test_nobody_reads_what_a_kill_could_take_back(tmp_path: Path) -> None:
    """Regression: told again after a kill in another order, a client saw some events twice."""
    (tmp_path / "r.jsonl").mkdir()
    log = EventLog(tmp_path, SystemClock(), lambda action: action())
    try:
        log.emit("r", "a", "step_started")
        assert [lot async for lot in log.read("r", 0, follow=False)] == []
        async with asyncio.timeout(5):
            follower = log.read("r", 0, follow=True)
            coming = asyncio.ensure_future(anext(follower))
            log.emit("r", "b", "step_completed")
            log.emit("r", "c", "run_completed")
            (tmp_path / "r.jsonl").rmdir()
            first = await coming
            assert (tmp_path / "r.jsonl").read_bytes().startswith(b"".join(first))
            lots = [first, *[lot async for lot in follower]]
        assert [line for lot in lots for line in lot] == [
            line + b"\n" for line in (tmp_path / "r.jsonl").read_bytes().splitlines()
        ]
    finally:
        await asyncio.to_thread(log.close)


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


async def test_a_long_log_is_read_in_order_also_where_its_file_is_written_anew_meanwhile(
    tmp_path: Path,
) -> None:
    log = EventLog(tmp_path, SystemClock(), lambda action: action())
    count = TAIL_EVENTS + 3 * READ_EVENTS
    done = asyncio.Event()
    try:
        for number in range(1, count):
            log.output("r", "d", number, {"text": "x" * (number % 7)}, lambda: None)
        log.output("r", "d", count, {"text": "x"}, done.set)
        async with asyncio.timeout(20):
            await done.wait()
        seqs: list[int] = []
        async for lot in log.read("r", 0, follow=False):
            is_first = not seqs
            seqs += [(parse_line(line) or {})["seq"] for line in lot]
            if is_first:
                assert len(seqs) < count - TAIL_EVENTS
                (tmp_path / "r.jsonl").unlink()
                await log.restore()
                while not (tmp_path / "r.jsonl").exists():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    finally:
        await asyncio.to_thread(log.close)
    assert seqs == list(range(1, count + 1))


async def test_large_output_is_read_in_small_lots_and_little_of_it_stays_in_memory(
    tmp_path: Path,
) -> None:
    """Regression: who did not read on held 1,000 pieces of output, a live run kept 2,000."""
    log = EventLog(tmp_path, SystemClock(), lambda action: action())
    count, done = 200, asyncio.Event()
    seqs: list[int] = []
    sizes: list[int] = []
    try:
        for number in range(1, count + 1):
            told = done.set if number == count else lambda: None
            log.output("r", "d", number, {"text": "x" * 20_000}, told)
        async with asyncio.timeout(20):
            await done.wait()
        async for lot in log.read("r", 0, follow=False):
            seqs += [(parse_line(line) or {})["seq"] for line in lot]
            sizes.append(sum(map(len, lot)))
        kept = sum(map(len, log._logs["r"].tail))
    finally:
        await asyncio.to_thread(log.close)
    assert seqs == list(range(1, count + 1))
    assert max(sizes) <= READ_BYTES
    assert READ_BYTES < kept <= TAIL_BYTES


async def test_a_reader_that_falls_behind_reads_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each time, and while the writer was behind, it went through the whole file."""
    offsets: list[int] = []

    def reading(path: Path, offset: int, skip: int) -> tuple[list[bytes], int]:
        offsets.append(offset)
        return read_lines(path, offset, skip)

    monkeypatch.setattr(events, "read_lines", reading)
    log = EventLog(tmp_path, SystemClock(), lambda action: action())
    number, seqs = 0, list[int]()
    follower = log.read("r", 0, follow=True)

    async def say(count: int) -> None:
        nonlocal number
        done = asyncio.Event()
        for left in range(count, 0, -1):
            number += 1
            log.output("r", "d", number, {"text": "x" * 20_000}, done.set if left == 1 else str)
        async with asyncio.timeout(20):
            await done.wait()

    try:
        for count in (100, 3, 100, 3, 100):
            await say(count)
            while len(seqs) < number:
                seqs += [(parse_line(line) or {})["seq"] for line in await anext(follower)]
        await follower.aclose()
    finally:
        await asyncio.to_thread(log.close)
    assert seqs == list(range(1, number + 1))
    assert offsets.count(0) == 1


async def test_a_line_that_is_larger_than_a_lot_is_read_all_the_same(tmp_path: Path) -> None:
    log = EventLog(tmp_path, SystemClock(), lambda action: action())
    done = asyncio.Event()
    try:
        for number, size in enumerate((10, READ_BYTES, TAIL_BYTES, 10, READ_BYTES), 1):
            told = done.set if number == 5 else lambda: None
            log.output("r", "d", number, {"text": "x" * size}, told)
        async with asyncio.timeout(20):
            await done.wait()
        lots = [len(lot) async for lot in log.read("r", 0, follow=False)]
        lots_again = [len(lot) async for lot in log.read("r", 3, follow=False)]
        beyond = [lot async for lot in log.read("r", 1 << 50, follow=False)]
    finally:
        await asyncio.to_thread(log.close)
    assert lots == [1, 1, 1, 1, 1]
    assert lots_again == [1, 1]
    assert beyond == []


async def test_who_follows_a_run_of_which_nothing_has_been_told_yet_waits_for_it(
    tmp_path: Path,
) -> None:
    """Regression: the answer was empty, and over, where the client came before the first event."""
    log = EventLog(tmp_path, SystemClock(), lambda action: action())

    async def kinds(*, lives: bool) -> list[str]:
        lots = log.read("r", 0, follow=True, lives=lambda: lives)
        events = [parse_line(line) or {} for lot in [lot async for lot in lots] for line in lot]
        return [event["kind"] for event in events]

    try:
        async with asyncio.timeout(8):
            assert await kinds(lives=False) == [], "a run that is gone"
            reader = asyncio.ensure_future(kinds(lives=True))
            await asyncio.sleep(0.05)
            assert not reader.done()
            log.emit("r", "a", "run_started")
            log.emit("r", "run_completed", "run_completed")
            assert await reader == ["run_started", "run_completed"]
    finally:
        await asyncio.to_thread(log.close)


async def test_who_follows_a_run_that_is_over_gets_its_end_also_where_nobody_tells_it(
    tmp_path: Path,
) -> None:
    """Regression: a run that the boot sweep had ended was followed for ever."""
    log = EventLog(tmp_path, SystemClock(), lambda action: action())
    end = {"kind": "run_completed", "key": "run_completed", "status": "failed"}

    async def kinds(run: str, after: int = 0, *, follow: bool = True) -> list[tuple[int, str]]:
        lots = log.read(run, after, follow=follow, last=lambda: end)
        events = [parse_line(line) or {} for lot in [lot async for lot in lots] for line in lot]
        return [(event["seq"], event["kind"]) for event in events]

    try:
        log.emit("live", "a", "step_waiting")
        async with asyncio.timeout(8):
            assert await kinds("live") == [(1, "step_waiting"), (2, "run_completed")]
            reader = asyncio.ensure_future(kinds("live"))
            await asyncio.sleep(0.2)
            log.emit("live", "b", "step_cancelled")
            log.emit("live", "run_completed", "run_completed")
            told = [(1, "step_waiting"), (2, "step_cancelled"), (3, "run_completed")]
            assert await reader == told
            assert await kinds("live") == told
            assert await kinds("live", 3) == []
            (tmp_path / "cut.jsonl").write_bytes(b'{"seq":1,"kind":"step_waiting"}\n')
            assert await kinds("cut") == [(1, "step_waiting"), (2, "run_completed")]
            assert await kinds("cut", follow=False) == [(1, "step_waiting")]
            assert await kinds("gone", 7) == [(8, "run_completed")]
    finally:
        await asyncio.to_thread(log.close)
