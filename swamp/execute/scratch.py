"""The folder of one process's scratch folders, and the end of what dead processes left in theirs.

Promises: as long as a process lives it holds a lock on its folder, and the folder's name tells the
family of its marks. So whoever gets the lock of another one's folder knows that its owner is dead,
even together with its guard, and whose processes are still there. What lives is never touched.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from swamp.execute.processes import kill_descendants

_NAME = re.compile(r"scratch-([0-9a-f]{32})\Z")


@dataclass(frozen=True, slots=True)
class Scratch:
    """`folder` is this process's alone; what it executes there has marks of `family`."""

    folder: Path
    family: str
    killed: int
    """Processes of dead owners that were still running."""
    _lock: int

    def remove(self) -> None:
        """Remove the folder with all that is in it, and give the lock up. Blocks."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def take_scratch(root: Path) -> Scratch:
    """A new folder below `root`, once nothing of dead owners is left there; OSError. Blocks."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    family = uuid.uuid4().hex
    folder = root / f"scratch-{family}"
    with _turn(root):
        dead = _dead(root)
        try:
            folder.mkdir(mode=0o700)
            lock = _open(folder)
        except OSError:
            # What they left may be what fills the disk, and their locks are open files.
            _end(dead)
            raise
        _locked(lock)
    return Scratch(folder, family, _end(dead), lock)


@contextmanager
def _turn(root: Path) -> Iterator[None]:
    """One process at a time: a folder that is made but not locked yet looks like a dead one's."""
    turn = _open(root)
    try:
        # Where there are no locks nobody gets one, and so nobody is taken for dead.
        with suppress(OSError):
            fcntl.flock(turn, fcntl.LOCK_EX)
        yield
    finally:
        os.close(turn)


def _dead(root: Path) -> dict[Path, int]:
    """The folders whose owner is dead, with the lock that proves it."""
    found = {}
    for path in root.iterdir():
        if _NAME.match(path.name):
            with suppress(OSError):
                lock = _open(path)
                if _locked(lock):
                    found[path] = lock
                else:
                    os.close(lock)
    return found


def _end(dead: dict[Path, int]) -> int:
    """Kill what the dead have left running and remove their folders; how many were killed."""
    if not dead:
        return 0
    killed = kill_descendants(*(path.name.partition("-")[2] for path in dead))
    for path, lock in dead.items():
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
    return killed


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _locked(folder: int) -> bool:
    """Lock it unless somebody holds it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
