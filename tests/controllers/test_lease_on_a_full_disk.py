"""No worker is cut, and no lease lost, for what the server's own disk holds up."""

from __future__ import annotations

import asyncio

import pytest
from lease_rig import DISPATCH, World, pending

from controllers.ports import SessionInfo

FULL = "the disk is full"


class Time:
    """The loop's time goes on when told to, too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_s = 0.0
        loop = asyncio.get_running_loop()
        really = loop.time
        monkeypatch.setattr(loop, "time", lambda: really() + self.passed_s)


@pytest.fixture
async def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def offered() -> World:
    """The lease is bound, and its worker connected."""
    world = World()
    world.link.now = SessionInfo(number=1, instance="i")
    world.store.commit([pending()])
    return world


async def looks(world: World, time: Time, for_s: float) -> list[str]:
    """What was said, once it was looked at as often as asked for, for so long."""
    left_s = for_s
    while left_s > 0:
        wait = await world.leases.reconcile(DISPATCH)
        if wait is None:
            break
        time.passed_s += wait.seconds
        left_s -= wait.seconds
    return world.link.said


async def test_a_worker_that_does_not_answer_is_cut(time: Time) -> None:
    said = await looks(offered(), time, 40)
    assert said == ["dispatch", f"cut: no answer to dispatch {DISPATCH}"]


async def test_a_dispatch_that_cannot_leave_cuts_nobody(time: Time) -> None:
    """Regression: on a full disk the worker was cut, and lost all that it ran."""
    world = offered()
    world.journal.trouble = FULL
    assert await looks(world, time, 300) == ["dispatch"]
    world.journal.trouble = None
    assert await looks(world, time, 24) == ["dispatch"]
    assert len(await looks(world, time, 20)) == 2


async def test_on_a_slow_disk_the_time_begins_when_it_leaves(time: Time) -> None:
    world = offered()
    world.link.held_up = True
    assert await looks(world, time, 100) == ["dispatch"]
    world.link.held_up = False
    assert await looks(world, time, 24) == ["dispatch"]
    assert len(await looks(world, time, 20)) == 2


async def test_who_cannot_say_that_it_stopped_is_not_cut(time: Time) -> None:
    world = offered()
    world.leases.accepted(world.worker, DISPATCH)
    world.store.commit([world.lease.with_spec(cancel=True)])
    world.link.held_up = True
    assert await looks(world, time, 100) == ["cancel"]
    world.link.held_up = False
    said = await looks(world, time, 40)
    assert said[1:] == [f"cut: no answer to the cancel of dispatch {DISPATCH}"]


async def test_a_cancel_takes_back_what_has_not_left(time: Time) -> None:
    world = offered()
    await world.leases.reconcile(DISPATCH)
    world.store.commit([world.lease.with_spec(cancel=True)])
    world.link.unsent = True
    await world.leases.reconcile(DISPATCH)
    assert world.link.said == ["dispatch"]
    assert (world.lease.state, world.lease.status.reason) == ("failed", "cancelled")  # type: ignore[union-attr]


async def away(time: Time) -> World:
    """The lease is active, its worker has been away for 50 of 60 s, and the disk is full."""
    world = World()
    world.leases.accepted(world.worker, DISPATCH)
    await world.leases.reconcile(DISPATCH)
    assert world.lease.state == "recovering"
    world.clock.passed_s = time.passed_s = 50
    world.journal.trouble = FULL
    return world


def knocks(world: World, running: str = DISPATCH) -> bool:
    return world.leases.would_be_back(world.worker, "i", [running])


async def test_a_worker_that_is_refused_has_its_whole_window_again(time: Time) -> None:
    world = await away(time)
    assert knocks(world)
    wait = await world.leases.reconcile(DISPATCH)
    assert wait is not None and wait.seconds > 59


async def test_one_that_does_not_come_is_lost_all_the_same(time: Time) -> None:
    world = await away(time)
    time.passed_s = 61
    await world.leases.reconcile(DISPATCH)
    assert world.reason == "worker lost: away for longer than 60s"


async def test_with_a_step_that_nobody_keeps_nothing_is_put_off(time: Time) -> None:
    world = await away(time)
    assert not knocks(world, "r.j.other.1")
    wait = await world.leases.reconcile(DISPATCH)
    assert wait is not None and wait.seconds < 11


async def test_for_what_was_given_up_nothing_is_put_off(time: Time) -> None:
    """A restart could not know of it, and would hold its model for too short a time."""
    world = await away(time)
    world.store.commit([world.lease.with_spec(cancel=True)])
    assert not knocks(world)
    wait = await world.leases.reconcile(DISPATCH)
    assert wait is not None and wait.seconds < 11


async def test_what_was_given_up_and_never_ran_keeps_nobody_from_going_on(time: Time) -> None:
    """Found by tests/sim."""
    world = await away(time)
    world.store.commit([world.lease.with_spec(cancel=True)])
    assert world.leases.would_be_back(world.worker, "i", [])
    wait = await world.leases.reconcile(DISPATCH)
    assert wait is not None and wait.seconds < 11, "its own window ends as it was to"


@pytest.mark.parametrize("seen", [False, True])
async def test_given_up_later_it_keeps_its_window_over_a_restart(time: Time, seen: bool) -> None:
    """The worker was told that it may go on for so long."""
    world = await away(time)
    assert knocks(world)
    world.clock.passed_s = time.passed_s = 70
    world.store.commit([world.lease.with_spec(cancel=True)])
    if seen:
        await world.leases.reconcile(DISPATCH)
    world.restart(60.0)
    wait = await world.leases.reconcile(DISPATCH)
    assert wait is not None
    assert wait.seconds == pytest.approx(40 if seen else 60, abs=1)


async def test_a_window_put_off_before_a_restart_is_whole_after_the_next(time: Time) -> None:
    """Regression: it was counted from where the first began, and the model freed too early."""
    world = await away(time)
    world.clock.passed_s = time.passed_s = 70
    world.restart(60.0)
    await world.leases.reconcile(DISPATCH)
    world.store.commit([world.lease.with_spec(cancel=True)])
    world.clock.passed_s = time.passed_s = 80
    world.restart(60.0)
    wait = await world.leases.reconcile(DISPATCH)
    assert wait is not None and wait.seconds == pytest.approx(50, abs=1)


async def test_while_its_old_socket_counts_it_may_go_on(time: Time) -> None:
    world = offered()
    world.leases.accepted(world.worker, DISPATCH)
    world.journal.trouble = FULL
    assert knocks(world)
    assert world.lease.state == "active"
