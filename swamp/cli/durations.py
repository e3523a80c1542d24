"""Durations as people type them: `30`, `500ms`, `30s`, `5m`, `2h`, `1d`, `1w`, `1h30m`."""

from __future__ import annotations

import re

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+)(ms|[smhdw])")
_WHOLE = re.compile(r"(?:\d+(?:ms|[smhdw]))+\Z")
EXPECTED = "expected a duration such as 30s, 5m, 2h, 1d or 1h30m (a bare number is seconds)"
MAX_S = 100 * 365 * 86400.0


def parse_duration(text: str, *, zero: bool = False) -> float:
    """The seconds that `text` means; ValueError says what was expected.

    `zero` allows 0, which then has a meaning of its own (mostly: for ever).
    """
    given = text.strip().lower()
    if given.isascii() and given.isdigit():
        given += "s"
    if not given.isascii() or not _WHOLE.match(given):
        raise ValueError(f"'{text}': {EXPECTED}")
    seconds = sum(int(count) * _UNIT_S[unit] for count, unit in _PART.findall(given))
    if seconds == 0 and not zero:
        raise ValueError(f"'{text}': must be more than 0")
    if seconds > MAX_S:
        raise ValueError(f"'{text}': is longer than 100 years")
    return seconds


def show_duration(seconds: float) -> str:
    """`11.9s` below a minute, then `2m 03s`, `1h 02m 03s`."""
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m {rest:02d}s" if hours else f"{minutes}m {rest:02d}s"


def show_age(milliseconds: int) -> str:
    """The age of something in one unit: `12s`, `3m`, `2h`, `5d`."""
    seconds = milliseconds // 1000
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
