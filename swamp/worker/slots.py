"""Admission: which dispatches occupy the worker's slots, as a set of their ids."""

from __future__ import annotations

from typing import Literal

Refusal = Literal["worker_busy", "worker_draining"]


class Slots:
    """A dispatch holds a slot from `admit` to `release`. Draining, nothing is admitted."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.draining = False
        self._taken: set[str] = set()

    def __len__(self) -> int:
        return len(self._taken)

    def taken(self) -> list[str]:
        """The dispatches that hold a slot, sorted."""
        return sorted(self._taken)

    def admit(self, dispatch: str) -> Refusal | None:
        """Give the dispatch a slot, or say why not.

        One that was killed and still dies holds its slot; it is not taken a second time.
        """
        if self.draining:
            return "worker_draining"
        if dispatch in self._taken or len(self._taken) >= self.capacity:
            return "worker_busy"
        self._taken.add(dispatch)
        return None

    def release(self, dispatch: str) -> None:
        """The dispatch's process has ended."""
        self._taken.discard(dispatch)
