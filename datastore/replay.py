"""What the rows of the journal add up to, laid over what the index or the files say.

A row of a status alone needs the spec from below. That one is always there: rows are deleted from
the oldest on, and only when the files and the index hold what they said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from datastore.journal import Story
from datastore.sqlite_journal import HISTORY, Row


@dataclass(slots=True)
class Change:
    """Where a record's rows lead to: `whole`, then `delta` over it, or removed with neither."""

    first_seq: int
    whole: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None

    @property
    def removed(self) -> bool:
        return self.whole is None and self.delta is None

    @property
    def needs_base(self) -> bool:
        """Whether its spec is only in the index or the file."""
        return self.whole is None and self.delta is not None

    def over(self, base: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The document that results; None if removed, or if `base` is of no such record."""
        if self.delta is None:
            return self.whole
        below = self.whole or base
        if below is None or below["metadata"]["uid"] != self.delta["metadata"]["uid"]:
            return None
        merged = {key: below[key] for key in ("apiVersion", "kind")}
        merged |= {"metadata": self.delta["metadata"], "spec": below["spec"]}
        if "status" in self.delta:
            merged["status"] = self.delta["status"]
        return merged


@dataclass(slots=True)
class Replay:
    """The last word of the journal on each record, by kind and name, and the stories in it."""

    changes: dict[tuple[str, str], Change] = field(default_factory=dict)
    stories: list[tuple[int, Story]] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Replay:
        replay = cls()
        for row in rows:
            replay._add(row)
        return replay

    def _add(self, row: Row) -> None:
        document: dict[str, Any] | None = None if row.body is None else json.loads(row.body)
        if row.kind == HISTORY and document is not None:
            story = Story(document["workflow"], row.name, document["text"])
            self.stories.append((row.seq, story))
            return
        change = self.changes.setdefault((row.kind, row.name), Change(row.seq))
        if document is not None and "spec" not in document:
            change.delta = document
        else:
            change.whole, change.delta = document, None
