"""The reasons in the records of what waits, brought up to date a few at a time.

The queue that people see is always current; a record follows when its reason has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from controllers.controller import Wait
from controllers.reasons import Reasons
from controllers.waiting import WaitingRoom
from datastore.kinds import PENDING
from datastore.store import Store

RENEW_EVERY_S = 1.0

RENEWED_MOST = 20
"""Requirements, and dispatches of each, whose reasons are renewed at once: those at the front. Ten
thousand records are not rewritten because one worker came."""

LOOKS_AT_ONCE = 20_000
"""Shapes of workers, times requirements, that are looked at before others get their turn."""


class Renewal:
    """Reads what waits, and writes the reason in its status."""

    def __init__(
        self, store: Store, room: WaitingRoom, reasons: Reasons, shapes: Callable[[], int]
    ) -> None:
        """`shapes`: how many there are, of workers; each is looked at for one reason."""
        self._store = store
        self._shapes = shapes
        self._room = room
        self._reasons = reasons
        self._left: dict[str, None] = {}

    def some(self) -> Wait | None:
        """Renew some requirements, those that were renewed longest ago first."""
        if not self._left:
            self._left = dict.fromkeys(self._room.groups)
        at_once = max(1, min(RENEWED_MOST, LOOKS_AT_ONCE // (1 + self._shapes())))
        for key in list(islice(self._left, at_once)):
            del self._left[key]
            for name in self._room.first(key, RENEWED_MOST):
                self._renew(name)
        return Wait(RENEW_EVERY_S) if self._room.groups else None

    def _renew(self, name: str) -> None:
        pending = self._store.find(PENDING, name)
        if pending is None or pending.status is None or not pending.live:
            return
        status = pending.status
        reason = self._reasons.of_dispatch(pending.spec).text
        if reason != status.reason:
            changes = {"reason": reason, "reason_changes": status.reason_changes + 1}
            self._store.commit([pending.with_status(status.model_copy(update=changes))])
