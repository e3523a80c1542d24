"""What the start of a repository found, for people and for the boot sweep."""

from __future__ import annotations

from dataclasses import dataclass, field

from datastore.errors import InvalidFile


@dataclass(slots=True)
class LoadReport:
    """What a start found. Paths are relative to the root."""

    live: dict[str, int] = field(default_factory=dict)
    """Live records by kind, unvouched ones included."""
    finished: dict[str, int] = field(default_factory=dict)
    """Finished records by kind."""
    replayed: int = 0
    """Records and stories that only the journal had: not 0 after a crash."""
    put_back: list[str] = field(default_factory=list)
    """Files edited while the server was stopped."""
    restored: list[str] = field(default_factory=list)
    """Files deleted while the server was stopped."""
    unvouched: list[tuple[str, str]] = field(default_factory=list)
    """Live records (kind, name) that the server did not write: to be ended, never continued."""
    adopted: list[str] = field(default_factory=list)
    """Files of finished records that the server did not write, taken as they are."""
    taken_over: list[str] = field(default_factory=list)
    """Files of live tokens and pauses that it did not write, taken as they are."""
    invalid: list[InvalidFile] = field(default_factory=list)
    """Files, or records in the journal or index, that make no record. Left alone."""
