"""The only source of wall time. Deadlines never use it: they use the event loop's clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time, injected so that simulations can turn it."""

    def now(self) -> datetime:
        """The current time, aware, in UTC."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """`2026-11-29T16:41:31.123Z`: how every record writes a time (UTC, milliseconds)."""
    utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return utc.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def parse_stamp(text: str) -> datetime:
    """The moment that `stamp` wrote; ValueError when it is not one."""
    return datetime.fromisoformat(text).astimezone(UTC)
