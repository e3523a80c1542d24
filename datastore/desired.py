"""What people ask for: `datastore/desired/<kind>/<name>.yaml`, sparse, commented, in git.

Each kind has a few fields that people may set. A file that does not parse or validate changes
nothing: the last good version stays in force and the problem is listed until it is mended. A file
that is gone changes nothing either. Blocking; use it in a thread and hand the changes to the store.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from datastore import files
from datastore.definitions.suggest import did_you_mean
from datastore.errors import InvalidFile
from datastore.files import Stat
from datastore.kinds import KINDS
from datastore.layout import Layout
from datastore.record import API_VERSION, Kind, Model, is_record_name
from datastore.yaml_loader import Document, load


@dataclass(frozen=True, slots=True)
class DesiredFile:
    """A desired file that parsed and validated: the fields it sets, and a digest of its bytes."""

    spec: dict[str, Any]
    """By the field names of the kind's spec (`expires_at`), only those that the file sets."""
    digest: str


@dataclass(frozen=True, slots=True)
class DesiredChange:
    """A desired file that is new or other than before; `file` None when it is gone."""

    kind: Kind[Any, Any]
    name: str
    file: DesiredFile | None


class _Worker(Model):
    schedulable: bool | None = None
    note: str | None = None


class _Token(Model):
    expires_at: str | None = None
    max_enrollments: int | Literal["unlimited"] | None = None
    revoked: bool | None = None
    note: str | None = None


class _Pending(Model):
    cancel: bool | None = None
    priority: int | None = Field(default=None, ge=1, le=5)


class _Lease(Model):
    cancel: bool | None = None


class _Run(Model):
    cancel: bool | None = None
    cancel_reason: str | None = None


class _Step(Model):
    """Nothing can be asked of a step: cancel its run or its dispatch."""


FIELDS: dict[str, type[Model]] = {
    "workers": _Worker,
    "tokens": _Token,
    "pending": _Pending,
    "leases": _Lease,
    "runs": _Run,
    "steps": _Step,
}
"""What may be asked of the records of each kind."""

_TOP = ("apiVersion", "kind", "metadata", "spec")


class DesiredTree:
    """The desired files of a repository, as they were when last looked at."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._stats: dict[Path, Stat] = {}
        self._problems: dict[Path, InvalidFile] = {}
        self._lock = threading.Lock()

    def scan(self) -> list[DesiredChange]:
        """Look at every file; answers what is new, other or gone since the last look."""
        changes = []
        with self._lock:
            for kind in KINDS.values():
                folder = self._layout.desired(kind.folder)
                found = {folder / name: stat for name, stat in files.scan(folder).items()}
                known = [path for path in self._stats if path.parent == folder]
                changed = [path for path, stat in found.items() if self._stats.get(path) != stat]
                for path in [*changed, *(path for path in known if path not in found)]:
                    changes += self._look(kind, path)
        return changes

    def refresh(self, paths: Iterable[Path]) -> list[DesiredChange]:
        """Look at these files only."""
        by_folder = {self._layout.desired(kind.folder): kind for kind in KINDS.values()}
        changes = []
        with self._lock:
            for path in paths:
                kind = by_folder.get(path.parent)
                if kind is not None and path.suffix == ".yaml" and not path.name.startswith("."):
                    changes += self._look(kind, path)
        return changes

    def refresh_record(self, kind: Kind[Any, Any], name: str) -> list[DesiredChange]:
        """Look at one record's file only."""
        return self.refresh([self._layout.desired(kind.folder) / f"{name}.yaml"])

    def problems(self) -> list[InvalidFile]:
        """The files that do not parse or validate, by path."""
        with self._lock:
            return [self._problems[path] for path in sorted(self._problems)]

    def _look(self, kind: Kind[Any, Any], path: Path) -> list[DesiredChange]:
        stat = files.stat_of(path)
        if stat is None:
            known = self._stats.pop(path, None) is not None
            self._problems.pop(path, None)
            return [DesiredChange(kind, path.stem, None)] if known else []
        if self._stats.get(path) == stat:
            return []
        self._stats[path] = stat
        try:
            file = self._read(kind, path)
        except InvalidFile as problem:
            self._problems[path] = problem
            return []
        except OSError as error:
            reason = error.strerror or str(error)
            self._problems[path] = InvalidFile(self._layout.shown(path), reason)
            return []
        self._problems.pop(path, None)
        return [DesiredChange(kind, path.stem, file)]

    def _read(self, kind: Kind[Any, Any], path: Path) -> DesiredFile:
        shown = self._layout.shown(path)
        data = path.read_bytes()
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
        self._check_name(document, path, shown)
        spec = value.get("spec")
        if not isinstance(spec, dict):
            raise InvalidFile(
                shown, "needs 'spec:' with the fields to set", document.position("spec")
            )
        return DesiredFile(_fields(kind, document, spec, shown), digest_of(data))

    @staticmethod
    def _check_name(document: Document, path: Path, shown: str) -> None:
        metadata = document.value.get("metadata", {})
        name = metadata.get("name", path.stem) if isinstance(metadata, dict) else None
        if name != path.stem or not is_record_name(path.stem):
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
    try:
        parsed = model.model_validate(spec, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = tuple(part for part in first["loc"] if isinstance(part, (str, int)))[:1]
        raise InvalidFile(
            shown,
            f"spec.{where[0] if where else ''}: {first['msg']}",
            document.position("spec", *where),
        ) from None
    return {
        name: value
        for name in parsed.model_fields_set
        if (value := getattr(parsed, name)) is not None
    }


def _invalid(
    document: Document, shown: str, keys: tuple[str, ...], what: str, known: Iterable[str]
) -> InvalidFile:
    names = list(known)
    advice = did_you_mean(keys[-1], names) or f"expected one of: {', '.join(names) or 'none'}"
    return InvalidFile(shown, f"{what}: {advice}", document.position(*keys))
