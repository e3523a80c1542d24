"""Records of one kind as they were at one moment, for whoever reads many of them.

Taking a listing costs references alone: records never change, and finished ones stay the bytes that
they are. Each is parsed when its turn comes, in whichever thread that is, and what becomes of the
store meanwhile is not seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from datastore.record import Kind, Model, Record

S = TypeVar("S", bound=Model)
T = TypeVar("T", bound=Model)

LOADED = 1
"""The revision of every record that was found on disk."""


class Listing(Generic[S, T]):
    """Iterates over the records; `len` is how many there are."""

    def __init__(self, kind: Kind[S, T], rows: Mapping[str, Record[Any, Any] | bytes]) -> None:
        """`rows` by name, and nobody else's: finished records may be the JSON of their document."""
        self._kind = kind
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Record[S, T]]:
        return map(self.get, self._rows)

    @property
    def names(self) -> Iterable[str]:
        """The names of the records, nothing parsed."""
        return self._rows.keys()

    def get(self, name: str) -> Record[S, T]:
        """The record of that name; KeyError without it."""
        row = self._rows[name]
        if isinstance(row, bytes):
            return self._kind.load(json.loads(row), revision=LOADED)
        return row
