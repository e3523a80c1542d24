"""Pauses of the queue: made and ended by desired files, asked before every placement.

Part of the scheduler, which alone writes them. A pause is sticky: it holds over restarts, and until
its file or a command says otherwise; a file that is gone changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from controllers.asked import asked
from datastore.clock import Clock, stamp
from datastore.kinds import PAUSES, Pause, PauseSpec, PauseStatus, Placement
from datastore.record import Record
from datastore.store import Store


class Pauses:
    """Keeps the records of pauses true to their files."""

    def __init__(self, store: Store, clock: Clock, new_uid: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._new_uid = new_uid

    def look_at(self, name: str) -> None:
        """Take over what the pause's desired file asks, making the record if there is none."""
        pause = self._store.find(PAUSES, name)
        status = pause.status if pause is not None else None
        news = asked(self._store.desired(PAUSES, name), status.desired if status else None)
        if news is None:
            return
        now = stamp(self._clock.now())
        base = pause.spec if pause is not None else PauseSpec()
        spec = base.model_copy(update=news.spec or {})
        state = "paused" if spec.paused else "resumed"
        same = status is not None and status.state == state
        since = status.since if status is not None and same else now
        noted = PauseStatus.model_validate({"state": state, "since": since, "desired": news.note})
        if pause is None:
            made = Record(
                kind=PAUSES,
                name=name,
                uid=self._new_uid(),
                created_at=now,
                spec=spec,
                status=noted,
            )
            self._store.commit([made])
        else:
            self._store.commit([pause.with_spec(**dict(spec)).with_status(noted)])

    def holding(self, placement: Placement) -> Pause | None:
        """The pause that holds this requirement back, None if none does."""
        for pause in self._store.live(PAUSES):
            if holds(pause.spec, placement):
                return pause
        return None


def paused_text(pause: Pause) -> str:
    """Why a requirement waits while a pause holds it back."""
    note = f": {pause.spec.note}" if pause.spec.note else ""
    return f"the queue is paused ({pause.name}){note}"


def holds(spec: PauseSpec, placement: Placement) -> bool:
    """Whether a pause holds a requirement back: it asks for each of the pause's labels, and for
    nothing else in its place; a set or a negation may still be met elsewhere."""
    return all(placement.labels.get(key) in (value, [value]) for key, value in spec.labels.items())
