"""Lets go of journal rows: first everything that follows from them is synced, then they go.

A thread of its own, because syncing a file system waits for everybody's data, and neither commits
nor files may wait for that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from datastore.files import sync_file_system
from datastore.layout import Layout
from datastore.observed import ObservedWriter
from datastore.trouble import Trouble

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
ROWS = 2_000


class Checkpointer:
    """Runs every INTERVAL_S, or when ROWS have come since."""

    def __init__(
        self, layout: Layout, observed: ObservedWriter, delete_through: Callable[[int], None]
    ) -> None:
        self._layout = layout
        self._observed = observed
        self._delete_through = delete_through
        self._done_through = 0
        self._noted = 0
        self._looked_at = 0
        """What had been noted when the last run began: what it then left is not due for that."""
        self._due = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._refused = Trouble("the journal keeps its rows, no checkpoint for now", log)

    def note(self, last_seq: int) -> None:
        """Say that rows up to that seq are in the journal."""
        self._noted = last_seq
        if last_seq - self._looked_at >= ROWS:
            self._due.set()

    def start(self) -> None:
        """Begin to run."""
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Blocks for a checkpoint that is under way."""
        self._stopping = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def run_once(self) -> int:
        """Sync what the files and the index show; the seq up to which no row is needed any more.

        OSError or sqlite3.Error when the disk fails; then no row may go.
        """
        through = self._observed.shown_through()
        self._layout.expect_root()
        if through > self._done_through:
            sync_file_system(self._layout.datastore)
            self._observed.sync_index()
            self._done_through = through
        return self._done_through

    def _run(self) -> None:
        while not self._stopping:
            self._due.wait(INTERVAL_S)
            self._due.clear()
            self._looked_at = self._noted
            before = self._done_through
            with self._refused.caught():
                through = self.run_once()
                if through > before:
                    self._delete_through(through)
