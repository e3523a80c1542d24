"""The file of a run's event log: line n is event n, each line one JSON object. Blocking."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic_core

from datastore.event_tail import Lot
from datastore.regular_file import open_handle, open_to_read

LAST_KIND = "run_completed"
LAST_LINE_BYTES = 1 << 16
"""Where the last event is looked for; one that is longer is told again, which changes nothing."""

LastEvent = Callable[[], dict[str, Any] | None]
"""Makes a run's last event from its record; None while the run goes on."""

LOST_KIND = "lost"
"""Stands for an event that was removed from a log and is in memory no more."""


@dataclass(frozen=True, slots=True)
class WholeLog:
    """A log to write anew: its last lines, and how many before them are in memory no more."""

    lost: int
    keys: tuple[str, ...]
    lines: tuple[bytes, ...]

    def data(self, run: str) -> bytes:
        """Line n is event n; lost ones keep their number, and the keys that were published."""
        keys = self.keys + ("",) * self.lost
        fillers = (
            line_of({"seq": seq, "kind": LOST_KIND, "run": run, "key": key})
            for seq, key in zip(range(1, self.lost + 1), keys, strict=False)
        )
        return b"".join((*fillers, *self.lines))


def read_lines(path: Path, offset: int, skip: int) -> tuple[list[bytes], int]:
    """A lot of whole lines from a byte offset, the first `skip` passed over."""
    lot = Lot()
    try:
        with open_to_read(path) as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                if skip:
                    skip -= 1
                elif not lot.takes(line):
                    break
                offset += len(line)
    except FileNotFoundError:
        return [], offset
    return lot.lines, offset


def line_of(event: dict[str, Any]) -> bytes:
    try:
        return pydantic_core.to_json(event) + b"\n"
    except ValueError:
        # A lone surrogate, which no reader of UTF-8 takes.
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "replace") + b"\n"


def append_whole(path: Path, data: bytes) -> None:
    """Append all of it or, with an OSError, none of it; the folder is made if that is gone."""
    handle = _opened(path)
    try:
        size = os.fstat(handle).st_size
        try:
            done = 0
            while done < len(data):
                done += os.write(handle, data[done:])
        except OSError:
            os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)


def _opened(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        return open_handle(path, flags)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open_handle(path, flags)


def begins_at_1(path: Path) -> bool:
    """Whether the log is there from its first event: one that was removed begins later."""
    first = b'{"seq":1,'
    try:
        with open_to_read(path) as file:
            return file.read(len(first)) == first
    except OSError:
        return False


def is_as_long(path: Path, size: int) -> bool:
    """Whether the file is there and has so many bytes at least."""
    try:
        return path.stat().st_size >= size
    except OSError:
        return False


def is_complete(path: Path) -> bool:
    """Whether the last line is the run's last event; looks at the end of the file only."""
    try:
        with open_to_read(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_LINE_BYTES))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return False
    event = parse_line(lines[-1]) if lines else None
    return event is not None and event.get("kind") == LAST_KIND


def parse_line(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
