"""Workflows and models by the name (or id) inside their files, whatever the files are called.

Memory answers hits and misses: `workflow`, `model` and the lists never touch the disk or wait for
anybody, and may be called on the event loop. `scan`, `refresh` and `fresh` look at the disk and
belong in a thread; any number of them may run at once. A file is parsed when its bytes change.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from typing import Literal, cast, overload

from datastore.clock import Clock, SystemClock
from datastore.courtesy import Pause, no_pause
from datastore.definition_index import ROWS_MOST, DefinitionIndex
from datastore.definitions.definition_file import (
    MEANING,
    Definition,
    DefinitionFile,
    Kind,
    look,
)
from datastore.definitions.model import ModelDefinition
from datastore.definitions.view import View
from datastore.definitions.workflow import Workflow
from datastore.errors import NO_UTF8_NAME, InvalidFile
from datastore.files import Edition, edition_in, opened
from datastore.index import DefinitionRow
from datastore.unicode_text import is_unicode

FOLDERS: dict[Kind, str] = {"workflow": "workflows", "model": "models"}
_KINDS: dict[str, Kind] = {folder: kind for kind, folder in FOLDERS.items()}

CHUNK = 50
"""Files looked at before what changed in them takes effect. Of so few, the change is one."""

PARTS_MOST = 500
"""Definitions and steps parsed since the last time that stay as they were parsed."""

_OF_A_FILE, _OF_A_PART = 8, 40
"""Objects that are made for a file, and for a definition or a step that has just been parsed."""

_LINKED = (
    "is a link to a folder, and those are not followed: move the folder here, or link its files"
)

_NONE = Edition(0, 0, 0)
"""Of no file: what the index has is of no use."""


class Catalog:
    """The definitions of the repository at `root`. Empty until the first `scan`."""

    def __init__(
        self, root: Path, *, clock: Clock | None = None, index: DefinitionIndex | None = None
    ) -> None:
        """`clock` must agree with the one that stamps files: it tells which stats to trust.

        With an `index` what was parsed is kept there for the next start.
        """
        self._root = root
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._views: dict[Kind, View] = {kind: View(kind) for kind in FOLDERS}
        self._index = index
        self._kept: dict[str, Edition] = {}
        """By path what the index has."""
        self._folder_problems: dict[Kind, tuple[InvalidFile, ...]] = {}
        self._parts = 0
        """Definitions, and their steps, that were parsed since they were last kept."""

    # -- memory ----------------------------------------------------------------------------------

    def workflow(self, name_or_id: str) -> Workflow:
        """The workflow in force; NotFound with what may have been meant."""
        return cast(Workflow, self._views["workflow"].get(name_or_id))

    def model(self, name_or_id: str) -> ModelDefinition:
        """The model in force; NotFound with what may have been meant."""
        return cast(ModelDefinition, self._views["model"].get(name_or_id))

    def workflows(self) -> list[Workflow]:
        """All workflows in force, by name."""
        return cast(list[Workflow], self._views["workflow"].all())

    def models(self) -> list[ModelDefinition]:
        """All models in force, by name."""
        return cast(list[ModelDefinition], self._views["model"].all())

    def newer_refused(self, kind: Kind, name_or_id: str) -> InvalidFile | None:
        """Why the file of a definition in force is not in force as it stands by now; None if it is.

        An earlier version of it is in force then.
        """
        found = self._views[kind].find(name_or_id)
        return None if found is None else self._views[kind].problem(found.path)

    @property
    def objects(self) -> int:
        """Of about how many objects all of it is made, at most."""
        files = sum(len(view.files) for view in self._views.values())
        return _OF_A_FILE * files + _OF_A_PART * self._parts

    def problems(self) -> list[InvalidFile]:
        """Every file that is not in force as it stands, by path."""
        found = [problem for view in self._views.values() for problem in view.problems()]
        # A folder that is called as a file should be is found both ways.
        told = {problem.path for problem in found}
        in_folders = (problem for some in self._folder_problems.values() for problem in some)
        found += [problem for problem in in_folders if problem.path not in told]
        return sorted(found, key=lambda problem: problem.path)

    # -- disk ------------------------------------------------------------------------------------

    def scan(self, pause: Pause = no_pause) -> None:
        """Bring memory up to date with every file: stat all, read what changed."""
        for kind in FOLDERS:
            self._sweep(kind, pause)

    def load(self) -> None:
        """The first scan: of files that the index knows with this very stat, none is parsed.

        Nothing else may look at files before it has returned.
        """
        rows = {row.path: row for row in self._index.rows()} if self._index is not None else {}
        self._kept = {
            path: row.stat if row.meaning == MEANING else _NONE for path, row in rows.items()
        }
        for kind, folder in FOLDERS.items():
            problems: list[InvalidFile] = []
            files: dict[str, DefinitionFile] = {}
            for path, stat in self._listed(folder, problems, no_pause):
                if stat is not None and self._kept.get(path) == stat:
                    files[path] = DefinitionFile.kept(kind, rows[path])
                elif (file := self._look(kind, path, None)) is not None:
                    files[path] = file
            self._folder_problems[kind] = tuple(problems)
            self._views[kind].begin(files)
            self._parts += sum(file.claim.parts for file in files.values() if file.claim)

    def keep(self, pause: Pause = no_pause) -> None:
        """Have the index know what was parsed since. For a thread, one at a time.

        Where that is much, it is parsed once more when somebody asks for it: what a crowd of files
        says would take ten times the memory, and a collection of garbage would go through it.
        """
        if self._index is None:
            return
        parsed, all_noted = self._parts, True
        files: dict[str, DefinitionFile] = {}
        for view in self._views.values():
            files |= view.files
        puts: list[DefinitionRow] = []
        removals = [path for path in self._kept if path not in files]
        for path, file in files.items():
            pause()
            if self._kept.get(path) != file.stat and (row := file.to_keep(path)) is not None:
                puts.append(row)
            if len(puts) == ROWS_MOST:
                all_noted &= self._note(puts, removals, files if parsed > PARTS_MOST else {})
                puts, removals = [], []
        if puts or removals:
            all_noted &= self._note(puts, removals, files if parsed > PARTS_MOST else {})
        if all_noted:
            with self._lock:
                self._parts -= parsed

    def _note(
        self,
        puts: list[DefinitionRow],
        removals: list[str],
        to_put_away: Mapping[str, DefinitionFile],
    ) -> bool:
        assert self._index is not None
        if not self._index.update(puts, removals):
            return False
        self._kept.update((row.path, row.stat) for row in puts)
        for path in removals:
            del self._kept[path]
        for row in puts:
            file = to_put_away.get(row.path)
            if file is not None and file.claim is not None:
                file.claim.put_away(row)
        return True

    def refresh(self, paths: Iterable[Path], pause: Pause = no_pause) -> None:
        """Bring memory up to date with some files, say those that file events named."""
        named: dict[Kind, set[str]] = {kind: set() for kind in FOLDERS}
        swept: set[Kind] = set()
        told = {one.path for some in self._folder_problems.values() for one in some}
        for path in paths:
            pause()
            inside = self._inside(path)
            if inside is None:
                continue
            kind, shown_path = inside
            if path.suffix == ".yaml":
                named[kind].add(shown_path)
            if shown_path in told or self._concerns_more(kind, path, shown_path):
                swept.add(kind)
        for kind in FOLDERS:
            self._look_at(kind, self._gone_last(named[kind]), pause)
            if kind in swept:
                self._sweep(kind, pause)

    @overload
    def fresh(self, kind: Literal["workflow"], name_or_id: str) -> Workflow: ...
    @overload
    def fresh(self, kind: Literal["model"], name_or_id: str) -> ModelDefinition: ...
    def fresh(self, kind: Kind, name_or_id: str) -> Definition:
        """The definition in force at this moment; NotFound if there is none.

        A hit costs one stat. A miss lists the folder and costs one stat for each file of the kind,
        since a name may have come to be in any of them.
        """
        looked: str | None = None
        while (found := self._views[kind].find(name_or_id)) is not None:
            if found.path == looked:
                return found.claim.definition
            looked = found.path
            self._look_at(kind, [looked], no_pause)
        self._sweep(kind, no_pause)
        return self._views[kind].get(name_or_id)

    def _inside(self, path: Path) -> tuple[Kind, str] | None:
        """The kind of a file below one of the folders, and its path below the root."""
        try:
            below = path.relative_to(self._root)
        except ValueError:
            return None
        hidden = any(part.startswith(".") for part in below.parts)
        kind = None if hidden or not below.parts else _KINDS.get(below.parts[0])
        return None if kind is None else (kind, below.as_posix())

    def _concerns_more(self, kind: Kind, path: Path, shown_path: str) -> bool:
        """Whether a path stands for files below it, or for one whose name is told to be wrong.

        Editors and `sed -i` make files of other names beside each that they save.
        """
        misnamed = path.suffix != ".yaml" and path.suffix.lower() in (".yaml", ".yml")
        return misnamed or os.path.isdir(path) or self._views[kind].has_below(shown_path)

    def _gone_last(self, paths: Iterable[str]) -> list[str]:
        """What moved is to be found in its new place before it is missed in its old one."""
        return sorted(paths, key=lambda path: (not os.path.lexists(f"{self._root}/{path}"), path))

    def _sweep(self, kind: Kind, pause: Pause) -> None:
        problems: list[InvalidFile] = []
        files = self._views[kind].files
        there: set[str] = set()
        changed: list[str] = []
        for path, stat in self._listed(FOLDERS[kind], problems, pause):
            there.add(path)
            seen = files.get(path)
            if seen is None or seen.stat is None or seen.stat != stat:
                changed.append(path)
        changed += [path for path in list(files) if path not in there]
        self._folder_problems[kind] = tuple(problems)
        self._look_at(kind, changed, pause)

    def _listed(
        self, folder: str, problems: list[InvalidFile], pause: Pause
    ) -> Iterator[tuple[str, Edition | None]]:
        """The files below a folder in the order of their paths, with their stats as far as known.

        `problems` is told what cannot be read at all.
        """
        with ExitStack() as handles:
            try:
                handle = handles.enter_context(opened(f"{self._root}/{folder}"))
                found = _entries(handle, pause)
            except (FileNotFoundError, NotADirectoryError):
                return
            except OSError as error:
                problems.append(InvalidFile(folder, f"cannot be listed: {error.strerror}"))
                return
            for name, entry in found:
                pause()
                path = f"{folder}/{name}"
                if not is_unicode(name):
                    problems.append(InvalidFile(path, NO_UTF8_NAME))
                elif entry.is_dir(follow_symlinks=False):
                    if name.endswith(".yaml"):
                        problems.append(InvalidFile(path, "is a folder, expected a file"))
                    yield from self._listed(path, problems, pause)
                elif name.endswith(".yaml"):
                    yield path, _edition_of(entry)
                elif name.lower().endswith((".yml", ".yaml")):
                    right = Path(name).with_suffix(".yaml")
                    problems.append(InvalidFile(path, f"is not read: its name must be {right}"))
                elif entry.is_symlink() and os.path.isdir(f"{self._root}/{path}"):
                    problems.append(InvalidFile(path, _LINKED))

    def _look_at(self, kind: Kind, paths: Sequence[str], pause: Pause) -> None:
        """Look at files and take over what changed, a few at a time."""
        view = self._views[kind]
        for first in range(0, len(paths), CHUNK):
            changed = []
            for path in paths[first : first + CHUNK]:
                pause()
                seen = view.files.get(path)
                found = self._look(kind, path, seen)
                if found is not seen:
                    changed.append((path, seen, found))
            if changed:
                self._take(kind, changed)

    def _take(
        self,
        kind: Kind,
        changed: Iterable[tuple[str, DefinitionFile | None, DefinitionFile | None]],
    ) -> None:
        """Note files as they are now: the path of each, what was known of it, what was found.

        Reading and parsing need no lock. Under it each change is looked at once more (a stat, as a
        rule), so that a slow reader never puts an older version over a newer one.
        """
        view = self._views[kind]
        with self._lock:
            changes: dict[str, DefinitionFile | None] = {}
            for path, seen, found in changed:
                current = view.files.get(path)
                now = self._look(kind, path, found if found and current is seen else current)
                if now is current:
                    continue
                if now is not None and current is not None and now.says_as(current):
                    view.files[path] = now
                else:
                    changes[path] = now
                    self._parts += now.claim.parts if now is not None and now.claim else 0
            if changes:
                view.update(changes)

    def _look(self, kind: Kind, path: str, seen: DefinitionFile | None) -> DefinitionFile | None:
        return look(self._root, path, kind, seen, self._clock)


def _entries(handle: int, pause: Pause) -> list[tuple[str, os.DirEntry[str]]]:
    """What is in a folder, by name, but what starts with a dot; while its handle is open."""
    found = []
    with os.scandir(handle) as entries:
        for entry in entries:
            pause()
            name = entry.name
            if not name.startswith("."):
                found.append((name, entry))
    found.sort(key=itemgetter(0))
    return found


def _edition_of(entry: os.DirEntry[str]) -> Edition | None:
    """Of the file that an entry leads to, also by a link; None where that fails."""
    try:
        return edition_in(entry.stat())
    except OSError:
        return None
