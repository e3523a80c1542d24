"""When those are to come again whom a server sends away: not all at one moment."""

from __future__ import annotations

import random


def spread_s(around_s: int, randomness: random.Random) -> int:
    """Whole seconds for `Retry-After`, drawn evenly from half of `around_s` to half as much more.

    A worker spreads itself over half as long again; other clients come when they were told to.
    """
    half_s = around_s // 2
    return randomness.randint(around_s - half_s, around_s + half_s)
