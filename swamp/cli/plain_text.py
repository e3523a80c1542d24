"""Text of others (output, errors, labels) made harmless for a terminal."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """The text without escape sequences and control characters; tabs and newlines stay."""
    return _CONTROL.sub("", _ESCAPE.sub("", text))


def is_plain(text: str) -> bool:
    """Whether the text is harmless as it is."""
    return _CONTROL.search(text) is None
