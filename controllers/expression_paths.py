"""Reads `${{ … }}` out of text and resolves plain paths, without any engine.

A plain path (`inputs.hosts[0]["name"]`) is most of what people write; resolved here it costs a few
dictionary look-ups, keeps the order of maps, and can say which keys there are instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from controllers.expression_references import DataRef, as_written, is_vault_call, rewritten
from datastore.errors import SwampError

ROOTS = ("inputs", "self", "env", "run", "data")
VAULT = "vault"
LATER_ROOTS = ("model", "file", "workers", "webhook", "workflowRunId")
"""Known from the original system, but nothing here fills them yet."""

MAX_SOURCE = 4_096
MAX_MESSAGE = 300
OPEN = "${{"

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_STRING = (
    r"""\b(?:[rR][bB]?|[bB][rR])(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\n]*"|'[^'\n]*')"""
    r"""|\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}"""
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
)
# A comment hides quotes, but never the end of the expression: `${{ a // it's }}` is complete.
_COMMENT = r"//(?:(?!\}\})[^\n])*"
_OPAQUE = re.compile(f"{_STRING}|{_COMMENT}", re.DOTALL)
_BRACES = re.compile(f"{_STRING}|{_COMMENT}|[{{}}]", re.DOTALL)

_KEY = r"""\s*\[\s*(?:(?P<index>\d{1,9})|"(?P<double>[^"\\\n]*)"|'(?P<single>[^'\\\n]*)')\s*\]"""
_STEP = re.compile(rf"\s*\.\s*(?P<name>{NAME})|{_KEY}")
_ROOT = re.compile(NAME)
# CEL's grammar knows these as tokens, also after a dot; they are left to CEL to judge.
_RESERVED = frozenset({"true", "false", "null", "in"})

Path = tuple[str | int, ...]


class ExpressionError(SwampError):
    """An expression that cannot be read or evaluated; the message holds its text and why."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One `${{ … }}` of a text; `path` is None where it takes CEL to evaluate it.

    References to outputs are plain paths in `source`. `secret` ones are never evaluated.
    """

    source: str
    path: Path | None
    refs: tuple[DataRef, ...] = ()
    secret: bool = False


def failure(source: str, problem: str) -> ExpressionError:
    """The error for an expression, short enough to stay on one screen line or three."""
    shown = " ".join(as_written(source).split())
    shown = shown if len(shown) <= 80 else f"{shown[:79]}…"
    message = f"${{{{ {shown} }}}}: {problem}"
    return ExpressionError(message if len(message) <= MAX_MESSAGE else f"{message[:299]}…")


def split(text: str) -> tuple[str | Slot, ...]:
    """The literal pieces and expressions of `text`, in order.

    Raises ExpressionError for an expression that is unterminated, empty or too long.
    """
    parts: list[str | Slot] = []
    at = 0
    while (start := text.find(OPEN, at)) >= 0:
        if start > at:
            parts.append(text[at:start])
        end = _end(text, start)
        parts.append(_slot(text[start + len(OPEN) : end].strip()))
        at = end + 2
    if at < len(text):
        parts.append(text[at:])
    return tuple(parts)


def blanked(source: str) -> str:
    """`source` with string literals and comments overwritten: only names and operators remain."""
    return _OPAQUE.sub(lambda found: '"' * len(found[0]), source)


def unknown_root(source: str, root: str) -> ExpressionError:
    """The error for a name that no expression can start with."""
    available = ", ".join((*ROOTS, VAULT))
    if root == VAULT:
        problem = "a secret stands alone: write ${{ vault.get('vault', 'key') }}, with literals"
        return failure(source, problem)
    if root in LATER_ROOTS:
        problem = f"`{root}` is not available yet in this version; available: {available}"
        return failure(source, problem)
    hyphenated = re.search(rf"({NAME})-{re.escape(root)}\b", blanked(source))
    if hyphenated:
        problem = f'a name with a hyphen goes into brackets: ["{hyphenated[0]}"]'
        return failure(source, problem)
    close = get_close_matches(root, ROOTS, 1)
    hint = f"did you mean `{close[0]}`? " if close else ""
    return failure(source, f"there is no `{root}`; {hint}available: {available}")


def resolve(source: str, path: Path, roots: Mapping[str, Any]) -> Any:
    """The value at `path`; raises ExpressionError that lists what is there instead."""
    walked, value = str(path[0]), roots[str(path[0])]
    for key in path[1:]:
        if isinstance(value, Mapping):
            if key not in value:
                raise failure(source, f"{walked} has no {key!r}; {_keys(value, key)}")
        elif not isinstance(value, list | tuple):
            raise failure(source, f"{walked} is {_kind(value)}, so it has no {key!r}")
        elif not isinstance(key, int):
            raise failure(source, f"{walked} is a list, so it has no {key!r}; use an index")
        elif key >= len(value):
            raise failure(source, f"{walked} has no [{key}]; it has {len(value)} items")
        value = value[key]
        walked = f"{walked}[{key}]" if isinstance(key, int) else f"{walked}.{key}"
    return value


def _end(text: str, start: int) -> int:
    depth = 0
    for token in _BRACES.finditer(text, start + len(OPEN)):
        if token[0] == "{":
            depth += 1
        elif token[0] == "}" and depth:
            depth -= 1
        elif token[0] == "}" and text.startswith("}}", token.start()):
            return token.start()
    excerpt = text[start : start + 40]
    raise ExpressionError(f"`{excerpt}` at character {start + 1} has no closing `}}}}`")


def _slot(source: str) -> Slot:
    if not source:
        raise failure(source, "the expression is empty")
    if len(source) > MAX_SOURCE:
        raise failure(source, f"it has {len(source):,} characters; the limit is {MAX_SOURCE:,}")
    if is_vault_call(source):
        return Slot(source, None, secret=True)
    try:
        source, refs = rewritten(source, blanked(source))
    except ValueError as error:
        raise failure(source, str(error)) from None
    path = _parse_path(source)
    if path is not None and path[0] == "data" and not refs:
        problem = "`data` has latest('model', 'name') and version('model', 'name', 3)"
        raise failure(source, problem)
    return Slot(source, path, refs)


def _parse_path(source: str) -> Path | None:
    """The keys of a plain path, root first; None for anything that is more than a path."""
    root = _ROOT.match(source)
    if root is None:
        return None
    path: list[str | int] = [root[0]]
    at = root.end()
    while at < len(source):
        step = _STEP.match(source, at)
        if step is None:
            return None
        at = step.end()
        index = step["index"]
        named = (step[group] for group in ("name", "double", "single"))
        path.append(int(index) if index else next(key for key in named if key is not None))
    bare = {path[0], *re.findall(rf"\.\s*({NAME})", blanked(source))}
    return None if bare & _RESERVED else tuple(path)


def _keys(value: Mapping[Any, Any], missing: str | int) -> str:
    if not value:
        return "it is empty"
    names = [str(key) for key in value]
    close = get_close_matches(str(missing), names, 1)
    hint = f"did you mean {close[0]!r}? " if close and len(names) > 1 else ""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"{hint}it has: {', '.join(names[:10])}{more}"


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
    return f"a {type(value).__name__}"
