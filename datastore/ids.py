"""Ids of things made by machines: UUIDv7 (RFC 9562), so that names sort by birth."""

from __future__ import annotations

import random
from datetime import datetime


def uuid7(moment: datetime, randomness: random.Random) -> str:
    """A UUIDv7 for `moment`; inside one millisecond the order is random."""
    millis = int(moment.timestamp() * 1000)
    value = (millis & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76
    value |= randomness.getrandbits(12) << 64
    value |= 0b10 << 62
    value |= randomness.getrandbits(62)
    digits = f"{value:032x}"
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(parts)
