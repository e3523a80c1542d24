"""What the files of one kind add up to: who is in force under which name, and what is wrong.

A `View` is immutable and replaced as a whole, so that readers need no lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from datastore.definitions.definition_file import Definition, DefinitionFile, Kind, shown
from datastore.errors import InvalidFile, NotFound

_NEAR_MAX = 3
_COMPARED_MAX = 300
"""Comparing names is slow, and a miss must stay cheap."""


class NameTaken(InvalidFile):
    """A definition whose name or id another file has; `rival` is that file, `what` the clash."""

    def __init__(self, path: str, what: str, rival: str, advice: str) -> None:
        super().__init__(path, f"{what} in {rival}{advice}")
        self.what = what
        self.rival = rival


@dataclass(frozen=True, slots=True)
class InForce:
    """A definition and the file it came from."""

    path: Path
    definition: Definition


@dataclass(frozen=True, slots=True)
class View:
    """The definitions of one kind in force, and the problems of the files that are not."""

    kind: Kind
    by_name: dict[str, InForce] = field(default_factory=dict)
    by_id: dict[str, InForce] = field(default_factory=dict)
    problems: tuple[InvalidFile, ...] = ()
    troubled: tuple[tuple[DefinitionFile, InvalidFile], ...] = ()

    def find(self, name_or_id: str) -> InForce | None:
        """The definition of that name, else of that id, else None."""
        return self.by_name.get(name_or_id) or self.by_id.get(name_or_id)

    def get(self, name_or_id: str) -> Definition:
        """The definition; NotFound with a file that may have meant it, or near names."""
        found = self.find(name_or_id)
        if found is None:
            raise NotFound(f"no {self.kind} '{name_or_id}'{self._advice(name_or_id)}")
        return found.definition

    def all(self) -> list[Definition]:
        """Every definition in force, by name."""
        return [self.by_name[name].definition for name in sorted(self.by_name)]

    def _advice(self, name: str) -> str:
        for file, problem in self.troubled:
            if file.may_mean(name):
                return f"; a file that may define it has a problem: {problem}"
        names = [known for known in self.by_name if abs(len(known) - len(name)) < 4]
        names.sort(key=lambda known: (known[:2] != name[:2], known))
        near = get_close_matches(name, names[:_COMPARED_MAX], n=_NEAR_MAX)
        words = " or ".join(f"'{one}'" for one in near)
        return f"; did you mean {words}?" if near else f"; see `swamp {self.kind} list`"


def view_of(files: Mapping[Path, DefinitionFile], before: View, root: Path) -> View:
    """The view of these files. Who had a name or id `before` keeps it; else the path decides."""

    def held(path: Path, definition: Definition) -> int:
        owners = (before.by_name.get(definition.name), before.by_id.get(definition.id))
        return sum(owner is not None and owner.path == path for owner in owners)

    claims = [(path, file.definition) for path, file in files.items() if file.definition]
    claims.sort(key=lambda claim: (-held(*claim), claim[0]))
    view = View(before.kind)
    problems = {path: file.problem for path, file in files.items() if file.problem}
    for path, definition in claims:
        taken = _taken(view, path, definition, root)
        if taken is None:
            in_force = InForce(path, definition)
            view.by_name[definition.name] = in_force
            view.by_id[definition.id] = in_force
        else:
            problems.setdefault(path, taken)
    ordered = sorted(problems)
    return View(
        before.kind,
        view.by_name,
        view.by_id,
        problems=tuple(problems[path] for path in ordered),
        troubled=tuple((files[path], problems[path]) for path in ordered),
    )


def _taken(view: View, path: Path, definition: Definition, root: Path) -> NameTaken | None:
    called = f"{view.kind} '{definition.name}'"
    by_name = view.by_name.get(definition.name)
    if by_name is not None:
        rival = shown(by_name.path, root)
        advice = " already, which stays in force: rename one of them"
        return NameTaken(shown(path, root), f"{called} is defined", rival, advice)
    by_id = view.by_id.get(definition.id)
    if by_id is not None:
        what = f"{called} has the id of '{by_id.definition.name}'"
        rival = shown(by_id.path, root)
        advice = ", which stays in force: give it an id of its own"
        return NameTaken(shown(path, root), what, rival, advice)
    return None
