"""What a *dispatch id* `<run>.<job>.<step>.<episode>` tells, and the names of runs and steps."""

from __future__ import annotations

from datastore.kinds.probe import PROBES


def is_probe(name: str) -> bool:
    """Whether a dispatch shows that its worker works, instead of being a step's."""
    return run_of(name) == PROBES


def run_of(name: str) -> str:
    """The run that a step, pending dispatch or lease belongs to, from its name alone."""
    return name.partition(".")[0]
