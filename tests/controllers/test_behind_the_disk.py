"""Who reconciles waits for a disk that does not keep up, and for nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

import pytest

from controllers import controller
from controllers.controller import Controller, Wait
from controllers.workqueue import WorkQueue


class Noted:
    """Notes the keys that it is asked to reconcile."""

    def __init__(self) -> None:
        self.queue = WorkQueue()
        self.keys: asyncio.Queue[str] = asyncio.Queue()

    def live_keys(self) -> Iterable[str]:
        return ()

    async def reconcile(self, key: str) -> Wait | None:
        self.keys.put_nowait(key)
        return None


@pytest.mark.parametrize("stops", [False, True])
async def test_nothing_is_reconciled_while_too_much_waits_for_the_disk(*, stops: bool) -> None:
    behind = controller.BEHIND_MOST + 1
    noted = Noted()
    one = Controller("c", noted, randomness=random.Random(0), behind=lambda: behind)
    running = asyncio.ensure_future(one.run())
    noted.queue.add("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(noted.keys.get(), 0.05)
    if not stops:
        behind = controller.BEHIND_MOST // 2
        async with asyncio.timeout(5):
            assert await noted.keys.get() == "a"
    one.stop()
    async with asyncio.timeout(5):
        await running
    assert noted.keys.empty()
