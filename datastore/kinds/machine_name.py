"""What machines of a fleet token are called; apart from the records, which no worker needs."""

from __future__ import annotations

import hashlib


def machine_name(token: str, machine: str) -> str:
    """What a fleet token calls a machine: always the same."""
    return f"{token}-{hashlib.sha256(machine.encode()).hexdigest()[:16]}"
