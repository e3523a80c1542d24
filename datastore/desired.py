"""What people ask for: `datastore/desired/<kind>/<name>.yaml`, sparse, commented, in git.

Each kind has a few fields that people may set. A file that does not parse or validate changes
nothing: the last good version stays in force and the problem is listed until it is mended; so is
whatever lies there and is not read. A file that is gone changes nothing either. Blocking; use it in
a thread and hand the changes to the store.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator

from datastore import files
from datastore.clock import Clock, SystemClock, parse_stamp
from datastore.courtesy import Pause, no_pause
from datastore.definitions.problems import predicate
from datastore.definitions.schema import Priority, are_named
from datastore.definitions.suggest import did_you_mean
from datastore.desired_strays import strays
from datastore.errors import InvalidFile
from datastore.files import Edition
from datastore.kinds import KINDS, Role
from datastore.layout import Layout
from datastore.record import API_VERSION, NAME_RULE, Kind, Model, is_record_name
from datastore.regular_file import read_bytes
from datastore.yaml_loader import MAX_BYTES, Document, load

_RACY_NS = 2_000_000_000
"""A file changed so shortly before it was read may change once more without another stat."""


@dataclass(frozen=True, slots=True)
class DesiredFile:
    """A desired file that parsed and validated: the fields it sets, and a digest of its bytes."""

    spec: dict[str, Any]
    """By the field names of the kind's model below (`expires_at`), only those that the file sets.
    """
    digest: str


UNREADABLE = DesiredFile({}, "")
"""A file that is there and has no good version yet: it asks for nothing, and is not missing."""


@dataclass(frozen=True, slots=True)
class DesiredChange:
    """The record whose desired file is new, other or gone: `DesiredTree.current` has it."""

    kind: Kind[Any, Any]
    name: str


def _is_a_time(value: str) -> str:
    try:
        parse_stamp(value)
    except ValueError:
        raise ValueError("expected a time like 2026-11-29T16:41:31Z") from None
    return value


_Time = Annotated[str, AfterValidator(_is_a_time)]


class _Worker(Model):
    schedulable: bool | None = None
    drain: bool | None = None
    note: str | None = None


class _Token(Model):
    expires_at: _Time | None = None
    max_enrollments: int | Literal["unlimited"] | None = None
    revoked: bool | None = None
    note: str | None = None

    @field_validator("max_enrollments")
    @classmethod
    def _is_a_number_from_1(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("expected a number from 1, or unlimited")
        return value


class _Access(Model):
    role: Role | None = None
    expires_at: _Time | None = None
    revoked: bool | None = None
    note: str | None = None


class _Pending(Model):
    cancel: bool | None = None
    priority: Priority | None = None
    queue_timeout: float | None = Field(default=None, ge=0)
    """How long the step may wait in all, seconds; 0 waits for ever."""


class _Lease(Model):
    cancel: bool | None = None


class _Run(Model):
    cancel: bool | None = None
    cancel_reason: str | None = None


class _Pause(Model):
    labels: Annotated[dict[str, str], AfterValidator(are_named)] | None = None
    paused: bool | None = None
    note: str | None = None


class _Step(Model):
    """Nothing can be asked of a step: cancel its run or its dispatch."""


FIELDS: dict[str, type[Model]] = {
    "workers": _Worker,
    "tokens": _Token,
    "access": _Access,
    "pauses": _Pause,
    "pending": _Pending,
    "leases": _Lease,
    "runs": _Run,
    "steps": _Step,
}
"""What may be asked of the records of each kind."""

_CALLED = {"access": "access token", "pending": "pending dispatch"}
"""Kinds that are not called like their folder."""

_TOP = ("apiVersion", "kind", "metadata", "spec")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file at the last look. `stat` None: the next look must read it whatever its stat says."""

    stat: Edition | None
    digest: str


