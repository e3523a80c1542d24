"""A clock that goes on while the machine sleeps: leases do not wait for that."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Seconds since some moment of the past, sleep included where the system counts it."""
    return time.clock_gettime(_CLOCK)
