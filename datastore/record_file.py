"""A record from a file that nobody vouches for: every doubt is an InvalidFile with its position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datastore.errors import InvalidFile
from datastore.record import API_VERSION, Kind, Record, is_record_name
from datastore.record_document import parse
from datastore.regular_file import oddity, read_bytes
from datastore.yaml_loader import Document, load

MAX_BYTES = 64 * 1024 * 1024
"""Files of `observed/` are ours: a record with a big spec must be readable again."""


def read_record(kind: Kind[Any, Any], path: Path, shown: str) -> Record[Any, Any]:
    """The record in `path`, revision 1; InvalidFile, naming it as `shown`, if there is none.

    OSError if the file cannot be read.
    """
    odd = oddity(path)
    if odd is not None:
        raise InvalidFile(shown, odd)
    document = load(read_bytes(path, MAX_BYTES), shown, max_bytes=MAX_BYTES, own=True)
    _expect(document, shown, API_VERSION, "apiVersion")
    _expect(document, shown, kind.title, "kind")
    name = path.name.removesuffix(".yaml")
    _expect(document, shown, name, "metadata", "name")
    if not is_record_name(name):
        raise InvalidFile(shown, f"'{name}' is no name for a record")
    for key in ("uid", "createdAt"):
        if not isinstance(_value(document, "metadata", key), str):
            problem = f"metadata.{key} is missing or no text"
            raise InvalidFile(shown, problem, document.position("metadata", key))
    return parse(kind, document.value, shown, document)


def _expect(document: Document, shown: str, expected: str, *keys: str) -> None:
    found = _value(document, *keys)
    if found != expected:
        problem = f"{'.'.join(keys)} is {found!r}, expected {expected!r}"
        raise InvalidFile(shown, problem, document.position(*keys))


def _value(document: Document, *keys: str) -> Any:
    value: Any = document.value
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
