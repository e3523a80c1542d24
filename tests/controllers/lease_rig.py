"""A worker with a lease, and the lease controller over it, for tests that play worker and clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from controllers.enrollment import EnrollmentController, Hello, Made, create_token, revoke_token
from controllers.lease import LeaseController
from controllers.ports import SessionInfo
from datastore.clock import SystemClock, stamp
from datastore.journal import Op
from datastore.kinds import (
    KINDS,
    LEASES,
    PENDING,
    TOKENS,
    Call,
    Lease,
    LeaseSpec,
    LeaseStatus,
    Pending,
    PendingSpec,
    PendingStatus,
    Placement,
    TokenSpec,
)
from datastore.record import Record
from datastore.store import Store

DISPATCH = "r.j.s.1"
AT = "2026-11-29T12:00:00.000Z"


def pending() -> Pending:
    """The dispatch that the lease answers."""
    call = Call(model_type="command/shell", model="m", method="execute")
    spec = PendingSpec(
        run="r", workflow="w", job="j", step="s", episode=1, call=call, placement=Placement()
    )
    status = PendingStatus(state="dispatched", queued_at=AT)
    return Record(PENDING, DISPATCH, "p", AT, spec, status)


class AtOnce:
    trouble: str | None = None

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            on_durable()


class Clock:
    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> datetime:
        return SystemClock().now() + timedelta(seconds=self.passed_s)


class Link:
    """No worker is connected, unless a session is set."""

    now: SessionInfo | None = None
    held_up = unsent = False

    def __init__(self) -> None:
        self.said: list[str] = []

    def dispatch(self, lease: Lease, pending: Pending) -> None:
        self.said.append("dispatch")

    def withdraw(self, dispatch: str) -> bool:
        return self.unsent

    def holds_up(self, dispatch: str) -> bool:
        return self.held_up

    def session(self, worker: str) -> SessionInfo | None:
        return self.now

    def cancel(self, worker: str, dispatch: str) -> None:
        self.said.append("cancel")

    def cut(self, worker: str, reason: str) -> None:
        self.said.append(f"cut: {reason}")


class World:
    """A worker `box` with the token `ci`, and a step on it that has written nothing yet."""

    def __init__(self, grace_s: float = 60.0) -> None:
        self.clock = Clock()
        self.journal = AtOnce()
        self.store = Store(KINDS.values(), self.journal)
        self.link = Link()
        self.restart(grace_s)
        spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z", max_enrollments="unlimited")
        create_token(self.store, "ci", spec, "secret", Made("u", self.clock.now()))
        link: Any = self.link
        self.enrollment = EnrollmentController(self.store, link, self.clock, lambda: "u")
        hello = Hello("ci.secret", "i", "m", "linux", "x86_64", "1", 1)
        self.worker = self.enrollment.enroll(hello).name
        lease = LeaseSpec(
            run="r", workflow="w", job="j", step="s", worker=self.worker, instance="i", model="m",
            method="execute",
        )  # fmt: skip
        at = stamp(self.clock.now())
        status = LeaseStatus(state="bound", bound_at=at)
        self.store.commit([Record(LEASES, DISPATCH, "l", at, lease, status)])

    def restart(self, grace_s: float) -> None:
        """A new process of the server."""
        link: Any = self.link
        self.leases = LeaseController(self.store, link, self.clock, grace_s=grace_s)

    async def end_token(self, how: str) -> None:
        if how == "was revoked":
            revoke_token(self.store, "ci", self.clock.now())
            return
        token = self.store.get(TOKENS, "ci")
        self.store.commit([token.with_spec(expires_at="2001-01-01T00:00:00.000Z")])
        await self.enrollment.reconcile("tokens/ci")

    @property
    def lease(self) -> Lease:
        return self.store.get(LEASES, DISPATCH)

    @property
    def reason(self) -> str | None:
        status = self.lease.status
        assert status is not None
        assert status.state == "expired"
        return status.reason
