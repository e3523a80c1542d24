"""Items go from the loop to a thread in order, together, and never later than promised."""

from __future__ import annotations

import asyncio

from datastore.hand_over import HandOver


async def test_what_one_pass_puts_comes_together_and_in_order() -> None:
    handed: HandOver[int] = HandOver()
    handed.bind(asyncio.get_running_loop())
    handed.put(1)
    handed.put(2)
    assert handed.get_nowait() is None, "the pass is not over"
    await asyncio.sleep(0)
    assert handed.get_nowait() == [1, 2]
    assert handed.get_nowait() is None


async def test_what_the_next_passes_add_is_waited_for_while_they_do() -> None:
    handed: HandOver[int] = HandOver(linger_s=3600)
    handed.bind(asyncio.get_running_loop())
    for number in range(3):
        handed.put(number)
        await asyncio.sleep(0)
        assert handed.get_nowait() is None, "this pass brought one"
    await asyncio.sleep(0)
    assert handed.get_nowait() == [0, 1, 2]


async def test_a_loop_that_never_rests_delays_nothing_beyond_the_limit() -> None:
    handed: HandOver[int] = HandOver(linger_s=0.0)
    handed.bind(asyncio.get_running_loop())
    for number in range(3):
        handed.put(number)
        await asyncio.sleep(0)
        assert handed.get_nowait() == [number]


async def test_flush_hands_over_at_once_and_each_item_once() -> None:
    handed: HandOver[int] = HandOver(linger_s=3600)
    handed.bind(asyncio.get_running_loop())
    handed.put(1)
    handed.flush()
    assert handed.get_nowait() == [1]
    handed.put(2)
    for _ in range(3):
        await asyncio.sleep(0)
    assert handed.get_nowait() == [2]
    assert handed.get_nowait() is None


def test_without_a_loop_nothing_waits() -> None:
    handed: HandOver[int] = HandOver(linger_s=3600)
    handed.put(1)
    assert handed.get() == [1]
    handed.wake()
    assert handed.get() == []
