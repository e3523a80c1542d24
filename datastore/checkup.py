"""What is wrong with the files of a repository, found by looking: nothing is written or repaired.

Works beside a running server: a file that changed a moment ago is left out, as the index may still
be on its way. Every finding says what is there and the way out.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from datastore import files
from datastore import way_out as ways
from datastore.definitions.catalog import Catalog
from datastore.desired import DesiredTree
from datastore.errors import InvalidFile
from datastore.files import Stat
from datastore.kinds import KINDS, RUNS, STARTS_NO_WORK
from datastore.layout import Layout
from datastore.observed_files import data_of
from datastore.reader import read_records
from datastore.record import Kind
from datastore.record_file import read_record
from datastore.regular_file import read_bytes
from datastore.sqlite_file import is_broken, open_to_read

SETTLED_S = 5.0
"""Files that changed less long ago may still be in somebody's hands, seconds."""

RUNS_MOST = 3
"""So many runs are named one by one; more are counted."""

ALIKE_MOST = 10
"""So many records of a kind are named; more with the same fault are counted."""

_TEMP = re.compile(r"\.[0-9]+-[0-9]+\.(tmp|swap)")

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `way_out` says what to do where something is wrong."""

    level: Level
    check: str
    message: str
    way_out: str | None = None


def cut_short(check: str, reason: str) -> Finding:
    """Something that could not be looked at to its end."""
    what = f"the look ended early: {reason}"
    return Finding("error", check, what, f"{ways.way_out(reason)}, then look again")


def people_files(layout: Layout) -> list[InvalidFile]:
    """The files of people that are not in force as they stand."""
    catalog, desired = Catalog(layout.root), DesiredTree(layout)
    found = []
    for look in (desired.scan, catalog.scan):
        try:
            look()
        except OSError as error:
            # What the others hold is told all the same.
            path = Path(error.filename) if error.filename else layout.root
            found.append(InvalidFile(layout.shown(path), f"cannot be read: {error.strerror}"))
    return [*found, *desired.problems(), *catalog.problems()]


def of_problem(problem: str) -> Finding:
    """The finding for a file of people that does not parse or validate."""
    way_out = "mend the file; until then the last good version, if any, is in force"
    return Finding("error", "files", problem, way_out)


def records(layout: Layout, *, is_served: bool) -> Iterator[Finding]:
    """Files of `observed/` that are not as the server wrote them.

    While one serves them, files of the last seconds are left to that: it puts them back.
    """
    unread = _unread(layout)
    if unread is not None:
        # Without it every file would look like somebody else's.
        way_out = "see the finding about the databases, then look again"
        yield Finding("error", "records", f"not looked at, {unread}", way_out)
        return
    young = time.time_ns() - int(SETTLED_S * 1e9) if is_served else None
    count, moved = 0, 0
    for kind in KINDS.values():
        try:
            on_disk = files.scan(layout.observed(kind.folder))
        except OSError as error:
            shown = layout.shown(layout.observed(kind.folder))
            yield cut_short("records", f"{shown}: {error.strerror}")
            continue
        count += len(on_disk)
        known = _indexed(layout, kind)
        waiting = _in_journal(layout, kind)
        suspects = 0
        for file, stat in sorted(on_disk.items()):
            name = file.removesuffix(".yaml")
            if known.get(name) == stat or name in waiting:
                continue
            if young is not None and stat.mtime_ns >= young:
                continue
            if name in known and _is_as_indexed(layout, kind, name):
                moved += 1
                continue
            suspects += 1
            if suspects <= ALIKE_MOST:
                yield from _suspect(layout, kind, name, is_known=name in known)
        if suspects > ALIKE_MOST:
            yield _more(layout, kind, suspects - ALIKE_MOST, "are not as the server wrote them")
        gone = [name for name in sorted(known.keys() - waiting) if f"{name}.yaml" not in on_disk]
        yield from _missing(layout, kind, gone)
    also = f"; {moved} of them were copied or touched, what they hold is as it was written"
    yield Finding("ok", "records", f"{count} records looked at{also if moved else ''}")


def left_runs(layout: Layout) -> Iterator[Finding]:
    """Runs that say running though nobody serves the repository, as the caller has found out."""
    ours = _indexed(layout, RUNS).keys() | _in_journal(layout, RUNS)
    runs = [run for run in read_records(layout, RUNS) if run.live and run.name in ours]
    for run in runs[:RUNS_MOST]:
        more = len(runs) - RUNS_MOST
        also = f" (and {more} more)" if more > 0 and run is runs[RUNS_MOST - 1] else ""
        yield Finding(
            "warning",
            "runs",
            f"run {run.name} ({run.spec.workflow}){also} is recorded as running, but nobody serves"
            " this repository",
            "nothing: the next `swamp workflow run` or `swamp serve` ends it"
            if run.spec.own_process
            else "start `swamp serve`: it goes on or ends then",
        )


def leftovers(layout: Layout) -> Iterator[Finding]:
    """Temporary files that a killed process left. They are told, never removed."""
    for path in _left_in(layout):
        shown = layout.shown(path)
        if path.suffix == ".swap":
            yield Finding(
                "warning",
                "leftovers",
                f"{shown} may hold a person's save that a killed process had in its hands",
                "compare it with the files beside it, keep what is missing there, then remove it",
            )
        else:
            yield Finding(
                "warning",
                "leftovers",
                f"{shown} was being written by a process that was killed",
                "remove it: what it was to become is written anew",
            )


def _left_in(layout: Layout) -> list[Path]:
    young_s = time.time() - SETTLED_S
    roots = (layout.datastore, layout.models, layout.workflows, layout.vaults)
    folders = [layout.root, *(Path(found[0]) for root in roots for found in os.walk(root))]
    found = []
    for folder in folders:
        for name in os.listdir(folder):
            path = folder / name
            if _TEMP.fullmatch(name) and path.lstat().st_mtime < young_s:
                found.append(path)
    return sorted(found)


def _suspect(
    layout: Layout, kind: Kind[Any, Any], name: str, *, is_known: bool
) -> Iterator[Finding]:
    path = layout.record_file(kind.folder, name)
    shown = layout.shown(path)
    try:
        record = read_record(kind, path, shown)
    except (InvalidFile, OSError) as error:
        what = str(error) if isinstance(error, InvalidFile) else f"{shown}: {error.strerror}"
        put_back = "nothing: the server puts it back" if is_known else "remove the file"
        yield Finding("warning" if is_known else "error", "records", what, put_back)
        return
    if is_known:
        yield Finding(
            "warning",
            "records",
            f"{shown} was changed by somebody else than the server",
            "nothing: the server puts it back; what people ask for goes into datastore/desired/",
        )
    elif record.live:
        takes_over = "nothing: the next start of `swamp serve` takes it over, it starts no work"
        ends = "nothing: the next start of `swamp serve` ends it; it is never continued"
        yield Finding(
            "warning",
            "orphans",
            f"{shown} says {record.state or 'new'}, but the server did not write it",
            takes_over if kind.folder in STARTS_NO_WORK else ends,
        )


def _is_as_indexed(layout: Layout, kind: Kind[Any, Any], name: str) -> bool:
    """Whether the file holds what the server wrote, whatever its time and place on the disk."""
    path = layout.record_file(kind.folder, name)
    rows = _query(layout.index, f'SELECT document FROM "{kind.folder}" WHERE name = ?', (name,))
    with suppress(OSError, ValueError):
        return any(read_bytes(path) == data_of(path, json.loads(row[0])) for row in rows)
    return False


def _missing(layout: Layout, kind: Kind[Any, Any], names: list[str]) -> Iterator[Finding]:
    """Those of the names that have a row in the index and no file, also at a second look."""
    known = _indexed(layout, kind) if names else {}
    paths = [layout.record_file(kind.folder, name) for name in names if name in known]
    missing = [path for path in paths if not path.exists()]
    way_out = "nothing: the record is in the index, and the server writes the file again"
    for path in missing[:ALIKE_MOST]:
        yield Finding("warning", "records", f"{layout.shown(path)} is missing", way_out)
    if len(missing) > ALIKE_MOST:
        yield _more(layout, kind, len(missing) - ALIKE_MOST, "are missing")


def _more(layout: Layout, kind: Kind[Any, Any], count: int, what: str) -> Finding:
    folder = layout.shown(layout.observed(kind.folder))
    return Finding("warning", "records", f"{count:,} more files of {folder}/ {what}", "as above")


def _indexed(layout: Layout, kind: Kind[Any, Any]) -> dict[str, Stat]:
    query = f'SELECT name, mtime_ns, size, inode FROM "{kind.folder}"'
    rows = _query(layout.index, query)
    return {name: Stat(mtime, size, inode % (1 << 64)) for name, mtime, size, inode in rows}


def _in_journal(layout: Layout, kind: Kind[Any, Any]) -> set[str]:
    query = "SELECT DISTINCT name FROM rows WHERE kind = ?"
    return {name for (name,) in _query(layout.journal, query, (kind.folder,))}


def _unread(layout: Layout) -> str | None:
    """Why index or journal cannot be read just now; None where they can, or are of no use."""
    for path in (layout.index, layout.journal):
        if not path.exists():
            continue
        try:
            with closing(open_to_read(path)) as db:
                db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            if not is_broken(error):
                return f"as {layout.shown(path)} cannot be read: {error}"
    return None


def _query(path: Path, query: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The rows; none where the database cannot be read, which is a finding of its own."""
    try:
        with closing(open_to_read(path)) as db:
            return db.execute(query, parameters).fetchall()
    except sqlite3.Error:
        return []
