"""`${{ … }}` in workflows and definitions: templates are read once and rendered against a scope.

A string that is one whole expression keeps the type of its value; embedded ones become text. Plain
paths are resolved here and now; everything else is CEL or reads outputs, which is blocking work:
ask `needs_thread` and use one. What asks for a secret stays as it is, as a SecretText.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from controllers import expression_engine
from controllers.expression_paths import (
    OPEN,
    ROOTS,
    VAULT,
    ExpressionError,
    Slot,
    failure,
    resolve,
    split,
    unknown_root,
)
from controllers.expression_references import (
    DataRef,
    ReadData,
    SecretText,
    asks_for_secret,
    secret_count,
)
from datastore.errors import SwampError

__all__ = [
    "ExpressionError",
    "Scope",
    "Template",
    "check",
    "compile_template",
    "is_expression",
    "needs_thread",
    "render",
    "render_text",
]

MAX_TEXT = expression_engine.MAX_TEXT


def _no_outputs(ref: DataRef) -> Any:
    raise ExpressionError("outputs cannot be read here")


@dataclass(frozen=True, slots=True)
class Scope:
    """What expressions can see. The mappings hold plain data and must not change meanwhile."""

    inputs: Mapping[str, Any] = field(default_factory=dict)
    self_: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    read_data: ReadData = _no_outputs

    def with_self(self, item: Mapping[str, Any]) -> Scope:
        """The same scope around another `self`; costs nothing per entry of the other roots."""
        return replace(self, self_=item)

    def roots(self) -> dict[str, Mapping[str, Any]]:
        """The mappings by the name that expressions use."""
        roots = {"inputs": self.inputs, "self": self.self_, "env": self.env, "run": self.run}
        return {**roots, "data": {}}


@dataclass(frozen=True, slots=True)
class Template:
    """A text taken apart: literal pieces and expressions, each known to compile."""

    parts: tuple[str | Slot, ...]
    roots: frozenset[str]
    """The roots that its expressions read."""
    plain: bool
    """No expression, or only plain paths: rendering is a few look-ups, unless it reads outputs."""


@lru_cache(maxsize=1_024)
def compile_template(text: str) -> Template:
    """`text` taken apart, every expression compiled; raises ExpressionError for a bad one."""
    parts = split(text)
    roots: set[str] = set()
    for slot in _slots(parts):
        roots |= _roots_of(slot)
    return Template(parts, frozenset(roots), all(slot.path for slot in _slots(parts)))


def render(value: Any, scope: Scope) -> Any:
    """A copy of `value`, every expression in its strings evaluated; keys stay as they are.

    Values that a plain path leads to are shared, not copied. Raises ExpressionError. Blocks while
    CEL works or an output is read, if `needs_thread(value)`.
    """
    match value:
        case str():
            return _render_string(value, scope)
        case Mapping():
            return {key: render(item, scope) for key, item in value.items()}
        case list() | tuple():
            return [render(item, scope) for item in value]
    return value


def render_text(text: str, scope: Scope) -> str:
    """`text` rendered, also when it is one whole expression; raises ExpressionError."""
    if OPEN not in text:
        return text
    pieces = [_text_of_part(part, scope) for part in compile_template(text).parts]
    asked = sum(secret_count(piece) for piece in pieces if isinstance(piece, SecretText))
    rendered = _bounded(text, "".join(pieces))
    if secret_count(rendered) != asked:
        raise _smuggled(text)
    return SecretText(rendered) if asked else rendered


def is_expression(text: str) -> bool:
    """Whether the whole string is one expression; a malformed one is not."""
    parts = _split_or_nothing(text)
    return len(parts) == 1 and isinstance(parts[0], Slot)


def needs_thread(value: Any) -> bool:
    """Whether any string inside `value` holds more than plain paths; cheap, compiles nothing."""
    return any(
        slot.path is None or slot.refs
        for _, text in _strings(value, "")
        for slot in _slots(_split_or_nothing(text))
    )


def roots_read(value: Any) -> frozenset[str]:
    """The roots that the expressions inside `value` read; ExpressionError for a bad one."""
    texts = (text for _, text in _strings(value, ""))
    return frozenset[str]().union(*(compile_template(text).roots for text in texts))


def check(value: Any, roots_allowed: Collection[str]) -> list[str]:
    """The problems of all expressions inside `value`, each with its place; evaluates nothing."""
    problems = []
    for where, text in _strings(value, ""):
        try:
            refused = compile_template(text).roots - set(roots_allowed)
        except ExpressionError as error:
            problems.append(f"{where}{error}")
            continue
        available = ", ".join(root for root in (*ROOTS, VAULT) if root in roots_allowed)
        problems += [
            f"{where}`{root}` is not available here; available: {available or 'nothing'}"
            for root in sorted(refused)
        ]
    return problems


def _render_string(text: str, scope: Scope) -> Any:
    if OPEN not in text:
        return text
    parts = compile_template(text).parts
    if len(parts) == 1 and isinstance(parts[0], Slot):
        return _evaluate(parts[0], scope)
    return render_text(text, scope)


def _evaluate(slot: Slot, scope: Scope) -> Any:
    if slot.secret:
        return SecretText(f"${{{{ {slot.source} }}}}")
    value = _value(slot, scope)
    if asks_for_secret(value):
        raise _smuggled(slot.source)
    return value


def _value(slot: Slot, scope: Scope) -> Any:
    roots = scope.roots()
    try:
        roots["data"] = {ref.key: scope.read_data(ref) for ref in slot.refs}
    except SwampError as error:
        raise failure(slot.source, str(error)) from None
    if slot.path is not None:
        return resolve(slot.source, slot.path, roots)
    return expression_engine.evaluate(slot.source, roots)


def _smuggled(text: str) -> ExpressionError:
    problem = "what is put in here asks for a secret; only workflows and models may, by themselves"
    return ExpressionError(f"`{text[:80]}`: {problem}")


def _text_of_part(part: str | Slot, scope: Scope) -> str:
    if isinstance(part, str):
        return part
    match _evaluate(part, scope):
        case None:
            raise failure(part.source, "evaluates to nothing (null), which has no text")
        case str(text):
            return text
        case value:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _bounded(template: str, text: str) -> str:
    if len(text) > MAX_TEXT:
        problem = f"renders to {len(text):,} characters; the limit is {MAX_TEXT:,}"
        raise ExpressionError(f"`{template[:80]}` {problem}")
    return text


def _roots_of(slot: Slot) -> frozenset[str]:
    if slot.secret:
        return frozenset({VAULT})
    if slot.path is None:
        return frozenset(expression_engine.compile_source(slot.source).reads)
    root = str(slot.path[0])
    if root not in ROOTS:
        raise unknown_root(slot.source, root)
    return frozenset({root})


def _slots(parts: tuple[str | Slot, ...]) -> list[Slot]:
    return [part for part in parts if isinstance(part, Slot)]


def _split_or_nothing(text: str) -> tuple[str | Slot, ...]:
    try:
        return split(text)
    except ExpressionError:
        return ()


def _strings(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Every string that holds an expression, with its place as `a.b[0]: ` ('' at the top)."""
    match value:
        case str():
            if OPEN in value:
                yield (f"{where}: " if where else ""), value
        case Mapping():
            for key, item in value.items():
                yield from _strings(item, f"{where}.{key}" if where else str(key))
        case list() | tuple():
            for index, item in enumerate(value):
                yield from _strings(item, f"{where}[{index}]")
