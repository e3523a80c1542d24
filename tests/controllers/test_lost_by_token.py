"""A worker that stops because its token has ended is not said to have died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from controllers.enrollment import EnrollmentController, Hello, Made, create_token, revoke_token
from controllers.lease import LeaseController
from datastore.clock import SystemClock, stamp
from datastore.journal import Op
from datastore.kinds import KINDS, LEASES, TOKENS, LeaseSpec, LeaseStatus, TokenSpec
from datastore.record import Record
from datastore.store import Store

DISPATCH = "r.j.s.1"


class AtOnce:
    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            on_durable()


class NoLink:
    """No worker is connected any more."""

    def session(self, worker: str) -> None:
        return None

    def cut(self, worker: str, reason: str) -> None: ...


class World:
    """A worker `box` with the token `ci`, and a step on it that has written nothing yet."""

    def __init__(self, grace_s: float = 60.0) -> None:
        self.clock = SystemClock()
        self.store = Store(KINDS.values(), AtOnce())
        link: Any = NoLink()
        self.leases = LeaseController(self.store, link, self.clock, grace_s=grace_s)
        spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z", max_enrollments="unlimited")
        create_token(self.store, "ci", spec, "secret", Made("u", self.clock.now()))
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

    async def end_token(self, how: str) -> None:
        if how == "was revoked":
            revoke_token(self.store, "ci", self.clock.now())
            return
        token = self.store.get(TOKENS, "ci")
        self.store.commit([token.with_spec(expires_at="2001-01-01T00:00:00.000Z")])
        await self.enrollment.reconcile("tokens/ci")

    @property
    def reason(self) -> str | None:
        status = self.store.get(LEASES, DISPATCH).status
        assert status is not None
        assert status.state == "expired"
        return status.reason


@pytest.mark.parametrize("how", ["was revoked", "expired"])
async def test_the_token_is_named_when_its_worker_stops(how: str) -> None:
    world = World()
    await world.end_token(how)
    assert world.leases.instance_died(world.worker, "i") == 1
    assert world.reason == f"worker lost: token 'ci' {how}"


async def test_the_token_is_named_when_its_worker_stays_away() -> None:
    world = World(grace_s=0.01)
    await world.end_token("was revoked")
    await world.leases.reconcile(DISPATCH)
    await asyncio.sleep(0.02)
    await world.leases.reconcile(DISPATCH)
    assert world.reason == "worker lost: token 'ci' was revoked"


async def test_with_a_token_that_lives_its_process_died() -> None:
    world = World()
    world.leases.instance_died(world.worker, "i")
    assert world.reason == "worker lost: its process died"
