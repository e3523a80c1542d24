"""The one thread that writes the logs of runs: it appends in batches, removes, and writes anew.

What is to be appended is tried until the disk takes it, and all that is to be appended waits behind
it. Removals do not: what they free may be the room that is wanted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from datastore import files
from datastore.event_file import WholeLog, append_whole
from datastore.hand_over import HandOver
from datastore.trouble import Trouble

log = logging.getLogger(__name__)

Written = Callable[[], None]

Entry = tuple[str, bytes | WholeLog | None, Written | None]
"""A run, a line of its log (None: the log goes), and whom to tell once that is done."""

AT_ONCE = 1_000
"""After so many entries no more are taken along."""
_BACKOFF_FIRST_S, _BACKOFF_MAX_S = 0.05, 1.0


class EventWriter:
    """Use it from the event loop's thread; `close` when done."""

    def __init__(
        self,
        folder: Path,
        expect_root: Callable[[], None],
        note: Callable[[list[Entry]], None],
    ) -> None:
        """`note` is told, on the loop, what was done; `expect_root` is asked before that."""
        self._folder, self._expect_root, self._note = folder, expect_root, note
        self._ends = False
        self._refused = Trouble("events of runs cannot be written", log)
        self._loop = asyncio.get_running_loop()
        self._entries: HandOver[Entry] = HandOver()
        self._entries.bind(self._loop)
        self._later: list[Entry] = []
        """What has come while the disk refused."""
        self._thread = threading.Thread(target=self._write, name="events-write", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Have it done, soon and in order."""
        self._entries.put(entry)

    @property
    def trouble(self) -> str | None:
        """Why events do not reach their files just now; None while all is well."""
        return self._refused.reason

    def path(self, run: str) -> Path:
        """Where the log of that run is."""
        return self._folder / f"{run}.jsonl"

    def close(self, within_s: float) -> None:
        """Do what is waiting and end, within that time. Blocking."""
        self._ends = True
        self._entries.flush()
        self._thread.join(within_s)

    # -- the thread ------------------------------------------------------------------------------

    def _write(self) -> None:
        """Do what is waiting, a batch per run, until `close`."""
        while True:
            found, self._later = self._later, []
            # Told to end, it does so once nothing is left.
            more = self._entries.get_nowait() if self._ends or found else self._entries.get()
            if more is None and not found:
                return
            entries = found + (more or [])
            while len(entries) < AT_ONCE and (more := self._entries.get_nowait()) is not None:
                entries += more
            self._do(entries)
            self._tell(entries)

    def _do(self, entries: list[Entry]) -> None:
        by_run: dict[str, list[bytes]] = {}
        for run, line, _ in entries:
            if isinstance(line, WholeLog):
                by_run.pop(run, None)
                self._write_anew(run, line)
            elif line:
                by_run.setdefault(run, []).append(line)
        for run, lines in by_run.items():
            delay_s = _BACKOFF_FIRST_S
            while not self._append(run, b"".join(lines)):
                self._remove_meanwhile(entries)
                threading.Event().wait(delay_s)
                delay_s = min(delay_s * 2, _BACKOFF_MAX_S)
        for run in [run for run, line, _ in entries if line is None]:
            self._remove(run)

    def _append(self, run: str, data: bytes) -> bool:
        """All of it or none of it; False if the disk refuses just now."""
        with self._refused.caught():
            self._expect_root()
            append_whole(self.path(run), data)
            return True
        return False

    def _write_anew(self, run: str, whole: WholeLog) -> None:
        try:
            self._expect_root()
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.write(self.path(run), whole.data(run))
        except OSError as error:
            log.warning("the events of run %s cannot be written anew for now: %s", run, error)

    def _remove_meanwhile(self, entries: list[Entry]) -> None:
        """Remove the logs that are to go, but those for which something is still to be written."""
        while (more := self._entries.get_nowait()) is not None:
            self._later += more
        removals = [entry for entry in (*entries, *self._later) if entry[1] is None]
        if not removals:
            return
        busy = {run for run, line, _ in (*entries, *self._later) if line is not None}
        now = [entry for entry in removals if entry[0] not in busy]
        for entry in now:
            self._remove(entry[0])
        gone = {id(entry) for entry in now}
        entries[:] = [entry for entry in entries if id(entry) not in gone]
        self._later = [entry for entry in self._later if id(entry) not in gone]
        self._tell(now)

    def _remove(self, run: str) -> None:
        # One that cannot be removed costs its space and nothing else.
        with suppress(OSError):
            self._expect_root()
            self.path(run).unlink(missing_ok=True)

    def _tell(self, entries: list[Entry]) -> None:
        if entries:
            self._loop.call_soon_threadsafe(self._note, entries)
