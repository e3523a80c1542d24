"""What was cancelled while its worker is away keeps its lease until it can be known to be over."""

from __future__ import annotations

from lease_rig import DISPATCH, World

from controllers.ports import SessionInfo

GRACE_S = 60.0


async def given_up() -> World:
    """The lease is active, its worker is lost, and then it is cancelled."""
    world = World(GRACE_S)
    world.leases.accepted(world.worker, DISPATCH)
    await world.leases.reconcile(DISPATCH)
    world.store.commit([world.lease.with_spec(cancel=True)])
    return world


async def left_s(world: World) -> float:
    """For how long it is waited yet; 0 if the lease has ended."""
    wait = await world.leases.reconcile(DISPATCH)
    assert (wait is None) is not world.lease.live
    return 0.0 if wait is None else wait.seconds


def come_back(world: World) -> None:
    """The worker enrolls again, with the runner."""
    assert world.leases.reconnected(world.worker, "i", [DISPATCH], []).keep == (DISPATCH,)
    world.link.now = SessionInfo(number=1, instance="i")


async def test_its_window_goes_on_over_restarts() -> None:
    """Regression: it began anew, so that model and slot were held as long as restarts went on."""
    world = await given_up()
    world.clock.passed_s = 40
    world.restart(GRACE_S)
    assert 19 < await left_s(world) < 21
    world.clock.passed_s = 55
    world.restart(GRACE_S)
    assert 4 < await left_s(world) < 6
    world.clock.passed_s = 70
    world.restart(GRACE_S)
    assert await left_s(world) == 0


async def test_the_window_of_one_that_is_wanted_begins_anew() -> None:
    """Its worker could not come back while there was no server."""
    world = World(GRACE_S)
    world.leases.accepted(world.worker, DISPATCH)
    await world.leases.reconcile(DISPATCH)
    world.clock.passed_s = 40
    world.restart(GRACE_S)
    assert await left_s(world) > 59


async def test_its_window_begins_anew_when_its_worker_was_back() -> None:
    world = await given_up()
    world.clock.passed_s = 50
    come_back(world)
    await world.leases.reconcile(DISPATCH)
    world.link.now = None
    assert await left_s(world) > 59
    world.clock.passed_s = 70
    world.restart(GRACE_S)
    assert 39 < await left_s(world) < 41


async def test_a_clock_that_jumps_makes_the_window_no_longer() -> None:
    world = await given_up()
    world.clock.passed_s = -1000
    world.restart(GRACE_S)
    assert await left_s(world) <= GRACE_S
