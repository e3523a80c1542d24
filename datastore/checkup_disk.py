"""What is wrong with the disk below a repository: databases, room, permissions, the lock.

As in `checkup`, nothing is written or repaired, and a running server is not in the way.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from datastore.checkup import Finding, Level
from datastore.kinds import KINDS
from datastore.layout import Layout
from datastore.lock import lock_holder
from datastore.regular_file import oddity
from datastore.shut_out import shut_out_of
from datastore.sqlite_file import is_broken, open_to_read, used_bytes, wal_path

SQLITE_VERSION = sqlite3.sqlite_version

_MB = 1 << 20
ROOM_ERROR_BYTES = 20 * _MB
ROOM_WARNING_BYTES = 500 * _MB
ROOM_PART = 10
"""On a small disk it is enough that this part of it is free: 10 for a tenth."""
INODES_WARNING = 10_000
JOURNAL_WARNING_BYTES = 200 * _MB
"""Rows of that size in the journal say that the files have not followed for long."""


def databases(layout: Layout) -> Iterator[Finding]:
    """Whether SQLite finds the journal and the index whole."""
    lost = "restore it from a backup, or move it away and start with what observed/ shows"
    new = (
        "let live runs end, stop the server and remove it: the next start builds it anew from the"
        " files, and ends what is live then, as nobody vouches for it"
    )
    for path, way_out in ((layout.journal, lost), (layout.index, new)):
        shown = layout.shown(path)
        if not path.exists():
            yield Finding("ok", "databases", f"{shown} is not there yet")
            continue
        try:
            trouble, used = _looked_into(path)
        except sqlite3.Error as error:
            later = "see the finding about the disk, then look again; leave the file where it is"
            yield Finding("error", "databases", f"{shown} cannot be looked into: {error}", later)
            continue
        if trouble is not None:
            yield Finding("error", "databases", f"{shown}: {trouble}", way_out)
            continue
        size = _size(path) + _size(wal_path(path))
        level: Level = "ok"
        behind = None
        if path == layout.journal and used > JOURNAL_WARNING_BYTES:
            level, behind = "warning", "see whether the files of datastore/ can be written"
        yield Finding(level, "databases", f"{shown} is whole, {_shown(size)}", behind)


def room(layout: Layout, *, is_served: bool) -> Finding:
    """Free space and inodes. What prunes needs some room itself: that is no advice at the end."""
    found = os.statvfs(layout.root)
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    text = f"{_shown(free)} free of {_shown(size)}"
    if found.f_files:
        text += f", {found.f_favail} inodes free"
    few_inodes = bool(found.f_files) and found.f_favail < INODES_WARNING
    level: Level = "ok"
    if free < _less(ROOM_ERROR_BYTES, size) or (found.f_files and not found.f_favail):
        level = "error"
    elif free < _less(ROOM_WARNING_BYTES, size) or few_inodes:
        level = "warning"
    way_out = "make room, e.g. with `swamp run prune`"
    if level == "error":
        then = "the server goes on by itself then" if is_served else "then start the server again"
        way_out = (
            "remove what is no part of the repository, or take a larger disk: `swamp run prune`"
            f" needs some room itself; {then}"
        )
    return Finding(level, "disk", text, None if level == "ok" else way_out)


def _less(bytes_: int, size: int) -> int:
    """A limit, and on a small disk no more than its part of that."""
    return min(bytes_, size // ROOM_PART)


def permissions(layout: Layout) -> Iterator[Finding]:
    """Whether the server could write, and whether others could read what is private."""
    kinds = [path for kind in KINDS for path in (layout.observed(kind), layout.desired(kind))]
    private = [layout.private, layout.events, layout.logs, layout.data]
    folders = [layout.root, layout.history, *kinds, *private]
    parents = [layout.models, layout.workflows, layout.datastore, layout.desired("")]
    for one in (*parents, *folders):
        if os.path.lexists(one) and not one.is_dir():
            what = f"{layout.shown(one)} is no folder, and has to be one"
            way_out = "move it away: the server makes the folder anew"
            yield Finding("error", "permissions", what, way_out)
    there = [one for one in folders if one.is_dir()]
    closed = [one for one in there if not os.access(one, os.W_OK | os.X_OK)]
    if closed:
        yield Finding(
            "error",
            "permissions",
            f"{_named(layout, closed)} cannot be written: {_why_closed(closed)}",
            "let the user of `swamp serve` write there, or mount it writable; reading works",
        )
    for path in (layout.private, layout.key):
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            mode = "700" if path.is_dir() else "600"
            yield Finding(
                "error" if path == layout.key else "warning",
                "permissions",
                f"{layout.shown(path)} is open to others",
                f"chmod {mode} {layout.shown(path)}",
            )
    if not closed:
        yield Finding("ok", "permissions", f"{len(folders)} folders can be written")


def shut_out(layout: Layout) -> Iterator[Finding]:
    """That nothing can be told of what is in `.swamp/`: this user may not look into it."""
    closed = shut_out_of(layout.private)
    if closed is not None:
        told, way_out = closed
        what = f"{told}: records, databases and the lock are not looked at"
        yield Finding("error", "permissions", what, way_out)


def _named(layout: Layout, folders: list[Path]) -> str:
    """One name for what most often has one cause."""
    first = str(layout.root) if folders[0] == layout.root else layout.shown(folders[0])
    more = len(folders) - 1
    return first if not more else f"{first} and {more} more folder{'s' * (more != 1)}"


def _why_closed(folders: list[Path]) -> str:
    if all(os.statvfs(one).f_flag & os.ST_RDONLY for one in folders):
        return "the file system is mounted read-only"
    return f"their permissions shut out this user (uid {os.geteuid()})"


def is_held(layout: Layout) -> bool:
    """Whether a process holds the repository, also one that does not answer yet or any more.

    Where the lock is no file, or not one that this user may read, nobody can tell: then one may.
    """
    if oddity(layout.lock) is not None or shut_out_of(layout.lock) is not None:
        return True
    holder = lock_holder(layout)
    return holder is not None and holder.held


def lock(layout: Layout, *, answers: bool) -> Iterator[Finding]:
    """Who holds the repository; `answers`: whether somebody does on its socket."""
    closed = shut_out_of(layout.lock)
    if closed is not None:
        told, way_out = closed
        what = f"{told}: nobody can tell who holds the repository"
        yield Finding("error", "lock", what, f"leave it where it is; {way_out}")
        return
    odd = oddity(layout.lock)
    if odd is not None:
        what = f"{layout.shown(layout.lock)} {odd}: nobody can tell who holds the repository"
        way_out = "move it away; a server that runs writes it again within a second"
        yield Finding("error", "lock", what, way_out)
        return
    holder = lock_holder(layout)
    if holder is None or not holder.held:
        before = f"; pid {holder.pid}, which held it, was killed" if holder is not None else ""
        yield Finding("ok", "lock", f"nobody holds the repository{before}")
        if layout.socket.exists() and not answers:
            left = f"{layout.shown(layout.socket)} was left by a server that was killed"
            yield Finding("warning", "lock", left, "nothing: the next start replaces it")
        return
    since = f"{holder.since.astimezone():%Y-%m-%d %H:%M:%S}"
    text = f"held by pid {holder.pid} since {since}: {' '.join(holder.command)}"
    if answers:
        yield Finding("ok", "lock", text)
    else:
        way_out = "wait if it is only starting or stopping, else look at its log and end it"
        if room(layout, is_served=True).level == "error":
            way_out = "make room on the disk: a server that starts waits for that, see its log"
        yield Finding(
            "warning",
            "lock",
            f"{text}; it does not answer on {layout.shown(layout.socket)}",
            way_out,
        )


def _looked_into(path: Path) -> tuple[str | None, int]:
    """What is wrong with the database, and how many bytes its rows need.

    sqlite3.Error where it cannot be told just now.
    """
    try:
        with closing(open_to_read(path)) as db:
            rows = db.execute("PRAGMA integrity_check(5)").fetchall()
            used, _ = used_bytes(db)
    except sqlite3.Error as error:
        if not is_broken(error):
            raise
        return str(error), 0
    found = [str(row[0]) for row in rows]
    return (None if found == ["ok"] else "; ".join(found)), used


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _shown(size: int) -> str:
    """A size for people: `512 KB`, `3.1 MB`, `12.0 GB`."""
    if size < _MB:
        return f"{size // 1024} KB"
    return f"{size / _MB:.1f} MB" if size < 1024 * _MB else f"{size / (1024 * _MB):.1f} GB"
