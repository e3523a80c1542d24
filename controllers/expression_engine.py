"""Evaluates what is more than a plain path, with CEL (the engine of its specification).

The engine is imported at the first expression that needs it. Programs are compiled once and kept;
the context is not. What CEL allocates during an evaluation lives as long as the context it ran on
(a `map` over 1,000 items leaves 17 MB); one that is kept for a run would eat the server. So every
evaluation has its own context, and converts only the entries that its expression names.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from controllers.expression_paths import NAME, ROOTS, ExpressionError, blanked, failure, resolve
from controllers.expression_problems import compile_failure, run_failure
from datastore.plain_values import unfit

if TYPE_CHECKING:
    from cel_expr_python import cel

MAX_TEXT = 1 << 20
"""Characters of a result, written as JSON."""

MAX_LIST_ITEMS = 4_000
"""CEL copies the list for every item it adds: 4,000 take 260 MB for a moment, 9,000 take 1.3 GB."""

_LIST_BUILDER = re.compile(rf"(?<![\w.])((?:{'|'.join(ROOTS)})(?:\.{NAME})*)\.(map|filter)\s*\(")


_BUILDS = re.compile(r"\.(?:map|filter)\s*\(")


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled expression; `reads` holds per root the entries it names, None for all of them."""

    source: str
    compiled: cel.Expression
    reads: Mapping[str, frozenset[str] | None]
    builders: tuple[tuple[str, str], ...]
    """Path and macro of every `map` or `filter` that runs directly over a plain path."""


@lru_cache(maxsize=1_024)
def compile_source(source: str) -> Program:
    """The program of `source`; raises ExpressionError with the position that CEL gives."""
    try:
        compiled = _environment(ROOTS).compile(source)
    except (RuntimeError, MemoryError) as error:
        raise compile_failure(source, str(error)) from None
    blank = blanked(source)
    reads = {root: _entries(blank, root) for root in ROOTS if _is_read(source, blank, root)}
    return Program(source, compiled, reads, tuple(_LIST_BUILDER.findall(blank)))


def evaluate(source: str, roots: Mapping[str, Mapping[str, Any]]) -> Any:
    """The result as plain data that can be written as JSON; raises ExpressionError.

    CEL stops by itself after 10,000 iterations. It holds the interpreter while it runs, so even in
    a thread an evaluation near the limits is felt; see MAX_LIST_ITEMS.
    """
    try:
        return _evaluate(compile_source(source), roots)
    except RecursionError:
        raise failure(source, "reads or gives something nested too deeply") from None


def _evaluate(program: Program, roots: Mapping[str, Mapping[str, Any]]) -> Any:
    source = program.source
    _refuse_long_lists(program, roots)
    data = {root: _entries_of(roots[root], names) for root, names in program.reads.items()}
    if _holds_nul(data):
        # The binding hands text over as C strings: it would silently lose what follows.
        raise failure(source, "reads text with a NUL character, which CEL cannot hold")
    try:
        activation = _environment(ROOTS).Activation(data)
        value = program.compiled.eval(activation)
    except (RuntimeError, MemoryError) as error:
        raise run_failure(source, str(error), roots) from None
    try:
        result = value.plain_value()
    except (TypeError, SystemError):
        # The binding cannot express an optional in Python, alone or inside a list.
        raise failure(source, "evaluates to an optional; end it with .orValue(…)") from None
    if value.type().name() == "ERROR":
        raise run_failure(source, str(result), roots)
    return _checked(source, result)


@lru_cache(maxsize=1 + len(ROOTS))
def _environment(roots: tuple[str, ...]) -> cel.Env:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_optional, ext_strings

    return cel.NewEnv(
        variables=dict.fromkeys(roots, cel.Type.DYN),
        extensions=[ext_strings.ExtStrings(), ext_optional.ExtOptional()],
    )


def _is_read(source: str, blank: str, root: str) -> bool:
    """Whether `root` is meant, not a loop variable or a field of that name: CEL must miss it."""
    if not re.search(rf"\b{root}\b", blank):
        return False
    others = tuple(name for name in ROOTS if name != root)
    try:
        _environment(others).compile(source)
    except RuntimeError:
        return True
    return False


def _entries(blank: str, root: str) -> frozenset[str] | None:
    uses = re.findall(rf"(?<!\w){root}\b(?:\s*\.\s*\??\s*({NAME})\b(?!\s*\())?", blank)
    return None if "" in uses else frozenset(uses)


def _entries_of(root: Mapping[str, Any], names: frozenset[str] | None) -> dict[str, Any]:
    if names is None:
        return dict(root)
    return {name: root[name] for name in names if name in root}


def _holds_nul(value: Any) -> bool:
    match value:
        case str():
            return "\0" in value
        case dict():
            return any(_holds_nul(key) or _holds_nul(item) for key, item in value.items())
        case list():
            return any(_holds_nul(item) for item in value)
    return False


def _longest_list(value: Any) -> int:
    match value:
        case list():
            return max([len(value), *map(_longest_list, value)])
        case dict():
            return max([len(value), *map(_longest_list, value.values())])
    return 0


def _refuse_long_lists(program: Program, roots: Mapping[str, Any]) -> None:
    if "data" in program.reads and _BUILDS.search(blanked(program.source)):
        # Which list of an output is meant cannot be told from the text.
        longest = _longest_list(roots["data"])
        if longest > MAX_LIST_ITEMS:
            limit = f"`map` and `filter` take at most {MAX_LIST_ITEMS:,} items"
            raise failure(program.source, f"{limit}, the output holds {longest:,} in one list")
    for path, macro in program.builders:
        try:
            value = resolve(program.source, tuple(path.split(".")), roots)
        except ExpressionError:
            continue  # It may stand in a branch that is never taken; CEL decides.
        if isinstance(value, list | Mapping) and len(value) > MAX_LIST_ITEMS:
            limit = f"`{macro}` takes at most {MAX_LIST_ITEMS:,} items, {path} has {len(value):,}"
            raise failure(program.source, f"{limit}; use forEach with a guard instead")


def _checked(source: str, result: Any) -> Any:
    value = _plain(source, result)
    length = len(json.dumps(value, ensure_ascii=False))
    if length > MAX_TEXT:
        problem = f"evaluates to {length:,} characters; the limit is {MAX_TEXT:,}"
        raise failure(source, problem)
    found = unfit(value)
    if found is not None:
        raise failure(source, f"in what it evaluates to, {found}")
    return value


def _plain(source: str, value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case list():
            return [_plain(source, item) for item in value]
        case dict():
            # CEL forgets the order of maps and answers in a random one: sorted is the same twice.
            named = {_text(source, key): _plain(source, item) for key, item in value.items()}
            return dict(sorted(named.items()))
        case float():
            raise failure(source, f"evaluates to {value}, which is not a finite number")
    return _text(source, value)


def _text(source: str, value: Any) -> str:
    """Map keys and the types that JSON lacks, as CEL's own `string()` writes them."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case bytes() | bytearray():
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise failure(source, "evaluates to bytes that are not UTF-8") from None
        case datetime():
            stamp = value.astimezone(UTC).replace(tzinfo=None)
            precision = "milliseconds" if stamp.microsecond % 1_000 == 0 else "microseconds"
            return stamp.isoformat(timespec=precision if stamp.microsecond else "seconds") + "Z"
        case timedelta():
            return f"{value.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"
    raise failure(source, f"evaluates to a {type(value).__name__}, which is not plain data")
