"""What keeps the output of runners, as those see it who hand it over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class OutputLog(Protocol):
    """Where output of runners goes."""

    def output(
        self,
        run: str,
        dispatch: str,
        number: int,
        event: dict[str, Any],
        written: Callable[[], None],
    ) -> None:
        """Store a piece once; `written` is called when it is stored."""

    def output_count(self, run: str, dispatch: str) -> int:
        """How many pieces are stored."""
