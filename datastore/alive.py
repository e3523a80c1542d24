"""Until when a server lived: `.swamp/alive`, one moment as text, for the next start to read.

Waiting counts while a server serves the records. So it alone writes this file: no command that only
holds the lock, no start that comes to nothing; and what tools do to the time of a file (`cp`,
`git`) changes nothing. Not synced: after a power cut it may tell of a moment half a minute before.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime

from datastore.clock import Clock, parse_stamp, stamp
from datastore.layout import Layout
from datastore.regular_file import open_handle, read_bytes

NOBODY_KNOWS = datetime.min.replace(tzinfo=UTC)
"""Then nothing counts of the waiting that was under way: a step waits too long rather than fails
for time in which no server ran."""


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


def say_alive(layout: Layout, clock: Clock) -> None:
    """Note that the server that serves these records lives. Blocks; what the disk refuses stays.

    Over what is there, of one length, so that a full disk takes it as well.
    """
    with suppress(OSError):
        layout.expect_root()
        handle = open_handle(layout.alive, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(handle, f"{stamp(clock.now())}\n".encode(), 0)
        finally:
            os.close(handle)
