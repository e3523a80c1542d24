"""One process per repository: a lock on `.swamp/lock` that ends with the process, however it ends.

The file also says who holds it, so that the one who is refused knows whom to stop. The kernel's
lock decides, never what the file says.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from contextlib import suppress
from datetime import datetime
from types import TracebackType

from datastore.clock import Clock, SystemClock, parse_stamp, stamp
from datastore.errors import RepositoryLocked
from datastore.layout import Layout


class RepositoryLock:
    """The right to write a repository's records, held from `acquire` to `release`."""

    def __init__(self, layout: Layout, clock: Clock | None = None) -> None:
        self._layout = layout
        self._clock = clock or SystemClock()
        self._descriptor: int | None = None

    def acquire(self) -> RepositoryLock:
        """Take the lock or raise RepositoryLocked, naming the holder; never waits."""
        self._layout.private.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0)
            os.close(descriptor)
            raise RepositoryLocked(_refusal(holder)) from None
        self._descriptor = descriptor
        self._sign(descriptor)
        return self

    def release(self) -> None:
        """Give the lock up; nothing happens when it is not held."""
        if self._descriptor is not None:
            # The file stays: removing it would let two processes lock two different inodes.
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _sign(self, descriptor: int) -> None:
        holder = {"pid": os.getpid(), "since": stamp(self._clock.now()), "command": sys.argv}
        # Who holds it is a courtesy: a full disk must not keep the lock from being held.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)

    def __enter__(self) -> RepositoryLock:
        return self if self._descriptor is not None else self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _refusal(holder: bytes) -> str:
    try:
        found = json.loads(holder)
        since = parse_stamp(found["since"]).astimezone()
        who = f"pid {int(found['pid'])} (since {_since(since)})"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    return (
        f"this repository is served by {who}; stop it first, "
        "or talk to it with --server <its address>"
    )


def _since(moment: datetime) -> str:
    """The time of day, with the date unless it is today."""
    today = datetime.now(moment.tzinfo).date() == moment.date()
    return f"{moment:%H:%M:%S}" if today else f"{moment:%Y-%m-%d %H:%M:%S}"
