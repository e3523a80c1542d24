"""The base of everything people write: strict keys, strict types, nothing left empty by accident.

A `Written` model takes only the keys it knows and never converts a value: `8080` is not a string
and `"3"` is not a number. A key with nothing behind it is refused, so that a `labels:` whose lines
were commented out is never mistaken for "no labels here".
"""

from __future__ import annotations

import re
import uuid
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from datastore.record import Model

T = TypeVar("T")

_NAMESPACE = uuid.UUID("5a9c1f0e-8d0b-5c57-9d3f-6f3f0b6f2a11")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
_SCOPED = re.compile(r"@[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)+\Z")
_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]*\Z")
NAME_MAX_LENGTH = 64

REMOVED = {
    key: "it was removed: 'target', 'labels' and 'platform' say where a step runs"
    for key in ("driver", "driverConfig")
}


def refusal(predicate: str, *keys: str) -> PydanticCustomError:
    """A problem in words, `must be …`, told of the value, or of what `keys` lead to below it."""
    return PydanticCustomError("refusal", "{predicate}", {"predicate": predicate, "keys": keys})


class Written(Model):
    """What a person writes. `title` names it in messages, `not_yet` and `hints` explain keys."""

    model_config = ConfigDict(strict=True, populate_by_name=False)

    title: ClassVar[str]
    not_yet: ClassVar[frozenset[str]] = frozenset()
    hints: ClassVar[dict[str, str]] = REMOVED

    @field_validator("*", mode="before")
    @classmethod
    def _is_not_empty(cls, value: Any) -> Any:
        if value is None:
            raise refusal("has no value: give it one or remove the key")
        return value


def is_expression(text: Any) -> bool:
    """Whether a value is a string with `${{ … }}` in it."""
    return isinstance(text, str) and "${{" in text


def is_not_empty(items: tuple[T, ...]) -> tuple[T, ...]:
    """The items; refused without one. (`min_length` also counts an item with a problem as none.)"""
    if not items:
        raise refusal("must not be empty")
    return items


def with_id(kind: str, document: Any) -> Any:
    """The document with an id: its own, else one that is always the same for the same name."""
    if not isinstance(document, dict) or "id" in document:
        return document
    name = document.get("name")
    if not isinstance(name, str):
        name = ""  # The missing or wrong name is reported, a missing id is not.
    return {**document, "id": str(uuid.uuid5(_NAMESPACE, f"{kind}/{name}"))}


def _is_id(text: str) -> str:
    if not _UUID.match(text):
        raise refusal(f"must be a UUID, found '{text}'")
    return text


def _is_definition_name(text: str) -> str:
    if len(text) > NAME_MAX_LENGTH or not (_PLAIN.match(text) or _SCOPED.match(text)):
        raise refusal(
            f"must be at most {NAME_MAX_LENGTH} of a-z, 0-9, '-' and '_', starting with a letter "
            f"or digit, or '@scope/name', found '{text}'"
        )
    return text


def _is_label_rule(value: Any) -> Any:
    """`a`, `[a, b]` (one of these), `{not: a}` or `{not: [a, b]}` (none of these)."""
    if isinstance(value, list):
        return _label_values(value)
    if isinstance(value, dict):
        if set(value) != {"not"}:
            raise refusal("must be a string, a list of strings, or {not: …}")
        excluded = value["not"]
        return {"not": _label_values([excluded] if isinstance(excluded, str) else excluded)}
    if not isinstance(value, str):
        raise PydanticKnownError("string_type")
    return value


def _label_values(values: Any) -> list[str]:
    if not isinstance(values, list) or not values or not all(isinstance(v, str) for v in values):
        raise refusal("must hold at least one value, strings only: quote them")
    return values


def are_named(labels: dict[str, Any]) -> dict[str, Any]:
    """Labels as they are, refused where one has no name."""
    if any(not name.strip() for name in labels):
        raise refusal("must name each label: found one without a name")
    return labels


def _is_a_priority(value: int) -> int:
    if not 1 <= value <= 5:
        raise refusal(f"must be from 1 (most urgent) to 5, found {value}")
    return value


Text = Annotated[str, Field(min_length=1)]
Uuid = Annotated[str, AfterValidator(_is_id)]
DefinitionName = Annotated[str, AfterValidator(_is_definition_name)]
LabelValue = Annotated[str | list[str] | dict[str, list[str]], BeforeValidator(_is_label_rule)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Labels = Annotated[dict[str, LabelValue], AfterValidator(are_named)]
Priority = Annotated[int, AfterValidator(_is_a_priority)]
