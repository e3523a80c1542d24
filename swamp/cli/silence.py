"""Why nothing arrives of a run that is followed: the server is asked, and what it says is told.

A step may take hours, so silence alone is no news. Whoever waits for a server that cannot write the
events of runs (a full disk) has to hear of it all the same.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING

from datastore.errors import SwampError

if TYPE_CHECKING:
    from swamp.cli.console import Console
    from swamp.client import Client

ASK_AFTER_S, ASK_EVERY_S = 5.0, 10.0


class Silence:
    """Tells once for each silence, on stderr, that the server is degraded, and why."""

    def __init__(self, client: Client, console: Console) -> None:
        # Of its own: what an answer tells, and that one is slow, is the business of whoever asks.
        self._client, self._console = copy(client), console
        self._client.slow = None
        self._asks: threading.Thread | None = None
        self._told = False
        self._ask_at_s = time.monotonic() + ASK_AFTER_S

    def broken(self) -> None:
        """Something has arrived."""
        self._told = False
        self._ask_at_s = time.monotonic() + ASK_AFTER_S

    def goes_on(self) -> None:
        """Nothing has. Returns at once: another thread asks, one at a time."""
        asking = self._asks is not None and self._asks.is_alive()
        if self._told or asking or self._console.quiet or time.monotonic() < self._ask_at_s:
            return
        self._ask_at_s = time.monotonic() + ASK_EVERY_S
        self._asks = threading.Thread(target=self._ask, name="health", daemon=True)
        self._asks.start()

    def _ask(self) -> None:
        # Whoever follows is told by others if there is no server any more, or nobody reads this.
        with suppress(SwampError, OSError):
            reason = self._client.get("/health").get("degraded")
            if reason:
                self._told = True
                self._console.warn(f"nothing arrives, the server is degraded: {reason}")
