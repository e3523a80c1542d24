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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType

from datastore.clock import Clock, SystemClock, parse_stamp, stamp
from datastore.errors import DatastoreError, RepositoryLocked, RepositoryTaken
from datastore.layout import Layout
from datastore.regular_file import open_handle, read_bytes
from datastore.root_folder import RootFolder
from datastore.shut_out import owner_of, refuse_if_shut_out
from datastore.sqlite_file import inode_of

_TOLD_MOST = 1_000
"""Characters; the signature stays in the block that the file has, on a full disk as well."""


class RepositoryLock:
    """The right to write a repository's records, held from `acquire` to `release`."""

    def __init__(
        self, layout: Layout, clock: Clock | None = None, *, held_for: str | None = None
    ) -> None:
        """`held_for`: what it is for, if not for a server: "run r of workflow 'w'"."""
        self.layout = layout
        self._clock = clock or SystemClock()
        self._held_for = held_for
        self._waits_for: str | None = None
        self._descriptor: int | None = None
        self._root: RootFolder | None = None
        self._since: datetime | None = None
        self._found = (0, b"")
        """When its file was last written before this process signed it, and what it told."""
        self.last_held: datetime | None = None
        """What its file tells of when somebody held it before; None where it is new."""

    def acquire(self) -> RepositoryLock:
        """Take the lock or raise RepositoryLocked, naming the holder; never waits.

        From then on `layout` knows the very folder.
        """
        root, descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0)
            os.close(descriptor)
            if root is not self._root:
                root.release()
            raise RepositoryLocked(_refusal(holder)) from None
        self._descriptor, self._root = descriptor, root
        self.layout = replace(self.layout, held=root)
        found = os.fstat(descriptor)
        root.locked_by(self.layout.lock, found.st_ino)
        self._found = (found.st_mtime_ns, os.pread(descriptor, 4096, 0))
        self.last_held = datetime.fromtimestamp(found.st_mtime, UTC) if found.st_size else None
        # A file that replaces a removed one tells since when this process has held the lock.
        self._since = self._since or self._clock.now()
        self._sign(descriptor, self._since)
        return self

    def waits_for(self, what: str | None) -> None:
        """Say why the holder answers nobody yet, until None is said. Blocking."""
        self._waits_for = what
        if self._descriptor is not None:
            self._sign(self._descriptor, self._since or self._clock.now())

    def _open(self) -> tuple[RootFolder, int]:
        lock = self.layout.lock
        root = self._root
        try:
            root = root or RootFolder(self.layout.root)
            root.expect()
            # Not the root: where that has gone, nobody builds another one in its place.
            lock.parent.mkdir(mode=0o700, exist_ok=True)
            return root, open_handle(lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            if root is not None and root is not self._root:
                root.release()
            refuse_if_shut_out(self.layout)
            whose = ""
            if isinstance(error, PermissionError):
                whose = f", which belong to {owner_of(lock.parent)}"
            raise DatastoreError(
                f"this repository cannot be written ({lock}: {error.strerror}): whoever serves it"
                f" has to write its records{whose}; commands that only read work all the same"
            ) from None

    def renew(self) -> bool:
        """Hold the lock by a new file where the old one was removed; whether that was so.

        RepositoryTaken when another process was faster, also where that has ended since: nothing
        may be written from then on, and this one has to end. DatastoreError where the root is
        another folder by now: the lock of the one that was served is still held.
        """
        assert self._descriptor is not None, "renew follows acquire"
        if inode_of(self.layout.lock) == os.fstat(self._descriptor).st_ino:
            return False
        old, self._descriptor = self._descriptor, None
        ours = (os.fstat(old).st_mtime_ns, os.pread(old, 4096, 0))
        try:
            self.acquire()
        except RepositoryLocked as error:
            raise self._taken("another has taken it", f"; {error}") from None
        finally:
            if self._descriptor is None:
                self._descriptor = old
            else:
                os.close(old)
        if self._was_anothers(ours):
            raise self._taken("another held it meanwhile", ": start again, with what it has left")
        return True

    def _was_anothers(self, ours: tuple[int, bytes]) -> bool:
        """Whether somebody held the file that was found after this process had signed its own.

        Not if it is empty, or a copy of ours or of what was there before (a backup).
        """
        written_ns, told = self._found
        return bool(told) and told != ours[1] and written_ns >= ours[0]

    def _taken(self, how: str, then: str) -> RepositoryTaken:
        """The error of one that has to end, and may write nothing from now on."""
        if self._root is not None:
            self._root.taken = True
        return RepositoryTaken(
            f"{self.layout.lock} was removed while this process held it, and {how}: this one stops,"
            f" and writes nothing more{then}"
        )

    def release(self) -> None:
        """Give the lock up; nothing happens when it is not held."""
        if self._descriptor is not None:
            # The file stays: removing it would let two processes lock two different inodes.
            with suppress(OSError):
                # Its block stays as well, so that the next holder can sign on a full disk.
                size = os.fstat(self._descriptor).st_size
                os.pwrite(self._descriptor, b"\n".rjust(size), 0)
            os.close(self._descriptor)
            self._descriptor = self._since = None
        if self._root is not None:
            self._root.release()
            self._root = None

    def _sign(self, descriptor: int, since: datetime) -> None:
        holder = {"pid": os.getpid(), "since": stamp(since), "command": sys.argv}
        if self._held_for is not None:
            holder["heldFor"] = self._held_for
        if self._waits_for is not None:
            holder["waitsFor"] = self._waits_for[:_TOLD_MOST]
        # Who holds it is a courtesy: a full disk must not keep the lock from being held.
        with suppress(OSError):
            signature = json.dumps(holder).encode() + b"\n"
            os.pwrite(descriptor, signature, 0)
            os.ftruncate(descriptor, len(signature))

    def __enter__(self) -> RepositoryLock:
        return self if self._descriptor is not None else self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class Holder:
    """Who signed the lock, and whether it is held now."""

    pid: int
    since: datetime
    command: tuple[str, ...]
    held: bool


def lock_holder(layout: Layout) -> Holder | None:
    """Who holds the lock, or held it when it was killed; None if nobody does. Takes no lock."""
    try:
        found = json.loads(read_bytes(layout.lock))
        command = tuple(str(word) for word in found.get("command", ()))
        pid = int(found["pid"])
        return Holder(pid, parse_stamp(found["since"]), command, _is_alive(pid))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_alive(pid: int) -> bool:
    """The lock itself is not tried: even for an instant that could refuse a server's start."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _refusal(holder: bytes) -> str:
    held_for = waits_for = None
    try:
        found = json.loads(holder)
        since = parse_stamp(found["since"]).astimezone()
        who = f"pid {int(found['pid'])} (since {_since(since)})"
        held_for, waits_for = found.get("heldFor"), found.get("waitsFor")
    except (ValueError, KeyError, TypeError):
        who = "another process"
    if isinstance(held_for, str):
        return f"this repository is held by {held_for}, {who}: wait for its end, or stop it first"
    if isinstance(waits_for, str):
        return f"this repository is held by a server that has not started yet, {who}: {waits_for}"
    return (
        f"this repository is served by {who}; stop it first, "
        "or talk to it with --server <its address>"
    )


def _since(moment: datetime) -> str:
    """The time of day, with the date unless it is today."""
    today = datetime.now(moment.tzinfo).date() == moment.date()
    return f"{moment:%H:%M:%S}" if today else f"{moment:%Y-%m-%d %H:%M:%S}"
