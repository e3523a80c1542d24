"""Did you mean: the nearest valid word for a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 200
"""Characters of a word that is compared at all: nobody mistyped megabytes, which take a second."""


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """`did you mean 'labels'?` for `lables`, None when nothing known is near. Case is ignored."""
    if len(word) > LONGEST:
        return None
    by_lower = {name.lower(): name for name in sorted(known)}
    near = get_close_matches(word.lower(), by_lower, n=1)
    return f"did you mean '{by_lower[near[0]]}'?" if near else None
