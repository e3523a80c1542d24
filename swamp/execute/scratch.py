"""The folder of one process's scratch folders, and the end of what dead processes left in theirs.

Promises: as long as a process lives it holds a lock on its folder, and the folder's name tells the
family of its marks. So whoever gets the lock of another one's folder knows that its owner is dead,
even together with its guard, and whose processes are still there. What lives is never touched.

Nobody holds a lock on a copy (`cp -a` of a repository or a cache folder that is in use), whose
owner may live: so a folder also says which one it is, and only the one that was made proves
anything. A copy is removed, and nothing is ended for it. Device numbers may change with a reboot or
a new mount: then it counts as a copy, too, and what ran in it has ended with the machine, or would
have kept the file system from being unmounted.
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
from typing import NamedTuple

from swamp.execute.processes import kill_descendants
from swamp.execute.removal import remove_tree

IDENTITY = "made-as"
"""The file in a folder that says which one it was made as: device and inode."""

_NAME = re.compile(r"scratch-([0-9a-f]{32})\Z")
_REMOVED = "removed-"
"""What a folder's name begins with at the very end."""


class Ended(NamedTuple):
    """What was left by others: processes that were killed, and folders that proved nothing."""

    killed: int
    copies: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """`folder` is this process's alone; what it executes there has marks of `family`."""

    folder: Path
    family: str
    killed: int
    """Processes of dead owners that were still running."""
    copies: int
    """Folders that were removed and are not the ones that were made: for them nothing is ended."""
    _lock: int

    @property
    def warning(self) -> str | None:
        """What is to be told of copies; None where there were none."""
        if not self.copies:
            return None
        what = "a scratch folder" if self.copies == 1 else f"{self.copies} scratch folders"
        return (
            f"removed {what} in {self.folder.parent} of which nobody can tell whether what ran"
            " there is over (copied from elsewhere, or from before this disk was mounted anew):"
            " no process was ended for that"
        )

    def remove(self) -> None:
        """Remove the folder with all that is in it, and give the lock up. Blocks."""
        _remove(self.folder)
        os.close(self._lock)


def take_scratch(root: Path) -> Scratch:
    """A new folder below `root`, once nothing of dead owners is left there; OSError. Blocks."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    family = uuid.uuid4().hex
    folder = root / f"scratch-{family}"
    with _turn(root):
        dead = _dead(root)
        try:
            lock = _make(folder)
        except OSError:
            # What they left may be what fills the disk, and their locks are open files.
            _end(dead)
            raise
    ended = _end(dead)
    return Scratch(folder, family, ended.killed, ended.copies, lock)


def _make(folder: Path) -> int:
    """The folder, which says which one it is, and its lock; OSError, and then it is not there."""
    folder.mkdir(mode=0o700)
    lock = _open(folder)
    try:
        _locked(lock)
        _say_which(lock)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        raise
    return lock


def _say_which(folder: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    file = os.open(IDENTITY, flags, 0o600, dir_fd=folder)
    try:
        os.write(file, _identity(folder).encode())
    finally:
        os.close(file)


def _identity(folder: int) -> str:
    found = os.fstat(folder)
    return f"{found.st_dev}:{found.st_ino}\n"


def _is_as_made(path: Path, folder: int) -> bool:
    """Whether it is the folder that its owner locked. One that does not say counts as that one:
    an earlier version made it. What says nothing clear proves nothing."""
    try:
        return (path / IDENTITY).read_text() == _identity(folder)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


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
    for path in list(root.iterdir()):
        own_name = path.name.removeprefix(_REMOVED)
        if _NAME.match(own_name) and own_name != path.name:
            remove_tree(path)
        elif _NAME.match(path.name):
            with suppress(OSError):
                lock = _open(path)
                if _locked(lock):
                    found[path] = lock
                else:
                    os.close(lock)
    return found


def _end(dead: dict[Path, int]) -> Ended:
    """Kill what the dead have left running and remove their folders, and those that are copies."""
    made = [path for path, lock in dead.items() if _is_as_made(path, lock)]
    families = [path.name.partition("-")[2] for path in made]
    killed = kill_descendants(*families) if families else 0
    for path, lock in dead.items():
        _remove(path)
        os.close(lock)
    return Ended(killed, len(dead) - len(made))


def _remove(folder: Path) -> None:
    """Remove it, and last of all the file that says which one it is.

    Without that, what is left of a copy, or a removal that is cut short leaves, would be a proof.
    """
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            elif entry.name != IDENTITY:
                with suppress(OSError):
                    os.unlink(entry)
        if set(os.listdir(folder)) <= {IDENTITY}:
            # By that name nobody takes it for one that ran something, whatever becomes of it.
            remove_tree(folder.rename(folder.with_name(f"{_REMOVED}{folder.name}")))


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _locked(folder: int) -> bool:
    """Lock it unless somebody holds it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
