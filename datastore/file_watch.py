"""Files that people change while the server runs: noticed at once, and never later than a rescan.

File events are hints: a path is taken from them, its kind of event is not. A rescan by stat runs
every 30 s and after a burst, because events do get lost. All looking happens in threads; what
changed is handed to the store on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path

from watchfiles import Change, awatch

from datastore.definitions.catalog import Catalog
from datastore.desired import DesiredChange, DesiredTree
from datastore.errors import InvalidFile
from datastore.kinds import KINDS
from datastore.layout import Layout, create_folders
from datastore.store import Store

log = logging.getLogger(__name__)

RESCAN_S = 30.0
BURST = 500
"""After so many changed paths at once a rescan follows: some of the events may be missing."""

_DEBOUNCE_MS = 50
_STEP_MS = 10


class FileWatch:
    """Follows `desired/`, the definitions and `observed/` of an open repository."""

    def __init__(
        self,
        layout: Layout,
        store: Store,
        trees: tuple[DesiredTree, Catalog],
        rescan_observed: Callable[[], object],
        *,
        events: bool = True,
        rescan_s: float = RESCAN_S,
    ) -> None:
        """Without `events` changes are found by the rescan alone."""
        self._layout = layout
        self._store = store
        self._desired, self._catalog = trees
        self._rescan_observed = rescan_observed
        self._events = events
        self._rescan_s = rescan_s
        self._rescan_now = asyncio.Event()
        self._told: set[str] = set()

    async def run(self) -> None:
        """Follow changes until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rescan_for_ever())
            if self._events:
                group.create_task(self._watch_for_ever())

    async def start(self) -> None:
        """The first look, before anything runs."""
        self._apply(await asyncio.to_thread(self._desired.scan))
        await asyncio.to_thread(self._catalog.scan)
        self._tell_problems()

    def apply(self, changes: Iterable[DesiredChange]) -> None:
        """Hand desired files that were looked at elsewhere to the store."""
        self._apply(changes)

    # -- events ----------------------------------------------------------------------------------

    async def _watch_for_ever(self) -> None:
        while True:
            try:
                async for batch in self._batches():
                    await self._look_at({Path(path) for _, path in batch})
            except (OSError, RuntimeError) as error:
                log.warning("file events are not available, the rescan goes on: %s", error)
            # A watched folder vanished, or the watch failed: what happened meanwhile is rescanned.
            self._rescan_now.set()
            await asyncio.sleep(1.0)

    def _batches(self) -> AsyncGenerator[set[tuple[Change, str]], None]:
        folders = [self._layout.desired(kind) for kind in KINDS]
        return awatch(
            *folders,
            self._layout.models,
            self._layout.workflows,
            watch_filter=lambda _, path: _is_ours(path),
            debounce=_DEBOUNCE_MS,
            step=_STEP_MS,
        )

    async def _look_at(self, paths: set[Path]) -> None:
        if len(paths) > BURST:
            self._rescan_now.set()
        roots = self._layout.models, self._layout.workflows
        definitions = [path for path in paths if any(path.is_relative_to(root) for root in roots)]
        if definitions:
            await asyncio.to_thread(self._catalog.refresh, definitions)
        self._apply(await asyncio.to_thread(self._desired.refresh, paths))
        self._tell_problems()

    # -- rescans ---------------------------------------------------------------------------------

    async def _rescan_for_ever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._rescan_s):
                    await self._rescan_now.wait()
            except TimeoutError:
                pass
            self._rescan_now.clear()
            await self.rescan()

    async def rescan(self) -> None:
        """Look at everything by stat."""
        await asyncio.to_thread(create_folders, self._layout)
        self._apply(await asyncio.to_thread(self._desired.scan))
        await asyncio.to_thread(self._catalog.scan)
        await asyncio.to_thread(self._rescan_observed)
        self._tell_problems()

    # -- telling ---------------------------------------------------------------------------------

    def _apply(self, changes: Iterable[DesiredChange]) -> None:
        for change in changes:
            self._store.set_desired(change.kind, change.name, change.file)

    def problems(self) -> list[InvalidFile]:
        """Every file of people that is not in force as it stands."""
        return [*self._desired.problems(), *self._catalog.problems()]

    def _tell_problems(self) -> None:
        """One log line for each new problem, none while it stays."""
        now = {str(problem) for problem in self.problems()}
        for problem in sorted(now - self._told):
            log.warning("%s (not in force; the last good version, if any, is)", problem)
        self._told = now


def _is_ours(path: str) -> bool:
    name = Path(path).name
    return name.endswith(".yaml") and not name.startswith(".")
