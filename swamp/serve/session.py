"""One enrolled worker's socket, as the sessions see it."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from controllers.ports import SessionInfo
from datastore.kinds import LEASES
from datastore.store import Store
from swamp.protocol import Accepted, FromWorker, Output, Refused, ResultFrame

log = logging.getLogger(__name__)


class Transport(Protocol):
    """One worker's socket. Both methods return at once."""

    def send(self, text: str) -> None:
        """Queue a frame; a peer that reads too slowly for too long is cut."""

    def abort(self, reason: str) -> None:
        """Close without waiting for anything."""


class Session:
    """An enrolled worker's socket."""

    def __init__(self, number: int, worker: str, instance: str, transport: Transport) -> None:
        self.info = SessionInfo(number, instance)
        self.worker = worker
        self.transport = transport
        self.heard_at_s = asyncio.get_running_loop().time()
        self.pong: asyncio.Future[int] | None = None
        self.welcomed = False
        """Whether a frame has been sent on it: the first one says that the worker is enrolled."""
        self._spoke_for_others = False

    @property
    def silent_s(self) -> float:
        """How long nothing has come on it, seconds."""
        return asyncio.get_running_loop().time() - self.heard_at_s

    def may_say(self, store: Store, frame: FromWorker) -> bool:
        """Whether the frame is about this worker's own; logged once if not: others stay untouched.

        A dispatch that nobody knows any more is its own affair: its result may have come late.
        """
        if not isinstance(frame, (Accepted, Refused, Output, ResultFrame)):
            return True
        lease = store.find(LEASES, frame.dispatch)
        if lease is None or lease.spec.worker == self.worker:
            return True
        if not self._spoke_for_others:
            self._spoke_for_others = True
            log.warning(
                "worker %s: ignored '%s' for dispatch %s of worker %s, and all more of that sort",
                self.worker, frame.type, lease.name, lease.spec.worker,
            )  # fmt: skip
        return False
