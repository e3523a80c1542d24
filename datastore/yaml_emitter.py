"""A small YAML emitter of plain JSON values, read the same by every parser of YAML 1.1 and 1.2.

A string is written plain only where no parser can take it for anything else, as a literal block
where it has several clean lines, and as a JSON string otherwise. Keys keep their order and equal
documents give equal bytes, so that diffs are small.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from datastore.plain_values import INT_MAX, INT_MIN, made_fit

_PLAIN = re.compile(r"[A-Za-z/](?:[A-Za-z0-9 _./-]*[A-Za-z0-9_./-])?\Z")
_WORDS = frozenset(
    ("y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan", "inf")
)
_HEX = "0123456789abcdefABCDEF-"
_DIGIT = re.compile("[0-9]")
# What JSON leaves as it is, and some parser of YAML refuses or takes for the end of a line.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_NO_BLOCK = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]"
    r"|\A\n|(?:^|\n)\t|[ \t](?:\n|\Z)"
)
# Parsers look no further than 1,024 characters for the colon of a key without "? ".
_SHORT_KEY = 1_000
_CACHED_MAX = 64
"""Characters of a text that is remembered in its quoted form."""


def emit(document: Mapping[str, Any]) -> str:
    """The YAML of a mapping of plain JSON values, with a final newline.

    ValueError for what no JSON holds (NaN, infinities, lone surrogates) or the loader refuses
    (numbers beyond 64 bits); TypeError for other types and for keys that are no strings.
    """
    if not document:
        return "{}\n"
    out: list[str] = []
    _emit_mapping(document, "", out)
    return "".join(out)


def emit_readable(document: Mapping[str, Any]) -> str:
    """As `emit`, values that no file can hold as text: for what is written whatever it holds."""
    try:
        return emit(document)
    except ValueError:
        return emit(made_fit(document))


def emit_scalar(value: str | int | float | bool | None) -> str:
    """One scalar on one line, fit for block and flow style; errors as of `emit`."""
    if isinstance(value, str):
        return _text(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise ValueError(f"{value} does not fit 64 bits")
        return repr(value)
    if isinstance(value, float):
        return _float(value)
    raise TypeError(f"{type(value).__name__} is no plain JSON value")


def _emit_mapping(mapping: Mapping[str, Any], indent: str, out: list[str]) -> None:
    """Each key on a line; the first one goes where the caller has already indented."""
    lead = ""
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise TypeError(f"keys must be strings, not {type(key).__name__}")
        name = _cached_text(key) if len(key) <= _CACHED_MAX else _one_line(key)
        if len(name) > _SHORT_KEY:
            name = f"? {name}\n{indent}"
        if type(value) is str and len(value) <= _CACHED_MAX and "\n" not in value:
            # Nearly everything in a record.
            out.append(f"{lead}{name}: {_cached_text(value)}\n")
        else:
            out.append(f"{lead}{name}:")
            _emit_value(value, indent, out)
        lead = indent


def _emit_value(value: Any, indent: str, out: list[str]) -> None:
    """The value of a key, from behind its colon to the end of the last line."""
    if isinstance(value, str):
        block = _block(value, indent) if "\n" in value else None
        out.append(f" {block or _text(value)}\n")
    elif _is_mapping(value) and value:
        out.append(f"\n{indent}  ")
        _emit_mapping(value, indent + "  ", out)
    elif isinstance(value, (list, tuple)) and value:
        out.append(f"\n{indent}  ")
        _emit_list(value, indent + "  ", out)
    else:
        out.append(f" {_small(value)}\n")


def _emit_list(items: list[Any] | tuple[Any, ...], indent: str, out: list[str]) -> None:
    lead = ""
    for item in items:
        if _is_mapping(item) and item:
            out.append(f"{lead}- ")
            _emit_mapping(item, indent + "  ", out)
        elif isinstance(item, (list, tuple)) and item:
            out.append(f"{lead}- ")
            _emit_list(item, indent + "  ", out)
        else:
            out.append(f"{lead}-")
            _emit_value(item, indent, out)
        lead = indent


def _is_mapping(value: Any) -> bool:
    # The first look spares nearly all the second one, which is slow.
    return isinstance(value, dict) or isinstance(value, Mapping)  # noqa: SIM101


def _small(value: Any) -> str:
    """Anything that is neither text nor has parts."""
    if _is_mapping(value):
        return "{}"
    return "[]" if isinstance(value, (list, tuple)) else emit_scalar(value)


def _text(text: str) -> str:
    # Long texts are rarely written twice and would only push the short ones out of the cache.
    return _cached_text(text) if len(text) <= _CACHED_MAX else _one_line(text)


def _one_line(text: str) -> str:
    if _PLAIN.match(text) and text.lower() not in _WORDS and not _looks_like_id(text):
        return text
    text.encode()  # Refuses lone surrogates: UnicodeEncodeError is a ValueError.
    quoted = json.dumps(text, ensure_ascii=False)
    return _ESCAPED.sub(lambda odd: f"\\u{ord(odd[0]):04x}", quoted)


_cached_text = lru_cache(maxsize=8192)(_one_line)


def _looks_like_id(text: str) -> bool:
    """Hex digits and dashes with a digit among them: quoted always, not only when a digit leads."""
    return not text.strip(_HEX) and _DIGIT.search(text) is not None


def _block(text: str, indent: str) -> str | None:
    """The text as a literal block below `indent`, None where a block could change it."""
    body = text.rstrip("\n")
    if not body or _NO_BLOCK.search(body):
        return None
    ends = len(text) - len(body)
    chomping = ("-", "", "+")[min(ends, 2)]
    # Without the indicator the spaces of the first line would count as indentation.
    indicator = "2" if body[0] == " " else ""
    margin = f"\n{indent}  "
    lines = (margin + line if line else "\n" for line in body.split("\n"))
    return f"|{indicator}{chomping}{''.join(lines)}" + "\n" * (ends - 1)


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no number that JSON or YAML can hold")
    text = repr(value)
    mantissa, exponent, power = text.partition("e")
    # YAML 1.1 sees a number in an exponent form only when it has a point.
    return text if not exponent or "." in mantissa else f"{mantissa}.0e{power}"
