"""The disk engine below the store: opens a repository, keeps it on disk, and stops cleanly.

Opening trusts the journal first, then the index as far as a file's stat is the one it knows. A file
that differs is put back, one that is gone is restored, and one that nobody vouches for is parsed
with care: finished, or of a kind that starts no work, it is taken as it is; live, it is handed out
as *unvouched*, for the boot sweep to end. One bad record never stops the start. YAML is parsed only
where nobody vouches.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from datastore import files
from datastore.checkpoint import Checkpointer
from datastore.courtesy import Pause, no_pause
from datastore.definition_index import DefinitionIndex
from datastore.edit_lines import taken_over_lines
from datastore.errors import DatastoreError, DiskFull, InvalidFile
from datastore.files import Stat
from datastore.index import IndexRow, IndexTable, open_index
from datastore.journal import Op, Remove
from datastore.kinds import KINDS, STARTS_NO_WORK
from datastore.layout import Layout, create_folders
from datastore.load_report import LoadReport
from datastore.observed import ObservedWriter, RescanReport, Verdict
from datastore.observed_files import Stored, remove_temps
from datastore.record import Kind, Record
from datastore.record_document import parse
from datastore.record_file import read_record
from datastore.replay import Change, Replay
from datastore.room import is_for_want_of_room
from datastore.sqlite_file import is_broken, to_json
from datastore.sqlite_journal import SqliteJournal
from datastore.store import Store
from datastore.trouble import shown, together

log = logging.getLogger(__name__)

Vouched = tuple[Record[Any, Any], bool]


class OpenedEngine:
    """An open repository. `start` it once records are loaded, `close` it at the end."""

    def __init__(self, layout: Layout, kinds: Sequence[Kind[Any, Any]], for_long: bool) -> None:
        create_folders(layout)
        self.journal = SqliteJournal(
            layout.journal, for_long, layout.root_is_here, layout.expect_not_taken
        )
        try:
            self._index = open_index(
                layout.index,
                [kind.folder for kind in kinds],
                layout.root_is_here,
                layout.expect_not_taken,
            )
        except BaseException:
            self._abandon_journal()
            raise
        self.observed = ObservedWriter(layout, kinds, self._index, self.journal.last_seq)
        self.definitions = DefinitionIndex(self._index, self.observed.files_lock)
        self._checkpointer = Checkpointer(layout, self.observed, self.journal.delete_through)
        self.records: list[Vouched] = []
        self.finished: dict[str, dict[str, bytes]] = {kind.folder: {} for kind in kinds}
        """Finished records as JSON, by kind, then name."""
        self.report = LoadReport()

    @property
    def trouble(self) -> str | None:
        """Why the disk refuses the journal or the files just now; None while all is well."""
        return together((self.journal.trouble, self.observed.trouble))

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to write; commits are acknowledged on `loop`."""
        self.observed.start()
        self._checkpointer.start()
        self.journal.start(loop, self._follow)

    def rescan(self, pause: Pause = no_pause) -> RescanReport:
        """Put back what was edited or deleted in `observed/`. Blocks: run it in a thread."""
        return self.observed.rescan(pause)

    def look_at(self, paths: Iterable[str], pause: Pause = no_pause) -> RescanReport:
        """As `rescan`, but these files only. Blocks: run it in a thread."""
        return self.observed.look_at(paths, pause)

    def stored(self, kind: Kind[Any, Any], names: Iterable[str]) -> dict[str, bytes]:
        """The JSON of those of the records that are finished, and in the index. Blocks.

        DatastoreError while the disk refuses.
        """
        try:
            return self.observed.finished(kind.folder, names)
        except sqlite3.Error as error:
            raise DatastoreError(f"the index cannot be read: {error}") from error

    def restore(self) -> list[str]:
        """Have journal and index written again where they were removed; which were. Blocks.

        DatastoreError or OSError while the disk refuses.
        """
        removed = []
        if self.journal.removed:
            removed.append("journal")
            self.journal.restore()
        if self._index.removed:
            removed.append("index")
            try:
                self.observed.sync_index()
            except sqlite3.Error as error:
                raise DatastoreError(f"the index cannot be written anew: {error}") from error
        return removed

    def close(self, give_up_after_s: float = 30.0) -> None:
        """Bring everything into the files and let go of the journal's rows. Blocks.

        Degraded if the disk refuses the journal itself; changes that only the files could not take
        stay in the journal for the next start.
        """
        try:
            self.journal.stop(give_up_after_s)
        finally:
            self.observed.stop(give_up_after_s)
            self._checkpointer.stop()
            self._let_go()

    def abandon(self) -> None:
        """Let go of an engine that was never started, with everything as it is. Blocks."""
        self._abandon_journal()
        self._index.close()

    def _abandon_journal(self) -> None:
        with suppress(sqlite3.Error, OSError):
            self.journal.close()

    def _let_go(self) -> None:
        try:
            self.journal.close(delete_through=self._checkpointer.run_once())
        except (OSError, sqlite3.Error) as error:
            log.warning("the journal keeps its rows for the next start: %s", error)
        with self.observed.files_lock:
            self._index.close()

    def _follow(self, first_seq: int, ops: Sequence[Op]) -> None:
        self.observed.follow(first_seq, ops)
        self._checkpointer.note(first_seq + len(ops) - 1)


