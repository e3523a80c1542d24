"""The access controller: tokens of clients that ask over the network.

Makes true: an access token past its time or revoked is final. Reads and alone writes access tokens;
woken by them and by their desired files. It must never let anybody in by a token that a file, a
command or the clock has ended, whether or not the record says so already.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from controllers.asked import asked
from controllers.controller import Wait
from controllers.token_secret import is_secret
from controllers.workqueue import WorkQueue
from datastore.clock import Clock, parse_stamp, stamp
from datastore.errors import NotFound, SwampError
from datastore.kinds import ACCESS, Access, AccessSpec, AccessStatus
from datastore.kinds.secret_hash import secret_hash
from datastore.record import Record
from datastore.store import Store

EXPIRY_LOOK_MOST_S = 3600.0
"""Expiry is wall time: it is looked at again at least this often, in case the clock was set."""


Made = tuple[str, datetime]
"""The id and the moment of something new."""


class AccessRefused(SwampError):
    """The token lets nobody in; the same words whatever is wrong with a secret or a name."""


def create_access(store: Store, name: str, spec: AccessSpec, secret: str, made: Made) -> Access:
    """A new access token; AlreadyExists if the name is taken."""
    uid, at = made
    status = AccessStatus(state="active", secret_hash=secret_hash(secret))
    store.commit([Record(ACCESS, name, uid, stamp(at), spec, status)])
    return store.get(ACCESS, name)


def revoke_access(store: Store, name: str, now: datetime) -> tuple[Access, bool]:
    """The token, revoked, and whether this call did it; NotFound without it. Ends are final."""
    access = store.find(ACCESS, name)
    if access is None:
        names = ", ".join(sorted(store.names(ACCESS)))
        raise NotFound(f"no access token '{name}'; there are: {names or 'none'}")
    if access.status is None or not access.live:
        return access, False
    _end(store, access, "revoked", now)
    return store.get(ACCESS, name), True


def let_in(store: Store, text: str, now: datetime) -> Access:
    """The access token that `text` is; AccessRefused says why it is none, or no longer one."""
    name, _, secret = text.partition(".")
    access = store.find(ACCESS, name)
    stored = access.status.secret_hash if access is not None and access.status is not None else ""
    if access is None or access.status is None or not is_secret(secret, stored):
        raise AccessRefused("no such access token: see `swamp access token create`")
    file = store.desired(ACCESS, name)
    revoked = file is not None and file.spec.get("revoked") is True
    if revoked or access.status.state == "revoked":
        raise AccessRefused(f"access token '{name}' has been revoked")
    if access.status.state == "expired" or parse_stamp(access.spec.expires_at) <= now:
        raise AccessRefused(f"access token '{name}' has expired ({access.spec.expires_at})")
    return access


class AccessController:
    """Reconciles access tokens by name."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.queue = WorkQueue()
        self._store = store
        self._clock = clock
        store.watch(ACCESS, self.queue.add)

    def live_keys(self) -> Iterable[str]:
        return [access.name for access in self._store.live(ACCESS)]

    async def reconcile(self, name: str) -> Wait | None:
        access = self._store.find(ACCESS, name)
        if access is None or access.status is None or not access.live:
            return None
        self._adopt_desired(access)
        access = self._store.get(ACCESS, name)
        if not access.live:
            return None
        now = self._clock.now()
        left_s = (parse_stamp(access.spec.expires_at) - now).total_seconds()
        if left_s > 0:
            return Wait(min(left_s, EXPIRY_LOOK_MOST_S))
        _end(self._store, access, "expired", now)
        return None

    def _adopt_desired(self, access: Access) -> None:
        """Take over what the desired file asks; what that leaves out stays as it is."""
        assert access.status is not None
        news = asked(self._store.desired(ACCESS, access.name), access.status.desired)
        if news is None:
            return
        changes: dict[str, Any] = {"desired": news.note}
        if news.spec is not None and news.spec.get("revoked"):
            changes |= {"state": "revoked", "ended_at": stamp(self._clock.now())}
        changed = access.with_status(access.status.model_copy(update=changes))
        self._store.commit([changed.with_spec(**(news.spec or {}))])


def _end(store: Store, access: Access, state: str, now: datetime) -> None:
    assert access.status is not None
    status = access.status.model_copy(update={"state": state, "ended_at": stamp(now)})
    ended = access.with_status(status)
    store.commit([ended.with_spec(revoked=True) if state == "revoked" else ended])
