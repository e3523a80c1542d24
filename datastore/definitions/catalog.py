"""Workflows and models by the name (or id) inside their files, whatever the files are called.

Memory answers hits and misses: `workflow`, `model` and the lists never touch the disk or wait for
anybody, and may be called on the event loop. `scan`, `refresh` and `fresh` look at the disk and
belong in a thread; any number of them may run at once. A file is parsed when its bytes change.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, cast, overload

from datastore.clock import Clock, SystemClock
from datastore.definitions.definition_file import Definition, DefinitionFile, Kind, look, shown
from datastore.definitions.model import ModelDefinition
from datastore.definitions.view import View, view_of
from datastore.definitions.workflow import Workflow
from datastore.errors import InvalidFile

FOLDERS: dict[Kind, str] = {"workflow": "workflows", "model": "models"}
_KINDS: dict[str, Kind] = {folder: kind for kind, folder in FOLDERS.items()}
Place = tuple[Kind, Path]


class Catalog:
    """The definitions of the repository at `root`. Empty until the first `scan`."""

    def __init__(self, root: Path, *, clock: Clock | None = None) -> None:
        """`clock` must agree with the one that stamps files: it tells which stats to trust."""
        self._root = root
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._files: dict[Place, DefinitionFile] = {}
        self._views: dict[Kind, View] = {kind: View(kind) for kind in FOLDERS}
        self._folder_problems: dict[Kind, tuple[InvalidFile, ...]] = {}

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

    def problems(self) -> list[InvalidFile]:
        """Every file that is not in force as it stands, by path."""
        found = [problem for view in self._views.values() for problem in view.problems]
        found += [problem for some in self._folder_problems.values() for problem in some]
        return sorted(found, key=lambda problem: problem.path)

    # -- disk ------------------------------------------------------------------------------------

    def scan(self) -> None:
        """Bring memory up to date with every file: stat all, read what changed."""
        self._sweep(FOLDERS)

    def refresh(self, paths: Iterable[Path]) -> None:
        """Bring memory up to date with some files, say those that file events named."""
        places: set[Place] = set()
        kinds: set[Kind] = set()
        for path in paths:
            kind = self._kind_of(path)
            if kind is None:
                continue
            if path.suffix == ".yaml":
                places.add((kind, path))
            if path.suffix != ".yaml" or path.is_dir():
                kinds.add(kind)
        self._look_at(places)
        self._sweep(kinds)

    @overload
    def fresh(self, kind: Literal["workflow"], name_or_id: str) -> Workflow: ...
    @overload
    def fresh(self, kind: Literal["model"], name_or_id: str) -> ModelDefinition: ...
    def fresh(self, kind: Kind, name_or_id: str) -> Definition:
        """The definition in force at this moment; NotFound if there is none.

        A hit costs one stat. A miss lists the folder and costs one stat for each file of the kind,
        since a name may have come to be in any of them.
        """
        looked: Path | None = None
        while (found := self._views[kind].find(name_or_id)) is not None:
            if found.path == looked:
                return found.definition
            looked = found.path
            self._look_at([(kind, looked)])
        self._sweep([kind])
        return self._views[kind].get(name_or_id)

    def _kind_of(self, path: Path) -> Kind | None:
        try:
            parts = path.relative_to(self._root).parts
        except ValueError:
            return None
        hidden = any(part.startswith(".") for part in parts)
        return None if hidden or not parts else _KINDS.get(parts[0])

    def _sweep(self, kinds: Iterable[Kind]) -> None:
        for kind in kinds:
            problems: list[InvalidFile] = []
            places = {(kind, path) for path in self._listed(self._root / FOLDERS[kind], problems)}
            with self._lock:
                places.update(place for place in self._files if place[0] == kind)
            self._folder_problems[kind] = tuple(problems)
            self._look_at(places)

    def _listed(self, folder: Path, problems: list[InvalidFile]) -> Iterator[Path]:
        try:
            with os.scandir(folder) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            problems.append(
                InvalidFile(shown(folder, self._root), f"cannot be listed: {error.strerror}")
            )
            return
        for name, is_folder in found:
            if name.startswith("."):
                continue
            if is_folder and name.endswith(".yaml"):
                where = shown(folder / name, self._root)
                problems.append(InvalidFile(where, "is a folder, expected a file"))
            if is_folder:
                yield from self._listed(folder / name, problems)
            elif name.endswith(".yaml"):
                yield folder / name
            elif name.lower().endswith((".yml", ".yaml")):
                right = (folder / name).with_suffix(".yaml").name
                where = shown(folder / name, self._root)
                problems.append(InvalidFile(where, f"is not read: its name must be {right}"))

    def _look_at(self, places: Iterable[Place]) -> None:
        """Look at files and take over what changed.

        Reading and parsing need no lock. Under it each change is looked at once more (a stat, as a
        rule), so that a slow reader never puts an older version over a newer one.
        """
        changed = []
        for place in places:
            seen = self._files.get(place)
            found = self._look(place, seen)
            if found is not seen:
                changed.append((place, seen, found))
        if not changed:
            return
        with self._lock:
            kinds = set()
            for place, seen, found in changed:
                current = self._files.get(place)
                if self._take(place, found if found and current is seen else current):
                    kinds.add(place[0])
            for kind in kinds:
                mine = {path: file for (k, path), file in self._files.items() if k == kind}
                self._views[kind] = view_of(mine, self._views[kind], self._root)

    def _take(self, place: Place, known: DefinitionFile | None) -> bool:
        """Note a file as it is now, `known` or newer; whether the view must follow."""
        current = self._files.get(place)
        found = self._look(place, known)
        if found is None:
            self._files.pop(place, None)
        else:
            self._files[place] = found
        if current is None or found is None:
            return current is not found
        same = current.definition is found.definition and current.problem is found.problem
        return not same

    def _look(self, place: Place, seen: DefinitionFile | None) -> DefinitionFile | None:
        kind, path = place
        return look(path, self._root, kind, seen, self._clock)
