"""From pydantic's errors to sentences: what is wrong, in which step, and where in the file.

`find_problems` tells every structural problem of a document, in the order of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from datastore.definitions.schema import Written
from datastore.definitions.suggest import did_you_mean
from datastore.errors import InvalidFile, Position
from datastore.yaml_loader import Document

W = TypeVar("W", bound=Written)
Path = tuple[str | int, ...]
_SHOWN_MAX_LENGTH = 40


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a file."""

    text: str
    position: Position | None


def find_problems(root: type[W], document: Document) -> tuple[W | None, list[Problem]]:
    """The definition, or None and what is wrong with the document, sorted by position."""
    try:
        return root.model_validate(document.value), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    problems = [_problem(root, document, detail) for detail in details]
    problems.sort(key=_by_position)
    return None, problems


def invalid(path: str, problems: list[Problem]) -> InvalidFile:
    """The error for a file with these problems: the first in full, the others counted."""
    first, more = problems[0], len(problems) - 1
    rest = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
    return InvalidFile(path, first.text + rest, first.position)


def _by_position(problem: Problem) -> tuple[int, int]:
    where = problem.position
    return (where.line, where.column) if where else (0, 0)


def _problem(root: type[Written], document: Document, detail: ErrorDetails) -> Problem:
    context = detail.get("ctx", {})
    path = (*detail["loc"], *context.get("keys", ()))
    text = _sentence(root, document.value, path, detail)
    return Problem(text, document.position(*_as_written(document.value, path)))


def _as_written(value: Any, path: Path) -> Path:
    """Where the file has it: a flat map of inputs is validated as if it had `properties`."""
    if path[:2] == ("inputs", "properties"):
        inputs = value["inputs"]
        if isinstance(inputs, dict) and "properties" not in inputs:
            return ("inputs", *path[2:])
    return path


def _sentence(root: type[Written], value: Any, path: Path, detail: ErrorDetails) -> str:
    kind = detail["type"]
    model, where, inner = _place(root, value, path)
    if kind == "missing":
        return f"{where} needs '{path[-1]}'"
    if kind == "extra_forbidden":
        return _unknown_key(model, str(path[-1]), where)
    return f"{_subject(inner, where)} {predicate(detail)}"


def predicate(detail: ErrorDetails) -> str:
    """`must be …, found …`, in pydantic's words where we have none."""
    kind = detail["type"]
    return _PREDICATES[kind](detail) if kind in _PREDICATES else detail["msg"]


def _subject(inner: Path, where: str) -> str:
    if not inner:
        return where
    dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in inner)
    return f"'{dotted.lstrip('.')}' of {where}"


def _unknown_key(model: type[Written], key: str, where: str) -> str:
    if key in model.not_yet:
        return f"'{key}' in {where} is not supported yet"
    valid = [str(field.alias) for field in model.model_fields.values()]
    advice = (
        model.hints.get(key)
        or did_you_mean(key, valid)
        or f"valid keys are {', '.join(sorted(valid))}"
    )
    return f"unknown key '{key}' in {where}: {advice}"


def _place(root: type[Written], value: Any, path: Path) -> tuple[type[Written], str, Path]:
    """The innermost thing on the way that has keys: its model, its name, the rest of the path."""
    model, where, rest = root, _label(root, value, None), path
    annotation: Any = root
    for depth, part in enumerate(path):
        annotation = _annotation_below(annotation, part)
        value = _value_below(value, part)
        if not (isinstance(annotation, type) and issubclass(annotation, Written)):
            continue
        if not isinstance(value, dict):
            break
        named = part if isinstance(part, str) and depth and path[depth - 1] == "properties" else ""
        where = _label(annotation, {"name": named} if named else value, where)
        model, rest = annotation, path[depth + 1 :]
    return model, where, rest


def _label(model: type[Written], value: Any, outer: str | None) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    if isinstance(name, str) and name:
        return f"{model.title} '{name}'"
    return f"{model.title} of {outer}" if outer else f"the {model.title}"


def _annotation_below(annotation: Any, part: str | int) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, Written):
        fields = annotation.model_fields.values()
        found = next((field.annotation for field in fields if field.alias == part), None)
    else:
        arguments = get_args(annotation) or (None,)
        found = arguments[0] if isinstance(part, int) else arguments[-1]
    return _bare(found)


def _bare(annotation: Any) -> Any:
    """The type itself, without `| None` and `Annotated`."""
    arguments = get_args(annotation)
    if type(None) in arguments:
        return _bare(next(one for one in arguments if one is not type(None)))
    return _bare(arguments[0]) if get_origin(annotation) is Annotated else annotation


def _value_below(value: Any, part: str | int) -> Any:
    if isinstance(value, dict):
        if part == "properties" and part not in value:
            return value  # A flat map of inputs stands for its own properties.
        return value.get(part)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def shown(value: Any) -> str:
    """A value as a message shows it: short, and never the inside of a structure."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    text = str(value)
    if len(text) > _SHOWN_MAX_LENGTH:
        text = text[:_SHOWN_MAX_LENGTH] + "…"
    return f"'{text}'" if isinstance(value, str) else text


def _must_be(expected: str) -> Callable[[ErrorDetails], str]:
    return lambda detail: f"must be {expected}, found {shown(detail['input'])}"


def _must_be_string(detail: ErrorDetails) -> str:
    value = detail["input"]
    advice = ": quote it" if isinstance(value, bool | int | float) else ""
    return f"must be a string, found {shown(value)}{advice}"


def _must_be_one_of(detail: ErrorDetails) -> str:
    expected = detail["ctx"]["expected"]
    words = expected.replace("'", "").replace(" or ", ", ").split(", ")
    near = did_you_mean(str(detail["input"]), words)
    return f"must be {expected}, found {shown(detail['input'])}" + (f": {near}" if near else "")


def _limit(words: str, key: str) -> Callable[[ErrorDetails], str]:
    return lambda detail: f"must be {words} {detail['ctx'][key]:g}, found {shown(detail['input'])}"


_PREDICATES: dict[str, Callable[[ErrorDetails], str]] = {
    "string_type": _must_be_string,
    "int_type": _must_be("a whole number"),
    "float_type": _must_be("a plain number"),
    "finite_number": _must_be("a plain number"),
    "bool_type": _must_be("true or false"),
    "dict_type": _must_be("a mapping"),
    "model_type": _must_be("a mapping"),
    "tuple_type": _must_be("a list"),
    "literal_error": _must_be_one_of,
    "greater_than": _limit("more than", "gt"),
    "greater_than_equal": _limit("at least", "ge"),
    "less_than_equal": _limit("at most", "le"),
    "string_too_short": lambda detail: "must not be empty",
}
