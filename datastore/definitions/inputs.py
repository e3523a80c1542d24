"""Inputs of a workflow or model: how they are declared, and how given values are checked.

Two forms are taken: a JSON-schema object (`properties`, `required`) or a flat map from names to
declarations, in which a bare value is the default.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, model_validator

from datastore.definitions.problems import shown
from datastore.definitions.schema import Written, is_expression, is_not_empty, refusal
from datastore.definitions.suggest import did_you_mean
from datastore.errors import SwampError
from datastore.plain_values import unfit

InputType = Literal["string", "number", "integer", "boolean", "array", "object"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_NOT_YET = (
    "additionalProperties format maxItems maxLength maximum minItems minLength minimum pattern "
    "uniqueItems"
)
_PHRASES: dict[str, str] = {
    "string": "a string",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}


class InputError(SwampError):
    """An input that a run cannot start with; the message names it and what was expected."""


def _flag_or_names(value: Any) -> bool | tuple[str, ...]:
    if isinstance(value, bool):
        return value
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise refusal(f"must be true, false or a list of property names, found {shown(value)}")


class _Inside(ValueError):
    """A value whose inside does not fit: the message says which part must be what."""


class Declaration(Written):
    """One input: its type, default, allowed values; `items` and `properties` look inside it."""

    title: ClassVar[str] = "input"
    not_yet: ClassVar[frozenset[str]] = frozenset(_NOT_YET.split())

    type: InputType | None = None
    description: str | None = None
    default: Any = None
    enum: Annotated[tuple[Any, ...], AfterValidator(is_not_empty)] | None = Field(
        default=None, strict=False
    )
    items: Declaration | None = None
    properties: dict[str, Declaration] | None = None
    required: Annotated[bool | tuple[str, ...], PlainValidator(_flag_or_names)] = False

    @model_validator(mode="after")
    def _default_fits(self) -> Self:
        if self.default is not None and not is_expression(self.default):
            try:
                _checked(self, self.default)
            except _Inside as error:
                raise refusal(f"does not fit: {error}", "default") from error
            except ValueError as error:
                raise refusal(f"must be {error}", "default") from error
        return self

    @property
    def value_type(self) -> InputType | None:
        """The declared type, else that of the default, else None: anything goes."""
        return self.type or _type_of(self.default)


class Inputs(Written):
    """All inputs of one definition."""

    title: ClassVar[str] = "inputs"

    type: Literal["object"] = "object"
    description: str | None = None
    properties: dict[str, Declaration] = Field(default_factory=dict)
    required: tuple[str, ...] = Field(default=(), strict=False)
    additional_properties: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_flat_map(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "properties" in value:
            return value
        return {"properties": {name: _declared(given) for name, given in value.items()}}

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        for name in self.properties:
            if not _NAME.match(name):
                raise refusal("must be a name of letters, digits, '-' and '_'", "properties", name)
        for name in self.required:
            if name not in self.properties:
                advice = did_you_mean(name, self.properties) or "declare it under 'properties'"
                raise refusal(f"names '{name}', which is not declared: {advice}", "required")
        return self

    @property
    def required_names(self) -> tuple[str, ...]:
        """The inputs that must be given (or have a default), in declared order."""
        return tuple(
            name
            for name, declaration in self.properties.items()
            if name in self.required or declaration.required is True
        )


def defaults_of(inputs: Inputs | None) -> dict[str, Any]:
    """The inputs that have a default, with it; one that is an expression as it is written."""
    declared = inputs.properties if inputs is not None else {}
    return {name: _default(one) for name, one in declared.items() if one.default is not None}


def resolve(inputs: Inputs | None, given: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """The values a run starts with: given ones in their declared type, else the defaults.

    Strings become the declared type (`"3"` is 3 for an integer, JSON for lists and mappings).
    An input that is neither given nor has a default is left out. `owner` is for messages.
    Raises InputError for an unknown or missing input and for a value that does not fit.
    """
    inputs = inputs or Inputs()
    values: dict[str, Any] = {}
    for name, declaration in inputs.properties.items():
        if name in given:
            values[name] = _value(name, declaration, given[name], owner)
        elif declaration.default is not None:
            values[name] = _default(declaration)
    _refuse_unknown(inputs, given, owner)
    missing = [name for name in inputs.required_names if name not in values]
    if missing:
        names = ", ".join(f"'{name}' ({_expected(inputs.properties[name])})" for name in missing)
        raise InputError(f"{owner} needs input {names}: give each as --input name=value")
    extra = {name: value for name, value in given.items() if name not in inputs.properties}
    found = unfit(values | extra, "their mapping")
    if found is not None:
        raise InputError(f"inputs of {owner}: {found}")
    return values | extra


def _refuse_unknown(inputs: Inputs, given: Mapping[str, Any], owner: str) -> None:
    if inputs.additional_properties:
        return
    for name in given:
        if name not in inputs.properties:
            known = ", ".join(inputs.properties)
            advice = f"its inputs are {known}" if known else "it takes none"
            advice = did_you_mean(name, inputs.properties) or advice
            raise InputError(f"unknown input '{name}' of {owner}: {advice}")


def _declared(given: Any) -> Any:
    if given is None:
        return {}
    return given if isinstance(given, dict) else {"default": given}


def _default(declaration: Declaration) -> Any:
    if is_expression(declaration.default):
        return declaration.default
    # Runs must not share a list or mapping that one of them could change.
    return copy.deepcopy(_checked(declaration, declaration.default))


def _value(name: str, declaration: Declaration, given: Any, owner: str) -> Any:
    try:
        return _checked(declaration, given)
    except _Inside as error:
        raise InputError(f"input '{name}' of {owner}: {error}") from error
    except ValueError as error:
        raise InputError(f"input '{name}' of {owner} must be {error}") from error


def _checked(declaration: Declaration, given: Any) -> Any:
    """The value in the declared type; ValueError with `what was expected, found …`."""
    value = _coerced(declaration.value_type, given)
    if not _is_of(declaration.value_type, value):
        raise ValueError(f"{_expected(declaration)}, found {shown(given)}")
    if declaration.enum is not None and not any(_same(value, one) for one in declaration.enum):
        raise ValueError(f"{_expected(declaration)}, found {shown(given)}")
    if isinstance(value, list) and declaration.items is not None:
        item = declaration.items
        return [_inside(f"entry {number}", item, one) for number, one in enumerate(value, 1)]
    if isinstance(value, dict) and declaration.properties is not None:
        return _checked_object(declaration, value)
    return value


def _checked_object(declaration: Declaration, value: dict[str, Any]) -> dict[str, Any]:
    known = declaration.properties or {}
    listed = declaration.required if isinstance(declaration.required, tuple) else ()
    for name, inner in known.items():
        if name not in value and (name in listed or inner.required is True):
            raise ValueError(f"a mapping with '{name}'")
    return {
        name: _inside(f"'{name}'", known[name], one) if name in known else one
        for name, one in value.items()
    }


def _inside(where: str, declaration: Declaration, value: Any) -> Any:
    try:
        return _checked(declaration, value)
    except _Inside as error:
        raise _Inside(f"in {where}, {error}") from error
    except ValueError as error:
        raise _Inside(f"{where} must be {error}") from error


def _expected(declaration: Declaration) -> str:
    if declaration.enum is not None:
        return f"one of {', '.join(shown(one) for one in declaration.enum)}"
    return _PHRASES[declaration.value_type] if declaration.value_type else "a value"


def _coerced(wanted: InputType | None, value: Any) -> Any:
    """A string as the wanted type where it reads as one, everything else as it is."""
    if not isinstance(value, str) or wanted in (None, "string"):
        return value
    try:
        parsed = json.loads(value, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return value
    return parsed if _is_of(wanted, parsed) else value


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _is_of(wanted: InputType | None, value: Any) -> bool:
    if wanted is None:
        return value is not None
    if wanted == "number":
        return _type_of(value) in ("integer", "number") and math.isfinite(value)
    return _type_of(value) == wanted


def _type_of(value: Any) -> InputType | None:
    if isinstance(value, bool):
        return "boolean"
    types: tuple[tuple[type, InputType], ...] = (
        (str, "string"),
        (int, "integer"),
        (float, "number"),
        (list, "array"),
        (dict, "object"),
    )
    return next((name for kind, name in types if isinstance(value, kind)), None)


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is 1.0, but true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
