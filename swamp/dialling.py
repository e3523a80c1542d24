"""Whether a name can be that of a host at all: what cannot is a wrong address, and no lost one."""

from __future__ import annotations

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
