"""The records of a repository that no server holds, locked for one command that changes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datastore.layout import Layout
    from datastore.store import Store


async def with_store(
    layout: Layout, act: Callable[[Store], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    """What `act` answers, with the repository locked for it. RepositoryLocked, DatastoreError."""
    import asyncio

    from datastore.engine import open_store
    from datastore.lock import RepositoryLock

    with RepositoryLock(layout):
        store, engine, _ = await asyncio.to_thread(open_store, layout)
        engine.start(asyncio.get_running_loop())
        try:
            return await act(store)
        finally:
            await asyncio.to_thread(engine.close)
