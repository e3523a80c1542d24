"""A record from its parsed document, whatever that was read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from datastore.errors import InvalidFile
from datastore.record import Kind, Record

if TYPE_CHECKING:
    # Commands that find all records in the index start without a parser of YAML.
    from datastore.yaml_loader import Document


def parse(
    kind: Kind[Any, Any], value: dict[str, Any], shown: str, document: Document | None = None
) -> Record[Any, Any]:
    """The record of a document, revision 1; InvalidFile if its models refuse it."""
    try:
        return kind.load(value, revision=1)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        part = "status" if error.title == kind.status.__name__ else "spec"
        keys = (part, *first["loc"])
        problem = f"{'.'.join(map(str, keys))}: {first['msg']}"
        position = None if document is None else document.position(*keys)
        raise InvalidFile(shown, problem, position) from None
    except (KeyError, TypeError) as error:
        problem = f"is no {kind.title}: {type(error).__name__} {error}"
        raise InvalidFile(shown, problem) from None