class DesiredTree:
    """The desired files of a repository, as they were when last looked at.

    Any number of threads may look at once; `current` and `problems` never wait for more than one
    file to be read.
    """

    def __init__(self, layout: Layout, clock: Clock | None = None) -> None:
        """`clock` must agree with the one that stamps files: it tells which stats to trust."""
        self._layout = layout
        self._clock = clock or SystemClock()
        self._seen: dict[Path, dict[Path, _Seen]] = {layout.desired(folder): {} for folder in KINDS}
        self._files: dict[Path, DesiredFile] = {}
        self._problems: dict[Path, InvalidFile] = {}
        self._strays: dict[Path, InvalidFile] = {}
        self._lock = threading.Lock()

    # -- looking ---------------------------------------------------------------------------------

    def changed(self, pause: Pause = no_pause) -> list[Path]:
        """Stat every file; answers those that are new, other or gone since the last look."""
        found: list[Path] = []
        for folder in self._seen:
            try:
                there = files.editions(folder, pause)
            except OSError:
                # A problem of its own, see `strays`. Nobody knows that anything changed in it.
                continue
            with self._lock:
                seen = dict(self._seen[folder])
            for name, stat in there.items():
                pause()
                path = folder / name
                known = seen.pop(path, None)
                if known is None or known.stat != stat:
                    found.append(path)
            found += seen
        self._find_strays(pause)
        return found

    def refresh(self, paths: Iterable[Path], pause: Pause = no_pause) -> list[DesiredChange]:
        """Look at these files only."""
        by_folder = {self._layout.desired(kind.folder): kind for kind in KINDS.values()}
        changes = []
        strange = False
        for path in paths:
            pause()
            if path.name.startswith("."):
                continue
            kind = by_folder.get(path.parent)
            if kind is None or path.suffix != ".yaml":
                strange = True
                continue
            strange |= path in self._strays or os.path.islink(path) or os.path.isdir(path)
            with self._lock:
                if self._look(kind, path):
                    changes.append(DesiredChange(kind, path.stem))
        if strange:
            self._find_strays(pause)
        return changes

    def _find_strays(self, pause: Pause) -> None:
        self._strays = strays(self._layout, pause)

    def scan(self) -> list[DesiredChange]:
        """Look at every file that changed."""
        return self.refresh(self.changed())

    def refresh_record(self, kind: Kind[Any, Any], name: str) -> list[DesiredChange]:
        """Look at one record's file only."""
        return self.refresh([self._path(kind, name)])

    # -- what was found --------------------------------------------------------------------------

    def current(self, kind: Kind[Any, Any], name: str) -> DesiredFile | None:
        """The last good version of a record's file; None without a file."""
        return self._files.get(self._path(kind, name))

    def problems(self) -> list[InvalidFile]:
        """The files that do not parse or validate, and what is not read at all, by path."""
        with self._lock:
            found = self._strays | self._problems
            return [found[path] for path in sorted(found)]

    # -- one file --------------------------------------------------------------------------------

    def _path(self, kind: Kind[Any, Any], name: str) -> Path:
        return self._layout.desired(kind.folder) / f"{name}.yaml"

    def _look(self, kind: Kind[Any, Any], path: Path) -> bool:
        """Bring memory up to date with one file; whether what it asks for is other now."""
        folder = self._seen[path.parent]
        seen = folder.get(path)
        try:
            stat = files.edition_of(path)
        except OSError as error:
            return self._take_unreadable(path, error)
        if stat is not None and seen is not None and seen.stat == stat:
            return False
        looked_at_ns = int(self._clock.now().timestamp() * 1e9)
        try:
            data = None if stat is None else read_bytes(path, MAX_BYTES)
        except FileNotFoundError:
            data = None
        except OSError as error:
            return self._take_unreadable(path, error)
        if stat is None or data is None:
            return self._forget(path)
        settled = looked_at_ns - stat.ctime_ns > _RACY_NS
        digest = digest_of(data)
        folder[path] = _Seen(stat if settled else None, digest)
        if seen is not None and seen.digest == digest:
            return False
        try:
            self._files[path] = self._parsed(kind, path, data, digest)
        except InvalidFile as problem:
            return self._take_problem(path, problem)
        self._problems.pop(path, None)
        return True

    def _take_unreadable(self, path: Path, error: OSError) -> bool:
        self._seen[path.parent][path] = _Seen(None, "")
        reason = f"cannot be read: {error.strerror or error}"
        return self._take_problem(path, InvalidFile(self._layout.shown(path), reason))

    def _take_problem(self, path: Path, problem: InvalidFile) -> bool:
        self._problems[path] = problem
        if path in self._files:
            return False
        self._files[path] = UNREADABLE
        return True

    def _forget(self, path: Path) -> bool:
        self._problems.pop(path, None)
        self._files.pop(path, None)
        return self._seen[path.parent].pop(path, None) is not None

    def _parsed(self, kind: Kind[Any, Any], path: Path, data: bytes, digest: str) -> DesiredFile:
        shown = self._layout.shown(path)
        document = load(data, shown)
        value = document.value
        for key in value:
            if key not in _TOP:
                raise _invalid(document, shown, (key,), f"unknown key '{key}'", _TOP)
        if value.get("apiVersion", API_VERSION) != API_VERSION:
            raise InvalidFile(
                shown, f"apiVersion must be {API_VERSION}", document.position("apiVersion")
            )
        if value.get("kind", kind.title) != kind.title:
            raise InvalidFile(
                shown, f"kind must be {kind.title} in this folder", document.position("kind")
            )
        _check_name(document, kind, path, shown)
        spec = value.get("spec")
        if not isinstance(spec, dict):
            raise InvalidFile(
                shown, "needs 'spec:' with the fields to set", document.position("spec")
            )
        return DesiredFile(_fields(kind, document, spec, shown), digest)


