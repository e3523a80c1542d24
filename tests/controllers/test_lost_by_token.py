"""A worker that stops because its token has ended is not said to have died."""

from __future__ import annotations

import asyncio

import pytest
from lease_rig import DISPATCH, World


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
