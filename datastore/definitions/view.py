"""What the files of one kind add up to: who is in force under which name, and what is wrong.

A change of a file costs what hangs together with it by name or id, however many other files there
are. Changes come from one thread at a time; readers need no lock: whoever has a name keeps it until
another takes it over, so that a name that some file has is never missed in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from datastore.definitions.definition_file import Claim, Definition, DefinitionFile, Kind
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


class InForce(NamedTuple):
    """What is in force under a name and an id, and the file it came from."""

    path: str
    claim: Claim


class View:
    """The files of one kind by path, which of them are in force, and the problems of the others.

    Paths are as people read them: below the repository, with slashes.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.files: dict[str, DefinitionFile] = {}
        self._by_name: dict[str, InForce] = {}
        self._by_id: dict[str, InForce] = {}
        self._losers: dict[tuple[str, str], set[str]] = {}
        """Files whose claim another has; by ("name", it) and by ("id", it)."""
        self._problems: dict[str, InvalidFile] = {}
        self._folders: Counter[str] = Counter()
        """How many files are in each folder."""

    # -- reading, from any thread ----------------------------------------------------------------

    def find(self, name_or_id: str) -> InForce | None:
        """What is in force under that name, else under that id, else None."""
        return self._by_name.get(name_or_id) or self._by_id.get(name_or_id)

    def get(self, name_or_id: str) -> Definition:
        """The definition; NotFound with a file that may have meant it, or near names."""
        found = self.find(name_or_id)
        if found is None:
            raise NotFound(f"no {self.kind} '{name_or_id}'{self._advice(name_or_id)}")
        return found.claim.definition

    def all(self) -> list[Definition]:
        """Every definition in force, by name."""
        in_force = dict(self._by_name)
        return [in_force[name].claim.definition for name in sorted(in_force)]

    def problems(self) -> list[InvalidFile]:
        """Of every file that is not in force as it stands."""
        return list(self._problems.values())

    def problem(self, path: str) -> InvalidFile | None:
        """Why this file is not in force as it stands; None if it is."""
        return self._problems.get(path)

    def has_below(self, folder: str) -> bool:
        """Whether a file is known in that folder, or further down."""
        below = f"{folder}/"
        return folder in self._folders or any(one.startswith(below) for one in list(self._folders))

    def _advice(self, name: str) -> str:
        problems = dict(self._problems)
        for path in sorted(problems):
            file = self.files.get(path)
            if file is not None and file.may_mean(name):
                return f"; a file that may define it has a problem: {problems[path]}"
        names = [known for known in list(self._by_name) if abs(len(known) - len(name)) < 4]
        names.sort(key=lambda known: (known[:2] != name[:2], known))
        near = get_close_matches(name, names[:_COMPARED_MAX], n=_NEAR_MAX)
        words = " or ".join(f"'{one}'" for one in near)
        return f"; did you mean {words}?" if near else f"; see `swamp {self.kind} list`"

    # -- changing, one thread at a time ----------------------------------------------------------

    def begin(self, files: Mapping[str, DefinitionFile]) -> None:
        """Take over the very first files, in the order of their paths: as `update`, but faster."""
        clashing: dict[str, DefinitionFile | None] = {}
        by_name, by_id = self._by_name, self._by_id
        for path, file in files.items():
            claim = file.claim
            if claim is None or claim.name in by_name or claim.id in by_id:
                clashing[path] = file
            else:
                by_name[claim.name] = by_id[claim.id] = InForce(path, claim)
        self.files = {path: file for path, file in files.items() if path not in clashing}
        self._folders.update(path.rpartition("/")[0] for path in self.files)
        self.update(clashing)

    def update(self, changes: Mapping[str, DefinitionFile | None]) -> None:
        """Take over files as they are now, None for those that are gone.

        Who has a name or an id keeps it; else the path decides.
        """
        concerned = self._concerned(changes)
        old = [(path, self._claim(path)) for path in concerned]
        for path, file in changes.items():
            if (path in self.files) != (file is not None):
                self._count(path, 1 if file is not None else -1)
            if file is None:
                self.files.pop(path, None)
            else:
                self.files[path] = file
        new = [(path, claim) for path in concerned if (claim := self._claim(path)) is not None]
        new.sort(key=lambda one: (-self._held(*one), one[0].split("/")))
        names, ids = _winners(new)
        self._forget_losers(old)
        # What comes is put in before what goes is taken out: a name is never missed in between.
        released = self._claimed_by(old)
        self._by_name.update(names)
        self._by_id.update(ids)
        for name, id in released:
            if name not in names:
                self._by_name.pop(name, None)
            if id not in ids:
                self._by_id.pop(id, None)
        self._note_problems(concerned)

    def _count(self, path: str, by: int) -> None:
        folder = path.rpartition("/")[0]
        self._folders[folder] += by
        if not self._folders[folder]:
            del self._folders[folder]

    def _claim(self, path: str) -> Claim | None:
        file = self.files.get(path)
        return None if file is None else file.claim

    def _held(self, path: str, claim: Claim) -> int:
        owners = (self._by_name.get(claim.name), self._by_id.get(claim.id))
        return sum(owner is not None and owner.path == path for owner in owners)

    def _concerned(self, changes: Mapping[str, DefinitionFile | None]) -> set[str]:
        """The changed files, and all that hang together with them by a name or an id."""
        found: set[str] = set()
        ahead = set(changes)
        while ahead:
            path = ahead.pop()
            found.add(path)
            changed = changes.get(path)
            for claim in (self._claim(path), changed.claim if changed else None):
                if claim is not None:
                    ahead |= self._claimants(claim) - found
        return found

    def _claimants(self, claim: Claim) -> set[str]:
        owners = (self._by_name.get(claim.name), self._by_id.get(claim.id))
        found = {owner.path for owner in owners if owner is not None}
        for key in _keys(claim):
            found |= self._losers.get(key, set())
        return found

    def _claimed_by(self, claims: Iterable[tuple[str, Claim | None]]) -> list[tuple[str, str]]:
        return [(claim.name, claim.id) for _, claim in claims if claim is not None]

    def _forget_losers(self, claims: Iterable[tuple[str, Claim | None]]) -> None:
        for path, claim in claims:
            for key in _keys(claim) if claim is not None else ():
                losers = self._losers.get(key, set())
                losers.discard(path)
                if not losers:
                    self._losers.pop(key, None)

    def _note_problems(self, paths: Iterable[str]) -> None:
        for path in paths:
            file = self.files.get(path)
            taken = self._taken(path, file.claim) if file and file.claim else None
            if taken is not None and file is not None and file.claim is not None:
                for key in _keys(file.claim):
                    self._losers.setdefault(key, set()).add(path)
            problem = (file.problem if file else None) or taken
            if problem is None:
                self._problems.pop(path, None)
            else:
                self._problems[path] = problem

    def _taken(self, path: str, claim: Claim) -> NameTaken | None:
        called = f"{self.kind} '{claim.name}'"
        by_name = self._by_name.get(claim.name)
        if by_name is not None and by_name.path != path:
            advice = " already, which stays in force: rename one of them"
            return NameTaken(path, f"{called} is defined", by_name.path, advice)
        by_id = self._by_id.get(claim.id)
        if by_id is not None and by_id.path != path:
            what = f"{called} has the id of '{by_id.claim.name}'"
            advice = ", which stays in force: give it an id of its own"
            return NameTaken(path, what, by_id.path, advice)
        return None


def _keys(claim: Claim) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("name", claim.name), ("id", claim.id)


def _winners(claims: Iterable[tuple[str, Claim]]) -> tuple[dict[str, InForce], dict[str, InForce]]:
    """Who is in force by name and by id, where those come first that go first."""
    names: dict[str, InForce] = {}
    ids: dict[str, InForce] = {}
    for path, claim in claims:
        if claim.name not in names and claim.id not in ids:
            names[claim.name] = ids[claim.id] = InForce(path, claim)
    return names, ids