def _check_name(document: Document, kind: Kind[Any, Any], path: Path, shown: str) -> None:
    if not is_record_name(path.stem):
        what = _CALLED.get(kind.folder, kind.folder.removesuffix("s"))
        raise InvalidFile(shown, f"cannot name a {what}: {NAME_RULE}")
    metadata = document.value.get("metadata", {})
    name = metadata.get("name", path.stem) if isinstance(metadata, dict) else None
    if name != path.stem:
        raise InvalidFile(
            shown,
            f"the file name is the record's name: metadata.name must be '{path.stem}'",
            document.position("metadata", "name"),
        )


def digest_of(data: bytes) -> str:
    """What tells one version of a desired file from another."""
    return hashlib.sha256(data).hexdigest()[:16]


def _fields(
    kind: Kind[Any, Any], document: Document, spec: dict[str, Any], shown: str
) -> dict[str, Any]:
    model = FIELDS[kind.folder]
    known = [field.alias or name for name, field in model.model_fields.items()]
    for key in spec:
        if key not in known:
            what = f"unknown field '{key}' for {kind.title}"
            raise _invalid(document, shown, ("spec", key), what, known)
    given = {key: value for key, value in spec.items() if value is not None}
    try:
        parsed = model.model_validate(given, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = _in_file(spec, first["loc"])
        own = first["msg"].removeprefix("Value error, ")
        told = f": {own}" if own != first["msg"] else f" {predicate(first)}"
        raise InvalidFile(
            shown,
            f"{'.'.join(('spec', *where))}{told}",
            document.position("spec", *where),
        ) from None
    return {name: getattr(parsed, name) for name in parsed.model_fields_set}


def _in_file(value: Any, path: Iterable[str | int]) -> tuple[str, ...]:
    """As much of the path of an error as the file has; the rest says which type was tried."""
    found: list[str] = []
    for part in path:
        if not isinstance(value, dict) or part not in value:
            break
        found.append(str(part))
        value = value[part]
    return tuple(found)


def _invalid(
    document: Document, shown: str, keys: tuple[str, ...], what: str, known: Iterable[str]
) -> InvalidFile:
    names = list(known)
    advice = did_you_mean(keys[-1], names) or f"expected one of: {', '.join(names) or 'none'}"
    return InvalidFile(shown, f"{what}: {advice}", document.position(*keys))
