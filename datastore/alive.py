"""Until when a server lived: `.swamp/alive`, one moment as text, for the next start to read.

Waiting counts while a server serves the records, but not while its disk holds everything back: the
lines below the first tell when that was, a beginning and an end each. So a server alone writes this
file: no command that only holds the lock, no start that comes to nothing; and what tools do to the
time of a file (`cp`, `git`) changes nothing. Not synced: after a power cut it may tell of a moment
half a minute before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from datastore.clock import Clock, parse_stamp, stamp
from datastore.layout import Layout
from datastore.regular_file import open_handle, read_bytes

NOBODY_KNOWS = datetime.min.replace(tzinfo=UTC)
"""Then nothing counts of the waiting that was under way: a step waits too long rather than fails
for time in which no server ran."""
HELD_MOST = 60
"""Of so many times that the disk held everything back the next start is told, the latest ones. All
of them find room in one block of most file systems, so that a full disk takes them, too."""

Span = tuple[datetime, datetime]
"""From when until when."""


@dataclass(frozen=True, slots=True)
class Lived:
    """Until when a server lived, and when its disk held everything back."""

    until: datetime
    held: Sequence[Span] = ()

    def waited_s(self, since: datetime) -> float:
        """For how long what has waited since then did so at a disk that took writes, seconds."""
        held = (min(ended, self.until) - max(began, since) for began, ended in self.held)
        held_s = sum(max(0.0, one.total_seconds()) for one in held)
        return max(0.0, (self.until - since).total_seconds() - held_s)


def lived(layout: Layout, now: datetime, lock_held: datetime | None) -> Lived:
    """What is known of the last server: `last_alive`, `held_back`. Blocks."""
    return Lived(last_alive(layout, now, lock_held), held_back(layout))


def last_alive(layout: Layout, now: datetime, lock_held: datetime | None) -> datetime:
    """Until when the last server is known to have lived, not later than `now`. Blocks.

    `lock_held`: what the lock's file tells, for where an earlier version served, which wrote no
    other one. NOBODY_KNOWS where neither tells it.
    """
    try:
        found = parse_stamp(read_bytes(layout.alive).split(b"\n")[0].decode())
    except FileNotFoundError:
        found = lock_held or NOBODY_KNOWS
    except (OSError, ValueError, OverflowError):
        found = NOBODY_KNOWS
    return min(found, now)


def held_back(layout: Layout) -> list[Span]:
    """When the disk of the last server held everything back, as far as that is known. Blocks."""
    spans: list[Span] = []
    with suppress(OSError, ValueError, OverflowError):
        for line in read_bytes(layout.alive).decode().split("\n")[1:-1]:
            began, ended = line.split(" ")
            spans.append((parse_stamp(began), parse_stamp(ended)))
    return spans


def say_alive(layout: Layout, clock: Clock, held: Sequence[Span] = ()) -> None:
    """Note that the server that serves these records lives, and when its disk `held` all back.

    Blocks; what the disk refuses stays. Over what is there, so that a full disk takes it as well.
    """
    spans = (f"{stamp(began)} {stamp(ended)}\n" for began, ended in held[-HELD_MOST:])
    with suppress(OSError):
        layout.expect_root()
        handle = open_handle(layout.alive, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            told = f"{stamp(clock.now())}\n{''.join(spans)}".encode()
            os.ftruncate(handle, os.pwrite(handle, told, 0))
        finally:
            os.close(handle)
