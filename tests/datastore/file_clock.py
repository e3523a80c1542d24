"""Times of files, for tests: their stats are trusted when a test says so, none waits for that."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path


class FileClock:
    """A clock that tests put ahead."""

    def __init__(self) -> None:
        self._ahead = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    @contextmanager
    def settled(self, folder: Path) -> Iterator[None]:
        """Whoever looks at files meanwhile finds all old enough for their stats to be trusted.

        Whatever is written later has another ctime than all that is there. `folder` is on the same
        file system.
        """
        probe = folder / ".tick"
        probe.touch()
        first_ns = probe.stat().st_ctime_ns
        while probe.stat().st_ctime_ns == first_ns:
            time.sleep(0.0005)
            probe.touch()
        probe.unlink()
        self._ahead = timedelta(hours=1)
        try:
            yield
        finally:
            self._ahead = timedelta()


def rewrite_unseen(path: Path, text: str) -> None:
    """Write a file in place and set its mtime back, as `touch -r` does."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