def open_engine(
    layout: Layout, kinds: Iterable[Kind[Any, Any]], *, for_long: bool = True
) -> OpenedEngine:
    """Open a repository whose lock is held, `for_long` or for one run. Blocks: run it in a thread.

    DatastoreError when the journal cannot be read, or the disk takes neither journal nor index;
    DiskFull when that is for want of room.
    """
    try:
        return _opened(layout, tuple(kinds), for_long)
    except (OSError, sqlite3.Error, DatastoreError) as error:
        if not is_for_want_of_room(error, layout.private):
            raise
        raise DiskFull(shown(error)) from error


def open_store(layout: Layout, *, for_long: bool = True) -> tuple[Store, OpenedEngine, LoadReport]:
    """A store of every record of a repository whose lock is held, as `open_engine`. Blocks.

    Commits become durable only once the engine is started.
    """
    # Nothing that is made here is garbage, and all of it is kept.
    gc.disable()
    try:
        engine = open_engine(layout, KINDS.values(), for_long=for_long)
        store = Store(KINDS.values(), engine.journal)
        for record, _ in engine.records:
            store.load(record)
        for folder, documents in engine.finished.items():
            store.load_finished(KINDS[folder], documents)
        engine.records, engine.finished = [], {}
    finally:
        gc.enable()
    # A full collection over some 100,000 records would stop the loop for half a second.
    gc.freeze()
    return store, engine, engine.report


def _opened(layout: Layout, kinds: tuple[Kind[Any, Any], ...], for_long: bool) -> OpenedEngine:
    engine = OpenedEngine(layout, kinds, for_long)
    try:
        _Opening(layout, kinds, engine).run()
    except BaseException:
        engine.abandon()
        raise
    return engine


