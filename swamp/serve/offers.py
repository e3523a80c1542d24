"""Dispatches on their way to their worker: their secrets are read, then the disk is waited for.

Makes true: what was withdrawn before it left never leaves, and nothing does on a later socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from datastore.errors import SwampError
from datastore.kinds import LEASES, Lease, Outcome, Pending
from datastore.plain_values import unfit
from datastore.store import Store
from swamp.protocol import Dispatch, ToWorker
from swamp.serve.dispatch_secrets import DispatchSecrets, Opened
from swamp.serve.session import Session


class Sender(Protocol):
    """The sessions, as offers need them."""

    def is_open(self, session: Session) -> bool:
        """Whether it is the one socket of its worker still."""

    def send(self, session: Session, frame: ToWorker) -> None:
        """Send a frame, behind the barrier."""


class Offers:
    """Those that have not left."""

    def __init__(
        self, store: Store, sender: Sender, environment: Mapping[str, str], *, traced: bool
    ) -> None:
        self._store = store
        self._sender = sender
        self._environment = environment
        self._traced = traced
        self._unsent: dict[str, Session] = {}
        self.settle: Callable[[str, str, Outcome], object]

    def __contains__(self, dispatch: str) -> bool:
        return dispatch in self._unsent

    def make(
        self, session: Session, lease: Lease, pending: Pending, secrets: DispatchSecrets
    ) -> None:
        """Send the dispatch on this socket once it may leave."""
        self._unsent[lease.name] = session
        secrets.open_then(
            lease.name, pending.spec.call, lambda opened: self._opened(session, pending, opened)
        )

    def withdraw(self, dispatch: str) -> bool:
        """Never send it; False if it has left."""
        return self._unsent.pop(dispatch, None) is not None

    def leaves(self, session: Session, frame: Dispatch) -> bool:
        """It is about to leave; False if it may not any more."""
        if self._unsent.get(frame.dispatch) is not session:
            return False
        del self._unsent[frame.dispatch]
        return True

    def _opened(self, session: Session, pending: Pending, opened: Opened | SwampError) -> None:
        if self._unsent.get(pending.name) is not session:
            return
        lease = self._store.find(LEASES, pending.name)
        if lease is None or not lease.live or not self._sender.is_open(session):
            del self._unsent[pending.name]
            return
        end = partial(self._ended, session.worker, lease.name)
        if isinstance(opened, SwampError):
            end(Outcome(ok=False, reason="start_failed", error=str(opened)))
            return
        if lease.spec.cancel:
            # It went out while the secrets were read; the worker knew nothing of it then.
            end(Outcome(ok=False, reason="cancelled", error="cancelled"))
            return
        frame = opened.frame(pending, self._environment, traced=self._traced)
        try:
            self._sender.send(session, frame)
        except ValueError as error:
            # Checked wherever text comes in; a step that cannot be sent must fail all the same.
            found = unfit(frame.model_dump()) or str(error)
            end(Outcome(ok=False, reason="start_failed", error=found))

    def _ended(self, worker: str, dispatch: str, outcome: Outcome) -> None:
        del self._unsent[dispatch]
        self.settle(worker, dispatch, outcome)
