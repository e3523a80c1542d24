"""The paths that file events name: taken as fast as they come, looked at in the pace of who looks.

The watcher holds the interpreter while it hands events out, and what it was not asked for meanwhile
piles up: 50,000 changed files at once would stop everybody for half a second. So somebody always
asks, and what was named waits here, each path once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from watchfiles import awatch


class FileEvents:
    """Events of some folders, whatever happened to whichever path."""

    def __init__(
        self, folders: Iterable[Path], *, below: bool = True, debounce_ms: int, step_ms: int
    ) -> None:
        """Events are taken once none came for `step_ms`, or the first is `debounce_ms` old.

        With `below` those of all folders inside count, too: every file is looked at when `follow`
        begins, with the interpreter held, as each might be one. Not for 200,000 files.
        """
        self._folders = tuple(folders)
        self._below = below
        self._debounce_ms = debounce_ms
        self._step_ms = step_ms
        self._named: dict[str, None] = {}
        self._some = asyncio.Event()

    async def follow(self, stop: asyncio.Event) -> None:
        """Take events until `stop` is set; OSError or RuntimeError when there can be none."""
        async for batch in awatch(
            *self._folders,
            watch_filter=None,
            recursive=self._below,
            debounce=self._debounce_ms,
            step=self._step_ms,
            stop_event=stop,
        ):
            self.add(path for _, path in batch)

    def add(self, paths: Iterable[str]) -> None:
        """Take in paths that were named."""
        self._named.update(dict.fromkeys(paths))
        if self._named:
            self._some.set()

    @property
    def waiting(self) -> bool:
        """Whether there are paths that nobody has taken yet."""
        return bool(self._named)

    async def named(self, most: int) -> list[str]:
        """The paths that wait longest, so many at most; waits for the first."""
        await self._some.wait()
        taken = list(islice(self._named, most))
        for path in taken:
            del self._named[path]
        if not self._named:
            self._some.clear()
        return taken
