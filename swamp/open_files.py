"""How many files and connections this process may have open at once."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_limit(wanted: int) -> int:
    """Have room for `wanted` open files if the machine allows it; the limit now in force.

    It is never lowered, and what may not be raised stays as it is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    aim = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if aim > soft:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
            return aim
    return soft
