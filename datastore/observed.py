"""The YAML files of `observed/` and `history/`: they follow the journal, one thread writing them.

Only what is durable in the journal gets here, so a file never shows what a crash could undo. A
record that changes faster than files are written is written in its latest state only. Files are not
synced one by one: `Checkpointer` syncs them all together and only then lets go of journal rows.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from datastore import files
from datastore.courtesy import Pause, no_pause
from datastore.errors import InvalidFile
from datastore.files import Stat
from datastore.files_trouble import FilesTrouble, Key, refused_file, refused_index
from datastore.index import Index, IndexRow
from datastore.journal import Op, Put, Remove, Story
from datastore.layout import IGNORE_ALL, Layout, make_folder
from datastore.observed_files import ObservedFiles, Stored, data_of
from datastore.record import Kind
from datastore.record_file import MAX_BYTES
from datastore.regular_file import read_bytes
from datastore.sqlite_file import is_broken, to_json
from datastore.sqlite_journal import HISTORY
from datastore.yaml_loader import load

log = logging.getLogger(__name__)

ROUND_MAX = 1000
"""Files of one round, and so rows of one transaction of the index."""
_REST_MIN_S, _REST_MAX_S = 0.02, 0.5
_REST_PER_FILE_S = 0.002
_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0


class Verdict(Enum):
    """What `put_back` found."""

    SAME = "as written"
    PUT_BACK = "edited, put back"
    RESTORED = "missing, restored"
    UNKNOWN = "not written by the server"


@dataclass(frozen=True, slots=True)
class RescanReport:
    """Paths, relative to the root, of files that were not as the server had written them."""

    put_back: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(slots=True)
class _Waiting:
    """A record's latest change, and the first one that its file does not show yet."""

    first_seq: int
    op: Op | Stored


