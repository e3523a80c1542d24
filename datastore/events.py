"""The numbered event log of each run: `.swamp/events/<run>.jsonl`, line n is the event of seq n.

Promises: an event is published (numbered, and written to the file) only when everything committed
before it was emitted is durable; it is read once it is in the file; it has a key, and a key is
published once, also over a restart, because the file of a live run is read back first. Readers
keep a position of their own and are never waited for. Lines are written by one thread, in batches,
without a sync: an event follows from the records and is told again if it was lost; a piece of
output is acknowledged once written.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datastore.clock import Clock, stamp
from datastore.event_file import (
    LAST_KIND,
    LastEvent,
    WholeLog,
    begins_at_1,
    is_as_long,
    is_complete,
    line_of,
    parse_line,
    read_lines,
)
from datastore.event_tail import Place, Tail, within
from datastore.event_writer import Entry, EventWriter, Written
from datastore.regular_file import open_to_read

log = logging.getLogger(__name__)

UNTOLD_S = 2.0
"""A run that is over is told its last event within so long, or its readers get it otherwise."""


@dataclass
class _RunLog:
    """What is known of one run's log."""

    seq: int = 0
    keys: set[str] = field(default_factory=set)
    output: dict[str, int] = field(default_factory=dict)
    """Pieces of output by dispatch: the highest number taken."""
    stored: dict[str, int] = field(default_factory=dict)
    """The same: the highest number in the file."""
    tail: Tail = field(default_factory=Tail)
    """Older ones are read from the file."""
    on_disk: int = 0
    ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)
    readers: int = 0

    def tell(self) -> None:
        """Wake who reads: there is more in the file."""
        news, self.news = self.news, asyncio.Event()
        news.set()


