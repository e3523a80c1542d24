"""What a person's file asks of a record, and how the record notes which file is in force. Pure.

A record notes the digest of the desired file that its spec came from, so that everybody can see
whether an edit has taken effect; once that file is gone the note says so, and nothing else changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from datastore.record import Kind

if TYPE_CHECKING:
    # Commands that only list start faster without it.
    from datastore.desired import DesiredFile

MISSING = " (file missing)"


@dataclass(frozen=True, slots=True)
class Asked:
    """What is new in a desired file."""

    spec: dict[str, Any] | None
    """The fields that the file sets; None where it is gone: the spec in force stays."""
    note: str
    """What the record has to note from now on."""


def asked(file: DesiredFile | None, noted: str | None) -> Asked | None:
    """What is new since the record noted `noted`; None where nothing is."""
    if file is None:
        if noted is None or noted.endswith(MISSING):
            return None
        return Asked(None, noted + MISSING)
    if not file.digest or file.digest == noted:
        return None
    return Asked(file.spec, file.digest)


def shown_file(kind: Kind[Any, Any], name: str) -> str:
    """A record's desired file as messages name it."""
    return f"datastore/desired/{kind.folder}/{name}.yaml"


def desired_file(noted: str | None) -> str | None:
    """`missing` where the file that the spec in force came from is gone, else None."""
    return "missing" if noted is not None and noted.endswith(MISSING) else None
