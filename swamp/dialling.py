"""What can be dialled, and said in a header: what cannot is wrong usage, and no lost connection."""

from __future__ import annotations

DEGRADED_HEADER = "Swamp-Degraded"
"""Of an answer: why the server's disk refuses."""

VERSION_HEADER = "Swamp-Version"
"""Of every answer: which swamp gives it. What has none comes from something else."""

_PART_MAX = 63


def is_host(name: str) -> bool:
    """Whether it can be asked for: no part of it is empty or too long, and no space inside."""
    if not name.isprintable() or " " in name:
        return False
    if not name.isascii():
        try:
            name = name.encode("idna").decode()
        except UnicodeError:
            return False
    return all(0 < len(part) <= _PART_MAX for part in name.removesuffix(".").split("."))


def fits_header(text: str) -> bool:
    """Whether it can be the value of a header, or a part of one."""
    return text.isascii() and text.isprintable()
