"""A journal whose disk is full when a test says so."""

from __future__ import annotations

from collections.abc import Callable

from datastore.journal import Op

FULL = "the disk is full"


class Disk:
    """Takes everything at once, unless it is full."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self._held: list[Callable[[], None]] = []

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        assert on_durable is not None
        if self.trouble is None:
            on_durable()
        else:
            self._held.append(on_durable)

    def recover(self) -> None:
        self.trouble = None
        for one in self._held:
            one()
        self._held.clear()
