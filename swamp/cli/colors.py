"""A little color for a run's lines on a terminal; elsewhere lines stay as they are."""

from __future__ import annotations

import re

_LINE = re.compile(r"( *\S+ │) (.*)\Z")
_RED, _GREEN, _DIM, _END = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"
_WORDS = {"done": _GREEN, "completed": _GREEN, "Completed": _GREEN, "failed": _RED, "Failed": _RED}


def paint(line: str) -> str:
    """The line with its label dimmed, and green or red where a step, job or run ends."""
    found = _LINE.match(line)
    if found is None:
        return line
    label, text = found.groups()
    color = _WORDS.get(text.partition(" ")[0])
    return f"{_DIM}{label}{_END} {color}{text}{_END}" if color else f"{_DIM}{label}{_END} {text}"
