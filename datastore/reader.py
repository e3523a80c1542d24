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
from contextlib import closing
from pathlib import Path
from typing import Any

from datastore.errors import InvalidFile
from datastore.layout import Layout
from datastore.record import Kind, Record, S, T
from datastore.record_file import parse, read_record
from datastore.replay import Replay
from datastore.sqlite_file import open_to_read
from datastore.sqlite_journal import HISTORY, Row

log = logging.getLogger(__name__)


def read_records(layout: Layout, kind: Kind[S, T]) -> list[Record[S, T]]:
    """Every record of a kind that makes one, by name."""
    # The journal is read first: what a server moves on meanwhile is then in what is read later.
    replay = Replay.of(_journal_rows(layout, kind.folder))
    documents = _index_documents(layout, kind)
    for name in _file_names(layout, kind) - documents.keys():
        record = _from_file(layout, kind, name)
        if record is not None:
            documents[name] = record.document()
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
    names = {name for (name,) in _query(layout.index, f'SELECT name FROM "{kind.folder}"')}
    documents = _index_documents(layout, kind, "WHERE NOT finished")
    for name in _file_names(layout, kind) - names:
        record = _from_file(layout, kind, name)
        if record is not None:
            names.add(name)
            documents[name] = record.document()
    for (_, name), change in replay.changes.items():
        merged = change.over(documents.pop(name, None))
        if merged is not None:
            documents[name] = merged
            names.add(name)
        elif change.removed:
            names.discard(name)
    records = (_from_document(kind, name, documents[name]) for name in sorted(documents))
    live = [record for record in records if record is not None and record.live]
    return live, len(names) - len(live)


def read_story(layout: Layout, run: str) -> str | None:
    """The story of a finished run as YAML, None without one."""
    for row in _journal_rows(layout, HISTORY):
        if row.name == run and row.body is not None:
            return str(json.loads(row.body)["text"])
    for path in layout.history.glob(f"*/{glob.escape(run)}.yaml"):
        return path.read_text(encoding="utf-8")
    return None


def _journal_rows(layout: Layout, folder: str) -> list[Row]:
    query = "SELECT seq, commit_no, kind, name, body FROM rows WHERE kind = ? ORDER BY seq"
    return [Row(*row) for row in _query(layout.journal, query, (folder,))]


def _index_documents(
    layout: Layout, kind: Kind[Any, Any], where: str = ""
) -> dict[str, dict[str, Any]]:
    rows = _query(layout.index, f'SELECT name, document FROM "{kind.folder}" {where}')
    return {name: json.loads(document) for name, document in rows}


def _query(path: Path, query: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    try:
        with closing(open_to_read(path)) as db:
            return db.execute(query, parameters).fetchall()
    except sqlite3.Error as error:
        if path.exists():
            log.warning("%s is passed over: %s", path, error)
        return []


def _file_names(layout: Layout, kind: Kind[Any, Any]) -> set[str]:
    try:
        names = os.listdir(layout.observed(kind.folder))
    except OSError:
        return set()
    return {name.removesuffix(".yaml") for name in names if name.endswith(".yaml")}


def _from_file(layout: Layout, kind: Kind[S, T], name: str) -> Record[S, T] | None:
    path = layout.record_file(kind.folder, name)
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