class ObservedWriter:
    """Writes what `follow` is told. `round` and `put_back` exclude each other across threads."""

    def __init__(
        self, layout: Layout, kinds: Iterable[Kind[Any, Any]], index: Index, followed: int = 0
    ) -> None:
        """`followed` is the seq of the last op that files and index show already."""
        self._layout = layout
        self._kinds = {kind.folder: kind for kind in kinds}
        self._index = index
        self._files = ObservedFiles(layout, self._kinds)
        self._lock = threading.Lock()
        self.files_lock = threading.Lock()
        """Of the files and the index; to be held by whoever uses the index, never for long."""
        self._waiting: dict[Key, _Waiting] = {}
        self._writing: dict[Key, _Waiting] = {}
        self._failed: dict[Key, _Waiting] = {}
        self._followed = followed
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._give_up_at: float | None = None
        self._retry_at = 0.0
        self._backoff_s = _BACKOFF_FIRST_S
        self._trouble = FilesTrouble(log)
        self._thread: threading.Thread | None = None

    # -- told and asked by other threads ---------------------------------------------------------

    def follow(self, first_seq: int, ops: Sequence[Op | Stored]) -> None:
        """Take durable changes in order, the first under that seq. Never blocks for the disk."""
        with self._lock:
            for seq, op in enumerate(ops, first_seq):
                key = _key(op)
                waiting = self._waiting.get(key)
                if waiting is None:
                    self._waiting[key] = _Waiting(seq, op)
                else:
                    waiting.op = op
                self._followed = max(self._followed, seq)
        self._wake.set()

    @property
    def trouble(self) -> str | None:
        """Why files cannot be written just now; None while all is well."""
        return self._trouble.reason

    def shown_through(self) -> int:
        """The seq up to which files and index (though not yet synced) show every change."""
        with self._lock:
            groups = (self._waiting, self._writing, self._failed)
            seqs = [waiting.first_seq for group in groups for waiting in group.values()]
            return min(seqs, default=self._followed + 1) - 1

    def sync_index(self) -> None:
        """Return when the index's rows are on disk; never while it is being rebuilt."""
        with self.files_lock:
            self._index.sync()

    def finished(self, kind: str, names: Iterable[str]) -> dict[str, bytes]:
        """The documents of finished records as the index has them. Blocks; any thread."""
        with self.files_lock:
            return self._index.finished(kind, names)

    def is_own(self, path: Path, stat: Stat) -> bool:
        """Whether that stat of that file is the one under which the server wrote it. Cheap."""
        return self._files.is_own(path, stat)

    def note(self, kind: str, stats: Mapping[str, Stat]) -> None:
        """Take files, by name, as the server's own: those that a start found in the index."""
        self._files.stats[kind].update(stats)

    def adopt(self, kind: str, row: IndexRow) -> None:
        """Take a file that somebody else wrote as it is."""
        self._index.update(puts=[(kind, row)])
        self._files.stats[kind][row.name] = row.stat

    def start(self) -> None:
        """Begin to write."""
        self._thread = threading.Thread(target=self._run, name="observed", daemon=True)
        self._thread.start()

    def stop(self, give_up_after_s: float = 30.0) -> None:
        """Write everything that waits and end the thread. Blocks.

        What the disk refuses for longer than `give_up_after_s` stays in the journal.
        """
        self._give_up_at = time.monotonic() + give_up_after_s
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # -- putting back ----------------------------------------------------------------------------

    def rescan(self, pause: Pause = no_pause) -> RescanReport:
        """Look at every file and put back what is not as it was written. Blocks; any thread.

        Files that the server did not write are reported and never touched.
        """
        suspects: list[Path] = []
        for kind in self._kinds:
            folder = self._layout.observed(kind)
            if not (folder / ".gitignore").exists():
                make_folder(self._layout, folder)
                files.ensure_ignored(folder, IGNORE_ALL)
            there = files.scan(folder, pause)
            others = []
            for name, stat in dict(self._files.stats[kind]).items():
                pause()
                if there.pop(f"{name}.yaml", None) != stat:
                    others.append(f"{name}.yaml")
            suspects += sorted(folder / file for file in (*others, *there))
        return self._put_back_all(suspects, pause)

    def look_at(self, paths: Iterable[str], pause: Pause = no_pause) -> RescanReport:
        """As `rescan`, but these files only; the server's own writes cost a stat. Blocks."""
        suspects = []
        for path in paths:
            pause()
            place = self._files.place_of(path)
            if place is None:
                continue
            kind, name = place
            stat = files.stat_of(path)
            if stat is None or self._files.stats[kind].get(name) != stat:
                suspects.append(Path(path))
        return self._put_back_all(suspects, pause)

    def _put_back_all(self, suspects: Iterable[Path], pause: Pause) -> RescanReport:
        found: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
        for path in suspects:
            pause()
            shown = self._layout.shown(path)
            try:
                found[self.put_back(path.parent.name, path.stem)].append(shown)
            except (OSError, sqlite3.Error) as error:
                log.warning("%s cannot be put back for now: %s", shown, error)
        return RescanReport(
            tuple(found[Verdict.PUT_BACK]),
            tuple(found[Verdict.RESTORED]),
            tuple(found[Verdict.UNKNOWN]),
        )

    def put_back(self, kind: str, name: str) -> Verdict:
        """Make one file what it was when last written. Blocks; any thread.

        OSError or sqlite3.Error when the disk refuses.
        A file that is about to be written again is left to that.
        """
        path = self._layout.record_file(kind, name)
        with self.files_lock:
            now = files.stat_of(path)
            own = self._files.stats[kind].get(name)
            if now == own or self._is_waiting((kind, name)):
                return Verdict.SAME
            document = None if own is None else self._index.document(kind, name)
            if document is None:
                return Verdict.UNKNOWN
            value = json.loads(document)
            same = now is not None and read_bytes(path) == data_of(path, value)
            # Copied, say, or only touched: what it holds is right.
            stat = now if now is not None and same else self._files.write(kind, name, value)
            finished = Stored(self._kinds[kind], name, value).finished
            self._index.update(puts=[(kind, IndexRow(name, stat, finished, document))])
            self._files.stats[kind][name] = stat
        if same:
            return Verdict.SAME
        return Verdict.RESTORED if now is None else Verdict.PUT_BACK

    def _is_waiting(self, key: Key) -> bool:
        with self._lock:
            return key in self._waiting or key in self._failed

    # -- the writer's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException:
            # Nothing is lost, the journal has it; the traceback goes to stderr.
            self._trouble.reason = (
                "the writer of files ended by an error of ours; restart the server"
            )
            raise

    def _serve(self) -> None:
        while True:
            self._wake.wait(self._patience_s())
            self._wake.clear()
            written = self.round()
            if self._give_up_at is None:
                # A record that begins and ends during the rest is one file written once. The
                # more there is to write, the longer the rest: this is where load costs least.
                rest_s = min(max(_REST_MIN_S, written * _REST_PER_FILE_S), _REST_MAX_S)
                self._stopping.wait(rest_s)
            elif not self._failed_or_waiting() or time.monotonic() >= self._give_up_at:
                return

    def _patience_s(self) -> float | None:
        with self._lock:
            if self._waiting:
                return 0.0
            return max(0.0, self._retry_at - time.monotonic()) if self._failed else None

    def _failed_or_waiting(self) -> bool:
        with self._lock:
            return bool(self._failed or self._waiting)

    def round(self) -> int:
        """Write what waits, ROUND_MAX files at most; how many there were."""
        with self.files_lock:
            batch = self._take()
            if batch:
                failed = self._write(batch)
                with self._lock:
                    self._writing = {}
                    self._failed.update(failed)
        return len(batch)

    def catch_up(self) -> None:
        """Rounds until nothing waits but what the disk refuses."""
        self.round()
        while self._waiting:
            self.round()

    def _take(self) -> dict[Key, _Waiting]:
        with self._lock:
            if self._failed and time.monotonic() >= self._retry_at:
                self._bring_back_failed()
            keys = list(self._waiting)[:ROUND_MAX]
            self._writing = {key: self._waiting.pop(key) for key in keys}
            for key in self._failed.keys() & self._writing.keys():
                # Written after the newer change, the older one would undo it.
                _take_over(self._writing[key], self._failed.pop(key))
            return self._writing

    def _bring_back_failed(self) -> None:
        for key, failed in self._failed.items():
            _take_over(self._waiting.setdefault(key, failed), failed)
        self._failed = {}

    def _write(self, batch: Mapping[Key, _Waiting]) -> dict[Key, _Waiting]:
        """Write a round; the part of it that the disk refused."""
        refused: dict[Key, str] = {}
        puts: list[tuple[str, IndexRow]] = []
        removals: list[Key] = []
        for key, waiting in batch.items():
            try:
                row = self._files.apply(waiting.op)
            except OSError as error:
                refused[key] = refused_file(key, error.strerror or error)
                continue
            if row is not None:
                puts.append((key[0], row))
            elif key[0] != HISTORY:
                removals.append(key)
        try:
            with self._mended_index():
                self._index.update(puts, removals)
        except (sqlite3.Error, OSError) as error:
            refused = dict.fromkeys(batch, refused_index(error)) | refused
        self._trouble.tried(batch, refused)
        self._try_again_after(bool(refused))
        return {key: batch[key] for key in refused}

    @contextmanager
    def _mended_index(self) -> Iterator[None]:
        """Build the index anew when it turns out to be broken; the round is then written again."""
        try:
            yield
        except sqlite3.Error as error:
            if is_broken(error):
                self._index.rebuild(str(error))
                self._index.update(list(self._rows_from_files()))
            raise

    def _rows_from_files(self) -> Iterator[tuple[str, IndexRow]]:
        for folder, kind in self._kinds.items():
            for name, stat in self._files.stats[folder].items():
                path = self._layout.record_file(folder, name)
                if files.stat_of(path) != stat:
                    continue
                try:
                    data = read_bytes(path, MAX_BYTES)
                    value = load(data, str(path), max_bytes=MAX_BYTES, own=True).value
                except InvalidFile as error:
                    log.error("the index loses a record that its file does not hold: %s", error)
                    continue
                row = IndexRow(name, stat, Stored(kind, name, value).finished, to_json(value))
                yield folder, row

    def _try_again_after(self, was_refused: bool) -> None:
        if was_refused:
            self._retry_at = time.monotonic() + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, _BACKOFF_MAX_S)
        elif self._trouble.reason is None:
            self._backoff_s = _BACKOFF_FIRST_S


def _take_over(newer: _Waiting, older: _Waiting) -> None:
    """Let the newer change stand for both: the file shows neither yet."""
    newer.first_seq = min(newer.first_seq, older.first_seq)


def _key(op: Op | Stored) -> Key:
    match op:
        case Put(record):
            return record.kind.folder, record.name
        case Story(_, run, _):
            return HISTORY, run
        case Remove(kind, name) | Stored(kind, name):
            return kind.folder, name
