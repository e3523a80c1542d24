"""Files that people change while the server runs: noticed at once, and never later than a rescan.

File events are hints: a path is taken from them, its kind of event is not. A rescan by stat runs
every 30 s and after a burst, because events do get lost. All looking happens in threads, a few
files at a time; what changed is handed to the store on the event loop.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Protocol

from datastore.beside_loop import beside_the_loop
from datastore.courtesy import Pause
from datastore.definitions.catalog import Catalog
from datastore.desired import DesiredChange, DesiredTree
from datastore.edit_lines import after_the_end, lines, of_nobody
from datastore.errors import InvalidFile
from datastore.file_events import FileEvents
from datastore.kinds import KINDS
from datastore.layout import Layout, create_folders
from datastore.meter import About, Counter
from datastore.observed import RescanReport
from datastore.put_back_told import PutBackTold
from datastore.store import Store
from datastore.trouble import OF_THE_DISK, Trouble, together
from datastore.watched_folders import WatchedFolders

log = logging.getLogger(__name__)

RESCAN_S = 30.0
BURST = 500
"""Paths of one look. After more of them in a row a rescan follows: events may be missing."""

CHUNK = 50
"""Files looked at before what they ask for takes effect and others get their turn."""

GUARD_S = 1.0
"""How often the watched folders are looked at: one that was replaced is watched no more."""

SETTLE_S = 0.1
"""A file with a problem is looked at once more before that is told: many editors empty it first."""

_DEBOUNCE_MS, _STEP_MS = 40, 20
"""No longer: events that pile up are handed out in one go, with the interpreter held."""
_OBSERVED_DEBOUNCE_MS, _OBSERVED_STEP_MS = 500, 200
"""Files of `observed/` change all day and nobody waits for them: events are taken in lots."""


class Observed(Protocol):
    """What puts edits in `observed/` back. Both methods block."""

    def rescan(self, pause: Pause) -> RescanReport:
        """Look at every file."""

    def look_at(self, paths: Iterable[str], pause: Pause) -> RescanReport:
        """Look at these files."""


class FileWatch:
    """Follows `desired/`, the definitions and `observed/` of an open repository."""

    def __init__(
        self,
        layout: Layout,
        store: Store,
        trees: tuple[DesiredTree, Catalog],
        observed: Observed,
        *,
        events: bool = True,
        rescan_s: float = RESCAN_S,
    ) -> None:
        """Without `events` changes are found by the rescan alone."""
        self._layout = layout
        self._store = store
        self._desired, self._catalog = trees
        self._observed = observed
        self._events = events
        self._rescan_s = rescan_s
        self._rescan_now = asyncio.Event()
        self._problems_changed = asyncio.Event()
        self._told: set[str] = set()
        self._put_back_told = PutBackTold(log)
        self._no_folders = Trouble("folders of the repository cannot be made", log)
        self._no_root = Trouble("the repository's folder cannot be looked at", log)
        self._no_guard = Trouble("folders that are watched cannot be looked at", log)
        self._no_look = Trouble("files of the repository cannot be looked at", log)
        # Of its own: a file that can be looked at says nothing of those that cannot.
        self._no_rescan = Trouble("not all files of the repository can be looked at", log)
        self._no_events = Trouble("file events are not available, the rescan goes on", log)
        self.findings = Counter(
            About(
                "swamp_rescan_findings_total",
                "Files of observed/ that were not as the server had written them.",
                ("verdict",),
            ),
            known=[("put_back",), ("restored",), ("unknown",)],
        )
        self._unknown: set[str] = set()
        people = [layout.models, layout.workflows, *(layout.desired(kind) for kind in KINDS)]
        observed_folders = [layout.observed(kind) for kind in KINDS]
        self._of_people = FileEvents(people, debounce_ms=_DEBOUNCE_MS, step_ms=_STEP_MS)
        self._of_observed = FileEvents(
            observed_folders,
            below=False,
            debounce_ms=_OBSERVED_DEBOUNCE_MS,
            step_ms=_OBSERVED_STEP_MS,
        )
        self._folders = WatchedFolders([*people, *observed_folders])
        self._replaced = asyncio.Event()

    async def run(self) -> None:
        """Follow changes until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._rescan_for_ever())
                group.create_task(self._tell_for_ever())
                group.create_task(self._put_back_told.tell_for_ever())
                group.create_task(self._guard_for_ever())
                if self._events:
                    group.create_task(self._watch_for_ever(self._of_people))
                    group.create_task(self._look_for_ever())
                    group.create_task(self._watch_for_ever(self._of_observed))
                    group.create_task(self._look_at_observed_for_ever())
        finally:
            self._folders.release()

    async def start(self) -> None:
        """The first look, before anything runs."""
        await asyncio.to_thread(self._folders.hold)
        self.apply(await asyncio.to_thread(self._desired.scan), tell=False)
        await asyncio.to_thread(self._load_definitions)
        self._tell_problems()

    def _load_definitions(self) -> None:
        # As for records, see `open_store`: all that is made here stays.
        gc.disable()
        try:
            self._catalog.load()
            self._catalog.keep()
        finally:
            gc.enable()
        gc.freeze()

    # -- events ----------------------------------------------------------------------------------

    async def _watch_for_ever(self, events: FileEvents) -> None:
        while True:
            try:
                await events.follow(self._replaced, self._watch_has_begun)
            except (*OF_THE_DISK, RuntimeError, ValueError) as error:
                self._no_events.found(error)
            await asyncio.sleep(GUARD_S)

    def _watch_has_begun(self) -> None:
        """What happened while nothing was watched is found by a rescan."""
        self._no_events.over()
        self._rescan_now.set()

    async def _look_for_ever(self) -> None:
        looked, later = 0, set[str]()
        while True:
            named = await self._of_people.named(BURST)
            looked += len(named)
            # What may be a folder leads to all the files in it: once after a burst, not each time.
            later.update(path for path in named if not _is_yaml(path))
            with self._no_look.caught():
                await self._look_at([path for path in named if _is_yaml(path)])
            if self._of_people.waiting:
                continue
            with self._no_look.caught():
                await self._look_at(later)
            if looked > BURST:
                self._rescan_now.set()
            looked, later = 0, set()

    async def _look_at(self, named: Collection[str]) -> None:
        if not named:
            return
        desired, definitions = self._sorted(named)
        if definitions:
            await beside_the_loop(partial(self._catalog.refresh, definitions))
        await self._look_at_desired(desired)
        self._problems_changed.set()

    def _sorted(self, named: Collection[str]) -> tuple[list[Path], list[Path]]:
        """The paths below `desired/`, and those of definitions."""
        below = f"{self._layout.desired('')}{os.sep}"
        paths = sorted(named)
        desired = [path for path in paths if path.startswith(below) and _concerns_people(path)]
        # Folders of definitions are called as people like, `team-1.2` say: only a stat tells them.
        others = [path for path in paths if not path.startswith(below) and not _is_hidden(path)]
        return [Path(path) for path in desired], [Path(path) for path in others]

    async def _look_at_desired(self, paths: list[Path]) -> None:
        for first in range(0, len(paths), CHUNK):
            chunk = paths[first : first + CHUNK]
            self.apply(await beside_the_loop(partial(self._desired.refresh, chunk)))

    async def _look_at_observed_for_ever(self) -> None:
        while True:
            named = await self._of_observed.named(BURST)
            paths = [path for path in named if _is_yaml(path)]
            with self._no_look.caught():
                self._tell_put_back(await beside_the_loop(partial(self._observed.look_at, paths)))

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
        """Look at everything by stat; what the disk refuses is left to the next time.

        Nothing is looked at where another folder has the repository's place: it is not ours.
        """
        if not await self._is_ours():
            return
        with self._no_folders.caught():
            await asyncio.to_thread(create_folders, self._layout)
        refused: Exception | None = None
        for look in (self._rescan_desired, self._rescan_definitions, self._rescan_observed):
            try:
                await look()
            except OF_THE_DISK as error:
                # What one of them cannot read hides nothing of what the others can.
                refused = refused or error
        if refused is not None:
            self._no_rescan.found(refused)
        else:
            self._no_rescan.over()
            self._no_look.over()
        self._problems_changed.set()

    async def _rescan_desired(self) -> None:
        await self._look_at_desired(await beside_the_loop(self._desired.changed))

    async def _rescan_definitions(self) -> None:
        await beside_the_loop(self._catalog.scan)
        await beside_the_loop(self._catalog.keep)

    async def _rescan_observed(self) -> None:
        self._tell_put_back(await beside_the_loop(self._observed.rescan))

    async def _guard_for_ever(self) -> None:
        """Make folders that were removed again, and watch those that are others by now."""
        while True:
            await asyncio.sleep(GUARD_S)
            with self._no_guard.caught():
                await self._guard()

    async def _is_ours(self) -> bool:
        with self._no_root.caught():
            return await asyncio.to_thread(self._layout.root_is_here)
        return False

    async def _guard(self) -> None:
        if not await asyncio.to_thread(self._layout.root_is_here):
            return
        replaced = await asyncio.to_thread(self._folders.replaced)
        if not replaced:
            return
        await asyncio.to_thread(create_folders, self._layout)
        await asyncio.to_thread(self._folders.hold)
        shown = [f"{self._layout.shown(path)}/ was removed or replaced" for path in replaced]
        for line in lines(shown, f"{len(shown)} folders were removed or replaced"):
            log.warning("%s; it is watched again", line)
        old, self._replaced = self._replaced, asyncio.Event()
        old.set()
        self._rescan_now.set()

    # -- telling ---------------------------------------------------------------------------------

    def apply(self, changes: Iterable[DesiredChange], *, tell: bool = True) -> None:
        """Hand the desired files that were looked at to the store, as they are by now.

        With `tell` one that would undo what is final is told of: nothing else shows it.
        """
        told = []
        for change in changes:
            file = self._desired.current(change.kind, change.name)
            record = self._store.find(change.kind, change.name) if tell and file else None
            if tell and file is not None:
                path = self._layout.desired(change.kind.folder) / f"{change.name}.yaml"
                shown = self._layout.shown(path)
                if record is not None:
                    told.append(after_the_end(record, file, shown))
                else:
                    told.append(of_nobody(change.kind, change.name, shown))
            self._store.set_desired(change.kind, change.name, file)
        said = [line for line in told if line is not None]
        for line in lines(said, f"{len(said)} files in desired/ change nothing"):
            log.warning("%s", line)

    @property
    def trouble(self) -> str | None:
        """Why folders or files cannot be followed just now; None while all is well."""
        guards = (self._no_root, self._no_folders, self._no_guard)
        found = (*guards, self._no_look, self._no_rescan)
        return together(one.reason for one in found)

    def problems(self) -> list[InvalidFile]:
        """Every file of people that is not in force as it stands."""
        return [*self._desired.problems(), *self._catalog.problems()]

    async def _tell_for_ever(self) -> None:
        while True:
            await self._problems_changed.wait()
            self._problems_changed.clear()
            if any(str(problem) not in self._told for problem in self.problems()):
                await asyncio.sleep(SETTLE_S)
                paths = [self._layout.root / problem.path for problem in self.problems()]
                with self._no_look.caught():
                    await asyncio.to_thread(self._catalog.refresh, paths)
                    await self._look_at_desired(paths)
            self._tell_problems()

    def _tell_problems(self) -> None:
        """One log line for each new problem, none while it stays."""
        now = {str(problem) for problem in self.problems()}
        new = [
            f"{problem} (not in force; the last good version, if any, is)"
            for problem in sorted(now - self._told)
        ]
        for line in lines(new, f"{len(new)} files are not in force"):
            log.warning("%s", line)
        self._told = now

    def _tell_put_back(self, report: RescanReport) -> None:
        new = tuple(path for path in report.unknown if path not in self._unknown)
        self._unknown.update(new)
        self.findings.add("put_back", by=len(report.put_back))
        self.findings.add("restored", by=len(report.restored))
        self.findings.add("unknown", by=len(new))
        self._put_back_told.add(RescanReport(report.put_back, report.restored, new))


def _concerns_people(path: str) -> bool:
    return _is_yaml(path) or _is_misnamed(path) or _may_be_folder(path)


def _is_hidden(path: str) -> bool:
    """Also what editors keep beside a file: nothing in it is read."""
    name = path.rpartition(os.sep)[2]
    return name.startswith(".") or name.endswith("~")


def _is_yaml(path: str) -> bool:
    return path.endswith(".yaml") and not path.rpartition(os.sep)[2].startswith(".")


def _is_misnamed(path: str) -> bool:
    """Such a file is not read, and that has to be told."""
    name = path.rpartition(os.sep)[2]
    return name.lower().endswith((".yml", ".yaml")) and not name.startswith(".")


def _may_be_folder(path: str) -> bool:
    """A folder that comes or goes takes its files along, often without an event for each."""
    name = path.rpartition(os.sep)[2]
    return "." not in name and not name.endswith("~")
