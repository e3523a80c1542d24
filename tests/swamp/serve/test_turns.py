"""The gate that a crowd waits at: who goes first, what giving up costs, and when the loop rests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from swamp.serve import turns
from swamp.serve.turns import Rank, Turn, Turns


class Crowd:
    """Waits for turns; `order` has the ranks as they came to have one."""

    def __init__(self, gate: Turns, tasks: asyncio.TaskGroup) -> None:
        self.gate = gate
        self.order: list[Rank] = []
        self._tasks = tasks

    def comes(self, rank: Rank) -> asyncio.Task[Turn]:
        return self._tasks.create_task(self._has(rank))

    async def _has(self, rank: Rank) -> Turn:
        turn = await self.gate.begin(rank)
        self.order.append(rank)
        turn.over()
        return turn


def idle() -> float:
    """The loop has never worked: there are no rests."""
    return 0.0


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "AT_ONCE", 1)
    monkeypatch.setattr(turns, "KNOWN_BESIDES", 0)
    monkeypatch.setattr(turns, "TURN_MOST_S", 60.0)


async def rounds(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_known_workers_go_before_new_ones_and_who_is_further_in_before_who_is_not() -> None:
    gate = Turns(idle)
    first = await gate.begin(Rank.UPGRADE_NEW)
    async with asyncio.TaskGroup() as tasks:
        crowd = Crowd(gate, tasks)
        for rank in sorted(Rank, reverse=True) * 2:
            crowd.comes(rank)
        await rounds()
        assert crowd.order == [] and gate.waiting == 2 * len(Rank)
        first.over()
    assert crowd.order == sorted(sorted(Rank) * 2)
    assert gate.waiting == 0


async def test_who_gives_up_costs_nothing_before_its_turn_and_at_the_very_moment_of_it() -> None:
    gate = Turns(idle)
    first = await gate.begin(Rank.ENROLL_NEW)
    async with asyncio.TaskGroup() as tasks:
        crowd = Crowd(gate, tasks)
        waits, granted, last = (crowd.comes(Rank.ENROLL_NEW) for _ in range(3))
        await rounds()
        waits.cancel()
        await rounds()
        assert gate.waiting == 2
        first.over()
        while gate.waiting == 2:  # noqa: ASYNC110 - nothing tells of it, which is the point
            await asyncio.sleep(0)
        # The second has its turn by now, and gives up before it could be told so.
        granted.cancel()
        await last
    assert granted.cancelled() and waits.cancelled()
    assert crowd.order == [Rank.ENROLL_NEW]


async def test_a_turn_that_takes_long_holds_nobody_up_and_ends_nobody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_MOST_S", 0.01)
    gate = Turns(idle)
    slow = await gate.begin(Rank.ENROLL_NEW)
    monkeypatch.setattr(turns, "TURN_MOST_S", 60.0)
    async with asyncio.timeout(10):
        second = await gate.begin(Rank.ENROLL_NEW)
    slow.over()
    async with asyncio.TaskGroup() as tasks:
        crowd = Crowd(gate, tasks)
        third = crowd.comes(Rank.ENROLL_NEW)
        await rounds()
        assert not third.done()
        second.over()


async def test_turns_begin_in_rounds_of_the_loop_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "AT_ONCE", 3)
    gate = Turns(idle)
    async with asyncio.TaskGroup() as tasks:
        crowd = Crowd(gate, tasks)
        for _ in range(3):
            crowd.comes(Rank.ENROLL_NEW)
        seen = []
        while len(crowd.order) < 3:
            await asyncio.sleep(0)
            seen.append(len(crowd.order))
    assert {1, 2} <= set(seen)


@pytest.mark.parametrize(
    ("runs", "share"), [(False, turns.REST_SHARE), (True, turns.REST_SHARE_BESIDE_RUNS)]
)
async def test_after_work_the_loop_rests_and_waits_for_the_disk_count_as_rest(
    monkeypatch: pytest.MonkeyPatch, *, runs: bool, share: float
) -> None:
    now = worked = 0.0
    rests: list[float] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def call_later(delay_s: float, *what: object) -> asyncio.TimerHandle:
        if delay_s >= turns.TURN_MOST_S:
            return later(delay_s, *what)  # type: ignore[arg-type]
        rests.append(delay_s)
        return later(0.0, *what)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_later", call_later)
    monkeypatch.setattr(loop, "time", lambda: now)
    gate = Turns(lambda: worked, lambda: runs)
    for took_s, waited_s in ((0.002, 0.0), (0.002, 0.001), (0.002, 1.0), (0.0, 0.0), (5.0, 0.0)):
        turn = await gate.begin(Rank.ENROLL_NEW)
        worked += took_s
        now += took_s + waited_s
        turn.over()
        await rounds()
    most = turns.REST_MOST_S
    assert rests == pytest.approx([0.002 * share, max(0.0, 0.002 * share - 0.001), 0.0, most])


async def test_a_worker_that_is_known_begins_beside_a_turn_of_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "KNOWN_BESIDES", 1)
    gate = Turns(idle)
    slow = await gate.begin(Rank.ENROLL_NEW)
    async with asyncio.timeout(10):
        beside = await gate.begin(Rank.ENROLL_KNOWN)
    async with asyncio.TaskGroup() as tasks:
        crowd = Crowd(gate, tasks)
        for rank in (Rank.UPGRADE_KNOWN, Rank.ENROLL_NEW):
            crowd.comes(rank)
        await rounds()
        assert crowd.order == [], "two are under way"
        beside.over()
        await rounds()
        assert crowd.order == [Rank.UPGRADE_KNOWN], "the new one waits for the slow one"
        slow.over()


async def test_one_worker_that_is_known_begins_while_the_loop_rests_from_the_crowd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "REST_MOST_S", 3600.0)
    worked = 0.0
    gate = Turns(lambda: worked)
    first = await gate.begin(Rank.ENROLL_NEW)
    worked = 3600.0
    first.over()
    async with asyncio.TaskGroup() as tasks:
        crowd = Crowd(gate, tasks)
        waiting = [
            crowd.comes(rank) for rank in (Rank.ENROLL_NEW, Rank.ENROLL_KNOWN, Rank.ENROLL_KNOWN)
        ]
        await rounds()
        assert crowd.order == [Rank.ENROLL_KNOWN]
        for one in waiting:
            one.cancel()


async def test_in_each_rest_one_worker_that_is_known_may_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rested: list[Callable[[], object]] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def call_later(delay_s: float, what: Any, *more: Any) -> asyncio.TimerHandle:
        if delay_s < turns.TURN_MOST_S:
            rested.append(what)
        return later(3600.0, what, *more)

    monkeypatch.setattr(loop, "call_later", call_later)
    worked = 0.0
    gate = Turns(lambda: worked)
    async with asyncio.TaskGroup() as tasks:
        crowd = Crowd(gate, tasks)
        for number in range(1, 4):
            turn = await gate.begin(Rank.ENROLL_NEW)
            worked += 3600.0
            turn.over()
            known = [crowd.comes(Rank.ENROLL_KNOWN) for _ in "12"]
            await rounds()
            assert crowd.order == [Rank.ENROLL_KNOWN] * number
            for one in known:
                one.cancel()
            rested.pop()()
