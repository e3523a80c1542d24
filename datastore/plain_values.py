"""Values that a record, its file and a message can hold: all others are refused at the door.

JSON knows lists that are nested without end, Python's reader of it NaN and numbers of any size.
Taken in, such a value stops whatever has to be written after it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from datastore.unicode_text import WHAT, is_unicode, made_unicode

MAX_DEPTH = 64


def too_deep(levels: int) -> str:
    """What is wrong with a value that is nested deeper than that."""
    return f"is nested deeper than {levels} levels"


TOO_DEEP = too_deep(MAX_DEPTH)
INT_MIN = -(1 << 63)
INT_MAX = (1 << 63) - 1

_LONGEST = 20
"""Characters of a whole number that fits 64 bits; a longer one does not."""
_SHOWN = 60
"""Characters of the way to a value that are told."""

# What is followed by a quote is the end of a text. Possessive: no digit is looked at twice.
_PERHAPS_UNFIT = re.compile(
    r"\\u[dD][89a-fA-F]|(?<![0-9])[0-9]{19,}+(?!\")|[0-9][eE]\+?[0-9]{3,}+(?!\")"
)
_PERHAPS_TOO_LARGE = re.compile(rb"(?<![0-9])[0-9]{19,}+(?!\")")


class Unfit(ValueError):
    """JSON, but of a value that cannot be kept; says which and why."""


def from_json(text: str) -> Any:
    """The value of a JSON text; Unfit where it cannot be kept, another ValueError for no JSON."""
    try:
        value = _loaded(text)
    except RecursionError:
        raise Unfit(f"it {TOO_DEEP}") from None
    # To look at each value would take longer than to read them.
    perhaps = text.count("[") + text.count("{") > MAX_DEPTH and not _is_flat(value)
    found = unfit(value) if perhaps or _PERHAPS_UNFIT.search(text) else None
    if found is not None:
        raise Unfit(found)
    return value


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        raise
    except ValueError:
        # A number of more digits than Python makes one of (4,300), or no JSON all the same. To
        # look at each number at once would make all others slow.
        return json.loads(text, parse_constant=_refuse_constant, parse_int=_whole_number)


def _whole_number(digits: str) -> int:
    return int(digits) if len(digits) <= _LONGEST else INT_MAX + 1


def unfit(value: Any, name: str = "it") -> str | None:
    """What of plain JSON values cannot be kept, and why: `a.b[0] is nan, no finite number`.

    None for what can be. `name` is what the value as a whole is called.
    """
    if _is_fit(value):
        return None
    for at, one, depth in _parts(value):
        problem = _problem(one, depth)
        if problem is not None:
            where = f"{at[:_SHOWN]}…" if len(at) > _SHOWN else at
            return f"{made_unicode(where) or name} {problem}"
    return None


def made_fit(value: Any) -> Any:
    """Plain JSON values, others as text: for what has to be written whatever it holds."""
    if isinstance(value, Mapping):
        return {made_unicode(key): made_fit(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [made_fit(one) for one in value]
    return str(value) if _is_no_number(value) else made_unicode(value)


def _is_fit(value: Any) -> bool:
    """Whether it is certain to be; at the cost of writing it as JSON."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    if _PERHAPS_TOO_LARGE.search(text):
        return False
    return text.count(b"[") + text.count(b"{") <= MAX_DEPTH or _is_flat(value)


def _is_flat(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, (dict, list, tuple))
        ]
        if not level:
            return True
    return False


def _parts(value: Any) -> Iterator[tuple[str, Any, int]]:
    """Every value inside, and every name: where it is, what it is, and how deep."""
    open_: list[Iterator[tuple[str, Any, int]]] = [iter([("", value, 1)])]
    while open_:
        for at, one, depth in open_[-1]:
            yield at, one, depth
            if depth <= MAX_DEPTH and isinstance(one, (dict, list, tuple)):
                open_.append(_inside(at, one, depth))
                break
        else:
            open_.pop()


def _inside(at: str, value: Any, depth: int) -> Iterator[tuple[str, Any, int]]:
    # Cut on the way: of long names in long lists, whole ways would take more room than the value.
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"a name in {at}" if at else "a name", key, depth
            name = str(key)[: _SHOWN + 1]
            yield f"{at}.{name}"[: _SHOWN + 1] if at else name, inner, depth + 1
    else:
        for number, inner in enumerate(value):
            yield f"{at}[{number}]"[: _SHOWN + 1], inner, depth + 1


def _problem(value: Any, depth: int) -> str | None:
    if isinstance(value, str):
        return None if is_unicode(value) else WHAT
    if isinstance(value, (dict, list, tuple)):
        return TOO_DEEP if depth > MAX_DEPTH else None
    if not _is_no_number(value):
        return None
    if isinstance(value, float):
        return f"is {value}, no finite number"
    return "does not fit 64 bits: quote it if it is an id"


def _is_no_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, int) and not INT_MIN <= value <= INT_MAX


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")
