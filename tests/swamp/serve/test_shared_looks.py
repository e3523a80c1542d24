"""Who comes during a look shares the next one, and never one that began before."""

from __future__ import annotations

import asyncio

import pytest

from swamp.serve.shared_looks import SharedLooks


class Disk:
    """A file whose content is seen when a look begins, and told when it is let through."""

    def __init__(self) -> None:
        self.content = 0
        self.seen: list[int] = []
        self.begun = asyncio.Event()
        self.slow = asyncio.Semaphore(0)

    async def look(self, name: str) -> int:
        found = self.content
        self.begun.set()
        await self.slow.acquire()
        if found < 0:
            raise OSError(name)
        self.seen.append(found)
        return found


async def test_many_who_come_during_a_look_share_one_that_sees_what_they_did() -> None:
    disk = Disk()
    looks = SharedLooks(disk.look)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(looks.fresh("t"))
        await disk.begun.wait()
        disk.content = 1
        rest = [tasks.create_task(looks.fresh("t")) for _ in range(50)]
        await asyncio.sleep(0)
        disk.slow.release()
        disk.slow.release()
    assert disk.seen == [0, 1]
    assert {task.result() for task in rest} == {1}
    assert not looks._names


async def test_a_slow_look_at_one_name_holds_up_no_other() -> None:
    disk = Disk()
    looks = SharedLooks(disk.look)
    async with asyncio.TaskGroup() as tasks:
        slow = tasks.create_task(looks.fresh("slow"))
        await disk.begun.wait()
        other = tasks.create_task(looks.fresh("other"))
        await asyncio.sleep(0)
        disk.slow.release()
        disk.slow.release()
        await other
        await slow
    assert len(disk.seen) == 2


async def test_a_look_that_failed_or_was_given_up_is_nobodys() -> None:
    disk = Disk()
    disk.content = -1
    looks = SharedLooks(disk.look)
    first = asyncio.ensure_future(looks.fresh("t"))
    await disk.begun.wait()
    disk.content = 2
    second = asyncio.ensure_future(looks.fresh("t"))
    given_up = asyncio.ensure_future(looks.fresh("t"))
    third = asyncio.ensure_future(looks.fresh("t"))
    await asyncio.sleep(0)
    given_up.cancel()
    for _ in range(2):
        disk.slow.release()
    with pytest.raises(OSError, match="t"):
        await first
    await asyncio.gather(second, third)
    assert disk.seen == [2]
    assert not looks._names
