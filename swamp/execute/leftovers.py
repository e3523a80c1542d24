"""What executions leave behind: stray processes and scratch folders, cleared off the event loop.

Most leave neither, and that is told at once: nobody was born since who could be one of theirs, and
the folder is as it was made. The next execution gets it.

For the others one thread at a time looks through the processes, on behalf of everybody who asked
before it looked. The same thread removes scratch folders; others have some ready for whoever begins
next.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swamp.execute.processes import Birth, kill_marked
from swamp.execute.removal import remove_tree

_READY_MAX = 8
_READY_FOR_S = 5.0
"""Longer than this, a folder made ahead may have been tidied away by the machine."""

_USED_FOR_S = 60.0
"""An older one is not used again, before anybody takes it for forgotten."""

Look = tuple[int, int, int, int]
"""What every change of a folder, or in it, changes: inode, mode, ctime in ns, links."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """An empty folder for one execution."""

    path: str
    made_at_s: float
    look: Look

    @classmethod
    def make(cls, root: Path) -> Scratch:
        """A new one below `root`; OSError. Blocks."""
        path = tempfile.mkdtemp(prefix="run-", dir=root)
        return cls(path, time.monotonic(), _look(path))

    def untouched(self) -> bool:
        """Whether it is as it was made."""
        try:
            # Where the time of a file system is coarse, a file may have come and changed nothing.
            return _look(self.path) == self.look and _is_empty(self.path)
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class _Left:
    scratch: str
    child: Birth | None


class Leftovers:
    """Of all executions of a process; one per event loop. `root` must exist."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._turn = asyncio.Lock()
        self._children: set[int] = set()
        self._left: dict[str, _Left] = {}
        self._full: set[str] = set()
        self._ready: list[tuple[float, Scratch]] = []

    async def new_scratch(self) -> Scratch:
        """A new, empty folder; OSError without one."""
        while self._ready:
            ready_at_s, scratch = self._ready.pop()
            if time.monotonic() - ready_at_s < _READY_FOR_S:
                return scratch
        return await asyncio.to_thread(self._make)

    def born(self, child: Birth) -> None:
        """The first process of an execution."""
        self._children.add(child.pid)

    async def clear(self, mark: str, scratch: Scratch, child: Birth | None) -> None:
        """Return when no process with the mark is left, nor anything in the folder.

        `child` is the first process that had the mark; None if there was none.
        """
        if child is not None:
            self._children.discard(child.pid)
        if (child is None or child.nobody_after(self._children)) and scratch.untouched():
            self._use_again(scratch)
            return
        self._left[mark] = _Left(scratch.path, child)
        async with self._turn:
            batch, self._left = self._left, {}
            if mark in batch:
                await asyncio.to_thread(self._clear, batch)
                self._make_ahead(len(batch))
        if scratch.path in self._full:
            self._full.discard(scratch.path)
            # Not in that turn: a big folder takes long, and others wait for theirs.
            await asyncio.to_thread(remove_tree, scratch.path)

    def _use_again(self, scratch: Scratch) -> None:
        now_s = time.monotonic()
        if now_s - scratch.made_at_s < _USED_FOR_S and len(self._ready) < _READY_MAX:
            self._ready.append((now_s, scratch))
        else:
            asyncio.get_running_loop().run_in_executor(None, _remove, scratch.path)

    def _clear(self, batch: dict[str, _Left]) -> None:
        births = [left.child for left in batch.values() if left.child is not None]
        if births:
            kill_marked(batch.keys(), min(births, key=lambda birth: birth.at_s))
        for left in batch.values():
            try:
                os.rmdir(left.scratch)
            except OSError:
                self._full.add(left.scratch)

    def _make_ahead(self, count: int) -> None:
        """Have folders ready for whoever comes next; nobody waits for that."""
        missing = min(count, _READY_MAX - len(self._ready))
        if missing > 0:
            asyncio.get_running_loop().run_in_executor(None, self._make_ready, missing)

    def _make_ready(self, count: int) -> None:
        # One that cannot be made now is made, or told of, when it is needed.
        with suppress(OSError):
            for _ in range(count):
                self._ready.append((time.monotonic(), Scratch.make(self._root)))

    def _make(self) -> Scratch:
        try:
            return Scratch.make(self._root)
        except FileNotFoundError:
            # Somebody tidied it away. Its name must not come again: without the lock of its owner
            # it would look like the folder of a dead process (`swamp.execute.scratch`).
            self._root.parent.mkdir(parents=True, exist_ok=True)
            self._root = Path(tempfile.mkdtemp(prefix="scratch-again-", dir=self._root.parent))
            return Scratch.make(self._root)


def _look(path: str) -> Look:
    found = os.lstat(path)
    return found.st_ino, found.st_mode, found.st_ctime_ns, found.st_nlink


def _is_empty(path: str) -> bool:
    with os.scandir(path) as entries:
        return next(entries, None) is None


def _remove(path: str) -> None:
    with suppress(OSError):
        os.rmdir(path)
