"""The very folder that a process serves: noticed when it is not at its path any more.

A repository may be moved, removed or replaced below a running server. What is written by path then
builds a second one at the old place, or lands in a folder that is somebody else's by now.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from datastore.errors import RepositoryMoved

_REMOVED = " (deleted)"


class RootFolder:
    """A folder held open: as long as it is, its inode number is not given to another one."""

    def __init__(self, path: Path) -> None:
        """The folder that is at `path` now; OSError without one."""
        self._path = path
        self._handle: int | None = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock: tuple[str, int] | None = None
        """Path and inode of its lock's file, where this process holds that."""
        self.taken = False
        """Whether another process serves it by now."""

    def is_here(self) -> bool:
        """Whether it is at its path; not any more once released, or taken. Blocks for two stats."""
        if self._handle is None or self.taken:
            return False
        try:
            now = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        # Not as noted at the start: a file system may number its folders anew as it likes.
        held = os.fstat(self._handle)
        return (held.st_dev, held.st_ino) == (now.st_dev, now.st_ino)

    def locked_by(self, path: Path, inode: int) -> None:
        """Note the file by which this process holds its lock from now on."""
        self._lock = os.fspath(path), inode

    def is_locked_anew(self) -> bool:
        """Whether another file is where the lock was. Blocks for one stat.

        Not without one: the lock is taken again before another process is let in, or that one's is
        found here.
        """
        if self._lock is None:
            return False
        path, inode = self._lock
        try:
            return os.stat(path).st_ino != inode
        except (FileNotFoundError, NotADirectoryError):
            return False

    def expect(self) -> None:
        """OSError unless it is at its path: nothing may be written there."""
        if not self.is_here():
            raise OSError(errno.ESTALE, "is not the folder that it was", str(self._path))

    def moved(self) -> RepositoryMoved:
        """What to say of one that is not here: where it is, what is at its path, what to do."""
        there = "another folder is there" if self._path.exists() else "nothing is there"
        where = self._where()
        if where is None:
            what, then = "was removed or replaced", "restore it from a backup, and start again"
        else:
            what = f"was moved to {where}"
            then = "start again there: what was under way goes on"
        return RepositoryMoved(
            f"the folder {self._path} {what} while this process used it, {there} now: it stops, and"
            f" writes nothing at that path; {then}"
        )

    def _where(self) -> str | None:
        """Where it is now, if anywhere and if the system tells."""
        try:
            where = os.readlink(f"/proc/self/fd/{self._handle}")
        except OSError:
            return None
        return None if where.endswith(_REMOVED) or where == str(self._path) else where

    def release(self) -> None:
        """Let go of it; nothing happens the second time."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)
