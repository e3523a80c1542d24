"""What a *dispatch id* `<run>.<job>.<step>.<episode>` tells, and the names of runs and steps."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from datastore.kinds.probe import PROBES

_SAFE = re.compile(r"[A-Za-z0-9_-]{1,60}\Z")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def is_probe(name: str) -> bool:
    """Whether a dispatch shows that its worker works, instead of being a step's."""
    return run_of(name) == PROBES


def run_of(name: str) -> str:
    """The run that a step, pending dispatch or lease belongs to, from its name alone."""
    return name.partition(".")[0]


@lru_cache(maxsize=4096)
def file_name(part: str) -> str:
    """A job's or step's name as a part of a record's name: safe in files.

    Two names may have one such part, though not by chance.
    """
    if _SAFE.match(part):
        return part
    digest = hashlib.sha256(part.encode()).hexdigest()[:8]
    return f"{_UNSAFE.sub('-', part).strip('-')[:48] or 'step'}-{digest}"
