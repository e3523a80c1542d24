"""What a record is: metadata, a spec (what should be) and a status (what is), all frozen.

A `Kind` ties a folder of `datastore/` to its two models. Records carry the revision under which the
store handed them out; `with_spec` and `with_status` keep it, so that a commit of something stale is
noticed (`Conflict`) without anybody having to pass versions around.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

API_VERSION = "swamp/v1"
NAME_MAX_BYTES = 200
NAME_RULE = (
    "letters, digits, '.', '_' and '-' only, the first one a letter or digit,"
    f" and at most {NAME_MAX_BYTES} bytes"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


class Model(BaseModel):
    """Frozen, strict about unknown keys, camelCase in files and on the wire."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )

    def document(self) -> dict[str, Any]:
        """Plain JSON values, camelCase keys in declared order, without unset (None) ones."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


S = TypeVar("S", bound=Model)
T = TypeVar("T", bound=Model)


@dataclass(frozen=True, slots=True)
class Record(Generic[S, T]):
    """One record. `status` is None until its owner has looked at it."""

    kind: Kind[S, T]
    name: str
    uid: str
    created_at: str
    spec: S
    status: T | None = None
    owner: str | None = None
    revision: int = 0

    def with_spec(self, **changes: Any) -> Record[S, T]:
        """This record with other spec fields, same revision."""
        return self._but(spec=self.spec.model_copy(update=changes))

    def with_status(self, status: T) -> Record[S, T]:
        """This record with another status, same revision."""
        return self._but(status=status)

    def at(self, revision: int) -> Record[S, T]:
        """This record under another revision."""
        return self._but(revision=revision)

    def _but(
        self, spec: S | None = None, status: T | None = None, revision: int | None = None
    ) -> Record[S, T]:
        # `dataclasses.replace` takes three times as long, and every change comes through here.
        return Record(
            self.kind,
            self.name,
            self.uid,
            self.created_at,
            self.spec if spec is None else spec,
            self.status if status is None else status,
            self.owner,
            self.revision if revision is None else revision,
        )

    @property
    def live(self) -> bool:
        """Whether anything can still happen to it."""
        return self.state in self.kind.live_states

    @property
    def state(self) -> str | None:
        """The state in the status, None while there is no status."""
        return None if self.status is None else getattr(self.status, "state", None)

    def document(self) -> dict[str, Any]:
        """The record as its YAML file shows it, keys in their stable order."""
        document: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": self.kind.title,
            "metadata": self._metadata(),
            "spec": self.spec.document(),
        }
        if self.status is not None:
            document["status"] = self.status.document()
        return document

    def status_document(self) -> dict[str, Any]:
        """As `document`, without what a change of the status leaves as it was."""
        document: dict[str, Any] = {"metadata": self._metadata()}
        if self.status is not None:
            document["status"] = self.status.document()
        return document

    def _metadata(self) -> dict[str, Any]:
        metadata = {"name": self.name, "uid": self.uid, "createdAt": self.created_at}
        return metadata if self.owner is None else {**metadata, "owner": self.owner}


@dataclass(frozen=True, eq=False)
class Kind(Generic[S, T]):
    """A kind of record: its folder, its title in files, its models and look-ups.

    `live_indexes` map a live record to the value it is found by (`store.by`); `name_indexes` map
    the *name* alone, so that they also find finished records without reading them. A live index
    answers None for a record that should not be found by it. `moves` says which state may follow
    which (None: no status yet); a state from which nothing follows is final, and the store refuses
    any change of a record in it. Drawn in `docs/states.md`.
    """

    folder: str
    title: str
    spec: type[S]
    status: type[T]
    moves: Mapping[str | None, frozenset[str]]
    live_states: frozenset[str | None]
    live_indexes: Mapping[str, Callable[[Record[S, T]], str | None]] = field(default_factory=dict)
    name_indexes: Mapping[str, Callable[[str], str]] = field(default_factory=dict)

    def load(self, document: Mapping[str, Any], revision: int = 0) -> Record[S, T]:
        """The record of a parsed document; pydantic's ValidationError or KeyError if it is none."""
        metadata = document["metadata"]
        status = document.get("status")
        return Record(
            kind=self,
            name=metadata["name"],
            uid=metadata["uid"],
            created_at=metadata["createdAt"],
            owner=metadata.get("owner"),
            spec=self.spec.model_validate(document["spec"]),
            status=None if status is None else self.status.model_validate(status),
            revision=revision,
        )

    def __repr__(self) -> str:
        return f"Kind({self.folder})"


def is_record_name(name: str) -> bool:
    """Whether `name` can be a record's name and, with `.yaml`, a file's."""
    return len(name.encode()) <= NAME_MAX_BYTES and _NAME.match(name) is not None
