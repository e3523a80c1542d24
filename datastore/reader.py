"""Records for commands while no server runs: no lock, nothing written, one kind at a time.

The newest word counts: the journal's rows over the index's over the files. What is missing, locked
or broken of the three is passed over, so that a listing shows what there is.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import filterfalse
from pathlib import Path
from typing import Any

from datastore.errors import InvalidFile
from datastore.layout import Layout
from datastore.record import Kind, Record, S, T
from datastore.record_document import parse
from datastore.regular_file import read_bytes
from datastore.replay import Replay
from datastore.shut_out import refuse_if_shut_out
from datastore.sqlite_file import open_to_read
from datastore.sqlite_journal import HISTORY, Row

log = logging.getLogger(__name__)


def read_records(layout: Layout, kind: Kind[S, T]) -> list[Record[S, T]]:
    """Every record of a kind that makes one, by name."""
    # The journal is read first: what a server moves on meanwhile is then in what is read later.
    replay = Replay.of(_journal_rows(layout, kind.folder))
    documents = _index_documents(layout, kind)
    for record in _beside(layout, kind, {f"{name}.yaml" for name in documents}):
        documents[record.name] = record.document()
    for (_, name), change in replay.changes.items():
        merged = change.over(documents.pop(name, None))
        if merged is not None:
            documents[name] = merged
    records = (_from_document(kind, name, documents[name]) for name in sorted(documents))
    return [record for record in records if record is not None]


def read_live(layout: Layout, kind: Kind[S, T]) -> tuple[list[Record[S, T]], int]:
    """The records to which something can still happen, by name, and how many others there are.

    Of the others, those in the index are not read: there may be some ten thousand.
    """
    replay = Replay.of(_journal_rows(layout, kind.folder))
    total = None if replay.changes else _known_total(layout, kind)
    documents = _index_documents(layout, kind, "WHERE NOT finished")
    if total is None:
        files = _index_files(layout, kind)
        for record in _beside(layout, kind, files):
            documents[record.name] = record.document()
        files.update(f"{name}.yaml" for name in documents)
        for (_, name), change in replay.changes.items():
            merged = change.over(documents.pop(name, None))
            if merged is not None:
                documents[name] = merged
                files.add(f"{name}.yaml")
            elif change.removed:
                files.discard(f"{name}.yaml")
        total = len(files)
    records = (_from_document(kind, name, documents[name]) for name in sorted(documents))
    live = [record for record in records if record is not None and record.live]
    return live, total - len(live)


def read_story(layout: Layout, run: str) -> str | None:
    """The story of a finished run as YAML, None without one."""
    for row in _journal_rows(layout, HISTORY):
        if row.name == run and row.body is not None:
            return str(json.loads(row.body)["text"])
    for path in layout.history.glob(f"*/{glob.escape(run)}.yaml"):
        return read_bytes(path).decode()
    return None


def _journal_rows(layout: Layout, folder: str) -> list[Row]:
    query = "SELECT seq, commit_no, kind, name, body FROM rows WHERE kind = ? ORDER BY seq"
    return [Row(*row) for row in _query(layout, layout.journal, query, (folder,))]


def _index_documents(
    layout: Layout, kind: Kind[Any, Any], where: str = ""
) -> dict[str, dict[str, Any]]:
    rows = _query(layout, layout.index, f'SELECT name, document FROM "{kind.folder}" {where}')
    return {name: json.loads(document) for name, document in rows}


def _query(
    layout: Layout, path: Path, query: str, parameters: tuple[Any, ...] = ()
) -> list[tuple[Any, ...]]:
    try:
        with closing(open_to_read(path)) as db:
            return db.execute(query, parameters).fetchall()
    except sqlite3.Error as error:
        # Who may not look would take nothing for all there is.
        refuse_if_shut_out(layout)
        if path.exists():
            log.warning("%s is passed over: %s", path, error)
        return []


def _known_total(layout: Layout, kind: Kind[Any, Any]) -> int | None:
    """How many files of the kind there are, if the index knows all of them; None if it may not.

    A folder that has not changed since the index was last written has no file that is new.
    """
    try:
        changed_ns = layout.observed(kind.folder).stat().st_mtime_ns
        if changed_ns >= layout.index.stat().st_mtime_ns:
            return None
    except OSError:
        return None
    rows = _query(layout, layout.index, f'SELECT count(*) FROM "{kind.folder}"')
    return rows[0][0] if rows else None


def _index_files(layout: Layout, kind: Kind[Any, Any]) -> set[str]:
    """The names of the files that the index knows, in one text: ten thousand rows take longer."""
    query = f"""SELECT group_concat(name || '.yaml', '/') FROM "{kind.folder}" """
    rows = _query(layout, layout.index, query)
    return set(rows[0][0].split("/")) if rows and rows[0][0] else set()


def _beside(layout: Layout, kind: Kind[S, T], known: set[str]) -> Iterator[Record[S, T]]:
    """The records of the kind's files, but for those with a name that is known."""
    try:
        found = os.listdir(layout.observed(kind.folder))
    except OSError:
        return
    for name in filterfalse(known.__contains__, found):
        record = _from_file(layout, kind, name) if name.endswith(".yaml") else None
        if record is not None:
            yield record


def _from_file(layout: Layout, kind: Kind[S, T], file: str) -> Record[S, T] | None:
    from datastore.record_file import read_record

    path = layout.observed(kind.folder) / file
    try:
        return read_record(kind, path, layout.shown(path))
    except (InvalidFile, OSError) as error:
        log.warning("passed over: %s", error)
        return None


def _from_document(kind: Kind[S, T], name: str, document: dict[str, Any]) -> Record[S, T] | None:
    try:
        return parse(kind, document, f"{kind.title} '{name}'")
    except InvalidFile as error:
        log.warning("passed over: %s", error)
        return None
