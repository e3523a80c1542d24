"""What executions leave behind: stray processes and scratch folders, cleared off the event loop.

One thread at a time looks through the processes, on behalf of everybody who asked before it looked.
The same thread removes scratch folders; others have some ready for whoever begins next.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swamp.execute.processes import Birth, kill_marked

_READY_MAX = 8
_READY_FOR_S = 5.0
"""Longer than this, a folder made ahead may have been tidied away by the machine."""


@dataclass(frozen=True, slots=True)
class _Left:
    scratch: str
    child: Birth | None


class Leftovers:
    """Of all executions of a process; one per event loop. `root` must exist."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._turn = asyncio.Lock()
        self._left: dict[str, _Left] = {}
        self._full: set[str] = set()
        self._ready: list[tuple[float, str]] = []

    async def new_scratch(self) -> str:
        """A new, empty folder; OSError without one."""
        while self._ready:
            made_at, scratch = self._ready.pop()
            if time.monotonic() - made_at < _READY_FOR_S:
                return scratch
        return await asyncio.to_thread(self._make)

    async def clear(self, mark: str, scratch: str, child: Birth | None) -> None:
        """Return when no process with the mark is left, nor the folder.

        `child` is the first process that had the mark; None if there was none.
        """
        self._left[mark] = _Left(scratch, child)
        async with self._turn:
            batch, self._left = self._left, {}
            if mark in batch:
                await asyncio.to_thread(self._clear, batch)
                self._make_ahead(len(batch))
        if scratch in self._full:
            self._full.discard(scratch)
            # Not in that turn: a big folder takes long, and others wait for theirs.
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

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
                made = tempfile.mkdtemp(prefix="run-", dir=self._root)
                self._ready.append((time.monotonic(), made))

    def _make(self) -> str:
        try:
            return tempfile.mkdtemp(prefix="run-", dir=self._root)
        except FileNotFoundError:
            # Somebody tidied it away. Its name must not come again: without the lock of its owner
            # it would look like the folder of a dead process (`swamp.execute.scratch`).
            self._root.parent.mkdir(parents=True, exist_ok=True)
            self._root = Path(tempfile.mkdtemp(prefix="scratch-again-", dir=self._root.parent))
            return tempfile.mkdtemp(prefix="run-", dir=self._root)
