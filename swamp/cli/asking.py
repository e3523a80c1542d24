"""Commands of operators that ask by a person's file, in `datastore/desired/`.

The file is what counts, with a server or without: it goes into git with the rest, and an editor can
do the same. A running server is told to look at it, and the command returns once it is in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from datastore.errors import SwampError
from swamp.cli.console import Console

if TYPE_CHECKING:
    from datastore.record import Kind


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of it."""

    name: str
    path: str
    in_force: bool | None
    """None where no server runs: it takes effect at the next start."""


def ask(
    console: Console,
    kind: Kind[Any, Any],
    name: str,
    fields: Mapping[str, Any],
    comment: str,
) -> Asked:
    """Write the fields into the record's desired file and have the server take them over.

    None for a field that the file is to say nothing of any more.
    """
    from datastore.desired_edit import ask as write

    layout = console.layout()
    write(layout, kind, name, fields, comment)
    path = layout.shown(layout.desired(kind.folder) / f"{name}.yaml")
    client = console.local_server(layout)
    if client is None:
        return Asked(name, path, None)
    answer = client.post(f"/api/v1/desired/{kind.folder}/{quote(name, safe='')}/look")
    if answer["inForce"] is None:
        # The process of one run answered, which leaves that to the next server.
        return Asked(name, path, None)
    if not answer["inForce"]:
        raise SwampError(
            f"{path} was written, but is not in force: there is no {kind.title} '{name}',"
            " or the file has a problem (see `swamp doctor`)"
        )
    return Asked(name, path, True)


def told(asked: Asked, what: str) -> str:
    """One line for people."""
    later = "" if asked.in_force else ", at the next start of `swamp serve`"
    return f"{what}{later} ({asked.path})"


def document(asked: Asked, **more: Any) -> dict[str, Any]:
    """The same for machines."""
    return {"name": asked.name, "path": asked.path, "inForce": asked.in_force, **more}