class _Opening:
    """The steps of one start."""

    def __init__(
        self, layout: Layout, kinds: Sequence[Kind[Any, Any]], engine: OpenedEngine
    ) -> None:
        self._layout = layout
        self._kinds = {kind.folder: kind for kind in kinds}
        self._engine = engine
        self._index = engine._index
        self._observed = engine.observed
        self._report = engine.report

    def run(self) -> None:
        remove_temps(self._layout.temps, os.listdir(self._layout.temps))
        replay = Replay.of(self._engine.journal.rows())
        newer: dict[str, set[str]] = {folder: set() for folder in self._kinds}
        for folder, name in replay.changes:
            newer.setdefault(folder, set()).add(name)
        tables = self._index_tables()
        for folder, kind in self._kinds.items():
            self._open_kind(kind, tables.pop(folder, None), newer[folder])
        for key, change in replay.changes.items():
            self._replay(key, change)
        for seq, story in replay.stories:
            self._observed.follow(seq, [story])
        finished = self._engine.finished.items()
        self._report.finished = {folder: len(found) for folder, found in finished if found}
        self._report.replayed = len(replay.changes) + len(replay.stories)
        for line in taken_over_lines(self._report.taken_over):
            log.warning("%s", line)
        self._observed.catch_up()

    def _open_kind(
        self, kind: Kind[Any, Any], table: IndexTable | None, newer: Collection[str]
    ) -> None:
        """Take the records of a kind, but those of which the journal knows something newer."""
        folder, hidden = self._layout.observed(kind.folder), list[str]()
        there = files.scan(folder, hidden=hidden)
        remove_temps(folder, hidden)
        if table is not None:
            self._observed.note(kind.folder, table.stats)
            self._take_table(kind, table, there, newer)
        for file, stat in there.items():
            if file.removesuffix(".yaml") not in newer:
                self._take_unknown(kind, file, stat)

    def _take_table(
        self,
        kind: Kind[Any, Any],
        table: IndexTable,
        there: dict[str, Stat],
        newer: Collection[str],
    ) -> None:
        """Take the index's rows, and put back their files where these are others by now.

        What is left in `there` afterwards are the files that the index does not know.
        """
        stats = table.stats.items()
        others = [name for name, stat in stats if there.pop(f"{name}.yaml", None) != stat]
        for name in others:
            if name not in newer:
                self._put_back(kind, name)
        for name in newer:
            table.finished.pop(name, None)
            table.live.pop(name, None)
        self._engine.finished[kind.folder].update(table.finished)
        for name, data in table.live.items():
            try:
                document = json.loads(data)
            except ValueError as error:
                shown = self._shown(kind, f"{name}.yaml")
                self._report.invalid.append(InvalidFile(shown, f"its row in the index: {error}"))
            else:
                self._take_live(kind, name, document)

    def _index_tables(self) -> dict[str, IndexTable]:
        """Every row by kind, read before any is used: a broken index vouches for nothing."""
        try:
            return {folder: self._index.table(folder) for folder in self._kinds}
        except sqlite3.Error as error:
            if not is_broken(error):
                raise DatastoreError(f"the index cannot be read: {error}") from error
            self._index.rebuild(str(error))
            return {}

    def _take_finished(self, kind: Kind[Any, Any], name: str, document: bytes) -> None:
        self._engine.finished[kind.folder][name] = document

    def _take_live(self, kind: Kind[Any, Any], name: str, document: dict[str, Any]) -> None:
        try:
            record = parse(kind, document, self._shown(kind, f"{name}.yaml"))
        except InvalidFile as error:
            self._report.invalid.append(error)
        else:
            self._take_record(record, vouched=True)

    def _take_record(self, record: Record[Any, Any], *, vouched: bool) -> None:
        folder = record.kind.folder
        self._engine.records.append((record, vouched))
        self._report.live[folder] = self._report.live.get(folder, 0) + 1
        if not vouched:
            self._report.unvouched.append((folder, record.name))

    def _put_back(self, kind: Kind[Any, Any], name: str) -> None:
        shown = self._shown(kind, f"{name}.yaml")
        try:
            verdict = self._observed.put_back(kind.folder, name)
        except (OSError, sqlite3.Error) as error:
            # The next rescan tries again; the record itself is whole.
            log.warning("%s cannot be put back for now: %s", shown, error)
            return
        if verdict is Verdict.PUT_BACK:
            self._report.put_back.append(shown)
        elif verdict is Verdict.RESTORED:
            self._report.restored.append(shown)

    def _take_unknown(self, kind: Kind[Any, Any], file: str, stat: Stat) -> None:
        shown = self._shown(kind, file)
        try:
            record = read_record(kind, self._layout.observed(kind.folder) / file, shown)
        except InvalidFile as error:
            self._report.invalid.append(error)
        except OSError as error:
            self._report.invalid.append(InvalidFile(shown, f"cannot be read: {error.strerror}"))
        else:
            self._take_found(record, shown, stat)

    def _take_found(self, record: Record[Any, Any], shown: str, stat: Stat) -> None:
        """Take a record that only its file shows."""
        kind = record.kind
        if record.live and kind.folder not in STARTS_NO_WORK:
            # Not into the index: after a crash before the sweep it must still be unvouched.
            self._take_record(record, vouched=False)
            return
        document = to_json(record.document())
        if record.live:
            self._take_record(record, vouched=True)
            self._report.taken_over.append(shown)
        else:
            self._take_finished(kind, record.name, document)
            self._report.adopted.append(shown)
        self._adopt(kind, shown, IndexRow(record.name, stat, not record.live, document))

    def _adopt(self, kind: Kind[Any, Any], shown: str, row: IndexRow) -> None:
        try:
            self._observed.adopt(kind.folder, row)
        except (OSError, sqlite3.Error) as error:
            log.warning("%s cannot be noted in the index for now: %s", shown, error)

    def _replay(self, key: tuple[str, str], change: Change) -> None:
        kind, name = self._kinds.get(key[0]), key[1]
        if kind is None:
            problem = f"the journal holds '{name}' of the unknown kind '{key[0]}'"
            self._report.invalid.append(InvalidFile(str(self._layout.journal), problem))
            return
        if change.removed:
            self._observed.follow(change.first_seq, [Remove(kind, name)])
            return
        base = self._base(kind, name) if change.needs_base else None
        document = change.over(base)
        if document is None:
            problem = "only its last status is known: neither index nor file has its spec"
            self._report.invalid.append(InvalidFile(self._shown(kind, f"{name}.yaml"), problem))
            return
        stored = Stored(kind, name, document)
        self._observed.follow(change.first_seq, [stored])
        if stored.finished:
            self._take_finished(kind, name, to_json(document))
        else:
            self._take_live(kind, name, document)

    def _base(self, kind: Kind[Any, Any], name: str) -> Mapping[str, Any] | None:
        """What a status of the journal lies over: the index, or without it the file."""
        document = self._index.document(kind.folder, name)
        if document is not None:
            return dict(json.loads(document))
        path = self._layout.record_file(kind.folder, name)
        try:
            return read_record(kind, path, str(path)).document()
        except (InvalidFile, OSError):
            return None

    def _shown(self, kind: Kind[Any, Any], file: str) -> str:
        return self._layout.shown(self._layout.observed(kind.folder) / file)
