"""The paths that file events name: taken as fast as they come, looked at in the pace of who looks.

The watcher holds the interpreter while it hands events out, and what it was not asked for meanwhile
piles up: 50,000 changed files at once would stop everybody for half a second. So somebody always
asks, and what was named waits here, each path once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

from watchfiles import Change, watch

from datastore.unicode_text import is_unicode

Begun = Callable[[], object]

_BEGUN_WITHIN_MS = 200
"""The watcher says that long after its first look that nothing has happened yet."""


class _Over:
    """What the watcher's thread asks whether it should end: an event, for one thread to look at."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self.now = False

    def is_set(self) -> bool:
        return self.now or self._stop.is_set()


def _nameable(folders: Iterable[Path]) -> tuple[Sequence[Path], bool]:
    """What can be watched although something below has a name that is no text.

    Such folders are left out, and the others named one by one; without any, all that is below.
    """
    folders, each, others = tuple(folders), list[Path](), 0
    for root in folders:
        for path, inside, _ in os.walk(root):
            each.append(Path(path))
            good = [name for name in inside if is_unicode(name)]
            others += len(inside) - len(good)
            inside[:] = good
    return (each, False) if others else (folders, True)


def _any_new(batch: Iterable[tuple[Change, str]], listed: Collection[str]) -> bool:
    """Whether a folder was named that is not listed, or was made anew: nobody watches it then."""
    return any(
        (path not in listed or change is Change.added)
        and os.path.isdir(path)
        and not os.path.islink(path)
        for change, path in batch
    )


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
        self._refused = False
        """Whether a watch of all that is below has been refused: one name is enough for that."""
        self._named: dict[str, None] = {}
        self._some = asyncio.Event()

    async def follow(self, stop: asyncio.Event, begun: Begun = lambda: None) -> None:
        """Take events until `stop` is set; `begun` is called on the loop once they are watched for.

        It ends before that when there is a folder that has to be watched and is not: follow again,
        and look at what happened meanwhile once that has begun.

        OSError, RuntimeError or ValueError when there can be none: no more watches are to be had,
        or a name is no text.
        """
        loop, over = asyncio.get_running_loop(), _Over(stop)
        # A thread of its own, as it is kept for good.
        pool = ThreadPoolExecutor(1, thread_name_prefix="file-events")
        try:
            await loop.run_in_executor(pool, self._watch, over, loop.call_soon_threadsafe, begun)
        finally:
            over.now = True
            await asyncio.to_thread(pool.shutdown)

    def _watch(self, over: _Over, told: Callable[[Begun], object], begun: Begun) -> None:
        """In a thread: to make an event of each path takes a microsecond, and there are thousands.

        `told` has something done on the loop.
        """
        folders, below = _nameable(self._folders) if self._refused else (self._folders, self._below)
        listed = frozenset(map(str, folders)) if self._below and not below else None
        has_begun = False
        try:
            for batch in watch(
                *folders,
                watch_filter=None,
                recursive=below,
                debounce=self._debounce_ms,
                step=self._step_ms,
                stop_event=over,
                rust_timeout=_BEGUN_WITHIN_MS,
                yield_on_timeout=True,
                raise_interrupt=False,
            ):
                has_new = listed is not None and _any_new(batch, listed)
                if not has_begun:
                    has_begun = True
                    # Folders that were made between the listing and the watch have no event.
                    has_new = has_new or (listed is not None and self._has_others(listed))
                    told(begun)
                if batch:
                    told(partial(self.add, dict.fromkeys(path for _, path in batch)))
                if has_new:
                    return
        except (ValueError, RuntimeError):
            self._refused = self._below
            raise

    def _has_others(self, listed: Collection[str]) -> bool:
        """Whether there are folders that are not listed."""
        return any(str(path) not in listed for path in _nameable(self._folders)[0])

    def add(self, paths: Iterable[str]) -> None:
        """Take in paths that were named."""
        self._named.update(paths if isinstance(paths, dict) else dict.fromkeys(paths))
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
