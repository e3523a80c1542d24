"""What executions leave behind: stray processes and scratch folders, cleared off the event loop.

One thread at a time looks through the processes, on behalf of everybody who asked before it looked.
The same thread empties scratch folders, and has one ready for whoever begins next.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from swamp.execute.processes import kill_marked

_READY_MAX = 8
_READY_FOR_S = 5.0
"""Longer than this, a folder made ahead may have been tidied away by the machine."""


class Leftovers:
    """Of all executions of a process; one per event loop. `root` must exist."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._turn = asyncio.Lock()
        self._left: dict[str, str] = {}
        self._full: set[str] = set()
        self._ready: list[tuple[float, str]] = []

    async def new_scratch(self) -> str:
        """A new, empty folder; OSError without one."""
        while self._ready:
            made_at, scratch = self._ready.pop()
            if time.monotonic() - made_at < _READY_FOR_S:
                return scratch
        return await asyncio.to_thread(self._make)

    async def clear(self, mark: str, scratch: str) -> None:
        """Return when no process with the mark is left, nor the folder."""
        self._left[mark] = scratch
        async with self._turn:
            batch, self._left = self._left, {}
            if mark in batch:
                await asyncio.to_thread(self._clear, batch)
        if scratch in self._full:
            self._full.discard(scratch)
            # Not in that turn: a big folder takes long, and others wait for theirs.
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

    def _clear(self, batch: dict[str, str]) -> None:
        kill_marked(batch.keys())
        for scratch in batch.values():
            try:
                os.rmdir(scratch)
            except OSError:
                self._full.add(scratch)
        with suppress(OSError):
            for _ in range(min(len(batch), _READY_MAX - len(self._ready))):
                self._ready.append((time.monotonic(), self._make()))

    def _make(self) -> str:
        return tempfile.mkdtemp(prefix="run-", dir=self._root)
