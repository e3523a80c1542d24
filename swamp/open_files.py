"""How many files and connections this process may have open at once."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack, suppress

from datastore.regular_file import NO_FILE_MORE


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


def may_open(many: int) -> bool:
    """Whether so many files more may be open just now; also where that cannot be told."""
    with ExitStack() as opened:
        try:
            for _ in range(many):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            return error.errno not in NO_FILE_MORE
    return True
