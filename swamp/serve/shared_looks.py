"""Looks at files that many ask for at once, without a thread for each who asks.

Promises: whoever waits has a look that began after it came; looks at one name come one after the
other, and all who came meanwhile share the next. So a thousand workers that enroll with one token
cost two looks, and a disk that answers slowly takes one thread per name from everybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Looks:
    """The looks at one name, numbered from 1, and how many wait for one."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    begun: int = 0
    done: int = 0
    waiting: int = 0
    found: int = 0


class SharedLooks:
    """`look` takes a name, looks, and says how much was new."""

    def __init__(self, look: Callable[[str], Awaitable[int]]) -> None:
        self._look = look
        self._names: dict[str, _Looks] = {}

    async def fresh(self, name: str) -> int:
        """What a look at `name` has found that began after this call; errors of an own look."""
        looks = self._names.setdefault(name, _Looks())
        wanted = looks.begun + 1
        looks.waiting += 1
        try:
            async with looks.lock:
                if looks.done < wanted:
                    looks.begun += 1
                    number = looks.begun
                    looks.found = await self._look(name)
                    looks.done = number
                return looks.found
        finally:
            looks.waiting -= 1
            if not looks.waiting:
                # Anybody may ask for any name: nothing may be left of those that do not exist.
                del self._names[name]
