"""Work in a thread beside the event loop, with the manners of `courtesy`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from datastore.courtesy import SYSTEM_TIME, Courtesy, Pause, Time

T = TypeVar("T")


async def beside_the_loop(work: Callable[[Pause], T], clocks: Time = SYSTEM_TIME) -> T:
    """What the work answers, from a thread that leaves the interpreter to the loop.

    The work ends at its next pause when nobody waits for it any more.
    """
    courtesy = Courtesy(clocks)
    try:
        return await asyncio.to_thread(work, courtesy)
    finally:
        courtesy.end()