class EventLog:
    """Event logs of all runs. Use it from the event loop's thread; `close` when done."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        after_barrier: Callable[[Callable[[], Any]], None],
        expect_root: Callable[[], None] = lambda: None,
    ) -> None:
        """`expect_root`: OSError where nothing may be written to the folder any more."""
        self._clock = clock
        self._after_barrier = after_barrier
        self._logs: dict[str, _RunLog] = {}
        self._over = False
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="events-read")
        self._writer = EventWriter(folder, expect_root, self._note_written)

    # -- emitting --------------------------------------------------------------------------------

    def emit(self, run: str, key: str, kind: str, **fields: Any) -> None:
        """Publish an event after the barrier; nothing if the key was emitted before."""
        log = self._log(run)
        if key in log.keys:
            return
        log.keys.add(key)
        event = {"at": stamp(self._clock.now()), "kind": kind, "run": run, **fields, "key": key}
        self._after_barrier(lambda: self._publish(run, log, event, None))

    def output(
        self, run: str, dispatch: str, number: int, event: dict[str, Any], written: Written
    ) -> None:
        """Publish a piece of a dispatch's output, once; `written` is called either way."""
        log = self._log(run)
        if number <= log.output.get(dispatch, 0):
            # In line behind the first copy, which may not be in the file yet.
            self._after_barrier(lambda: self._writer.put((run, b"", written)))
            return
        log.output[dispatch] = number

        def stored() -> None:
            log.stored[dispatch] = number
            written()

        line = {
            "at": stamp(self._clock.now()),
            "kind": "output",
            "run": run,
            **event,
            "key": f"{dispatch}#{number}",
        }
        self._after_barrier(lambda: self._publish(run, log, line, stored))

    def output_count(self, run: str, dispatch: str) -> int:
        """How many pieces of a dispatch's output are in the file."""
        return self._log(run).stored.get(dispatch, 0)

    def forget(self, run: str, gone: Callable[[], None]) -> None:
        """Remove the log of a finished run after the barrier; `gone` is called on the loop then."""
        self._after_barrier(lambda: self._writer.put((run, None, gone)))

    def _publish(
        self, run: str, log: _RunLog, event: dict[str, Any], written: Written | None
    ) -> None:
        log.seq += 1
        if event["kind"] == LAST_KIND:
            log.ended = True
        data = line_of({"seq": log.seq, **event})
        log.tail.append(data)
        self._writer.put((run, data, written))

    def _log(self, run: str) -> _RunLog:
        log = self._logs.get(run)
        if log is None:
            log = self._logs[run] = _RunLog()
        return log

    # -- the file --------------------------------------------------------------------------------

    def _path(self, run: str) -> Path:
        return self._writer.path(run)

    @property
    def trouble(self) -> str | None:
        """Why events do not reach their files just now; None while all is well."""
        return self._writer.trouble

    def _note_written(self, entries: list[Entry]) -> None:
        for run, line, written in entries:
            log = self._logs.get(run)
            if line is None:
                self._logs.pop(run, _RunLog()).tell()
            elif log is not None and line and isinstance(line, bytes):
                log.on_disk += 1
                log.tell()
                self._forget_if_over(run, log)
            if written is not None:
                written()

    def _forget_if_over(self, run: str, log: _RunLog) -> None:
        if log.ended and not log.readers and log.on_disk == log.seq:
            self._logs.pop(run, None)

    # -- after a removal -------------------------------------------------------------------------

    async def restore(self) -> list[str]:
        """Have the logs in memory whose file was removed written again; which runs' those are."""
        known = [run for run, one in self._logs.items() if one.on_disk]
        damaged = await self._loop.run_in_executor(
            self._pool, lambda: [run for run in known if not begins_at_1(self._path(run))]
        )
        restored = []
        for run in damaged:
            one = self._logs.get(run)
            if one is None:
                continue
            lost = one.seq - len(one.tail)
            tail = one.tail if lost else ()
            in_tail = {str((parse_line(line) or {}).get("key")) for line in tail}
            keys = tuple(key for key in one.keys if key not in in_tail)[:lost]
            self._writer.put((run, WholeLog(lost, keys, tuple(one.tail)), None))
            restored.append(run)
        return restored

    # -- after a restart -------------------------------------------------------------------------

    def untold(self, runs: Iterable[str]) -> list[str]:
        """Of these finished runs, those whose log lacks its last event. Blocking."""
        return [run for run in runs if not is_complete(self._path(run))]

    def recover(self, runs: Iterable[str]) -> None:
        """Read the logs of live and untold runs back, before anything is emitted. Blocking."""
        for run in runs:
            self._logs[run] = self._read_back(run)

    def _read_back(self, run: str) -> _RunLog:
        log, path, good = _RunLog(), self._path(run), 0
        if not path.exists():
            return log
        with open_to_read(path) as file:
            for line in file:
                event = parse_line(line)
                if event is None or event.get("seq") != log.seq + 1:
                    break
                good += len(line)
                log.seq += 1
                log.tail.append(line)
                key = str(event.get("key", ""))
                dispatch, mark, number = key.rpartition("#")
                if mark and event.get("kind") == "output":
                    log.output[dispatch] = max(log.output.get(dispatch, 0), int(number))
                    log.stored[dispatch] = log.output[dispatch]
                else:
                    log.keys.add(key)
                log.ended = log.ended or event.get("kind") == LAST_KIND
        if good < path.stat().st_size:
            # A torn last line: it was never acknowledged, and is told again.
            os.truncate(path, good)
        log.on_disk = log.seq
        return log

    # -- reading ---------------------------------------------------------------------------------

    async def read(
        self,
        run: str,
        after: int,
        *,
        follow: bool,
        last: LastEvent = lambda: None,
        lives: Callable[[], bool] = lambda: False,
    ) -> AsyncGenerator[list[bytes], None]:
        """Lines after that number, in lots; with `follow` until the run's last event.

        An empty lot now and then says that the reader is still being served. Who follows a run
        that is over, and whose log has no last event, is told the one that `last` makes.
        """
        # Of one that has just been created, nothing has been told yet.
        log = self._log(run) if follow and lives() else self._logs.get(run)
        if log is None:
            async for lot in self._read_file(run, after):
                yield lot
                after += len(lot)
            event = last() if follow and run not in self._logs else None
            if event is not None and not await self._loop.run_in_executor(
                self._pool, is_complete, self._path(run)
            ):
                yield [line_of({"seq": after + 1, **event})]
            return
        log.readers += 1
        try:
            place, until = Place(after), log.seq
            while True:
                news = log.news
                lot = await self._lot(run, log, place)
                if lot:
                    place.seq += len(lot)
                    yield lot
                elif self._over or (log.ended and place.seq >= log.seq):
                    return
                elif not follow:
                    # What has been told is about to be in the file.
                    if place.seq >= until or not await within(news, 1.0):
                        return
                elif LAST_KIND not in log.keys and (event := last()) is not None:
                    if not await within(news, UNTOLD_S) and LAST_KIND not in log.keys:
                        yield [line_of({"seq": place.seq + 1, **event})]
                        return
                elif not await within(news, 10.0):
                    yield []
        finally:
            log.readers -= 1
            self._forget_if_over(run, log)

    async def _lot(self, run: str, log: _RunLog, place: Place) -> list[bytes]:
        first_in_memory = log.seq - len(log.tail)
        if place.seq >= first_in_memory:
            start = place.seq - first_in_memory
            # What is not in the file yet would be told again after a kill, in another order.
            lines = log.tail.lot(start, log.on_disk - first_in_memory)
            place.offset += sum(map(len, lines)) if place.offset else 0
            return lines
        path, skip = self._path(run), 0 if place.offset else place.seq
        lot, offset = await self._loop.run_in_executor(
            self._pool, read_lines, path, place.offset, skip
        )
        if place.offset and not await self._is_next(path, place, lot):
            # The file has been written anew since.
            place.offset = 0
            return await self._lot(run, log, place)
        if not lot and self._logs.get(run) is not log:
            # The file has been removed for good: what is in memory is all there is.
            place.seq, place.offset = log.seq - len(log.tail), 0
            return await self._lot(run, log, place)
        place.offset = offset
        return lot

    async def _is_next(self, path: Path, place: Place, lot: list[bytes]) -> bool:
        """Whether what was read at the place's offset comes next, or nothing is there yet."""
        if lot:
            return lot[0].startswith(b'{"seq":%d,' % (place.seq + 1))
        return await self._loop.run_in_executor(self._pool, is_as_long, path, place.offset)

    async def _read_file(self, run: str, after: int) -> AsyncGenerator[list[bytes], None]:
        path = self._path(run)
        offset, skip = 0, after
        while True:
            lot, offset = await self._loop.run_in_executor(
                self._pool, read_lines, path, offset, skip
            )
            skip = 0
            if not lot:
                return
            yield lot

    def end_readers(self) -> None:
        """Let those who follow come to their end: nothing more is published here."""
        self._over = True
        for log in self._logs.values():
            log.news.set()

    def close(self, within_s: float = 5.0) -> None:
        """Write what is waiting and end, within that time. Blocking."""
        self._writer.close(within_s)
        self._pool.shutdown(wait=False)
