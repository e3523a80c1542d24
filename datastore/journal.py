"""What the store needs of a journal: an ordered, group-committed log of changes.

The disk engine (`datastore/engine.py`) and the simulated one (`tests/sim`) both keep this promise:
batches become durable whole and in order, and only bytes travel, so nothing slow stands in the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from datastore.record import Kind, Record


@dataclass(frozen=True, slots=True)
class Put:
    """A record to write. `status_only` when its spec is the one already in the journal or file."""

    record: Record[Any, Any]
    status_only: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """A record to remove."""

    kind: Kind[Any, Any]
    name: str


@dataclass(frozen=True, slots=True)
class Story:
    """The write-once file of a finished run: `history/<workflow>/<run>.yaml`, already YAML."""

    workflow: str
    run: str
    text: str


Op = Put | Remove | Story


class Journal(Protocol):
    """Where commits go. Every method is a plain call from the event loop's thread."""

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        """Queue one commit: all of it becomes durable, or none, and only after all earlier ones.

        `on_durable` is called on the event loop once it is. Never blocks, never raises for the
        disk: a write that fails is retried, unchanged and in order (see `trouble`).
        """

    @property
    def trouble(self) -> str | None:
        """Why the disk refuses writes just now; None while all is well."""
