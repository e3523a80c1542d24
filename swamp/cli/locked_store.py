"""The records of a repository that no server holds, locked for one command that changes them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

LOOK_EVERY_S = 0.1
REFUSED_FOR_S = 3.0
"""How long the disk may refuse before the command gives up."""

Answer = TypeVar("Answer")

if TYPE_CHECKING:
    from datastore.engine import OpenedEngine
    from datastore.layout import Layout
    from datastore.store import Store


async def with_store(
    layout: Layout, act: Callable[[Store], Coroutine[Any, Any, dict[str, Any]]]
) -> dict[str, Any]:
    """What `act` answers, with the repository locked for it. RepositoryLocked, DatastoreError."""
    import asyncio

    from datastore.engine import open_store
    from datastore.errors import Degraded
    from datastore.lock import RepositoryLock

    with RepositoryLock(layout) as lock:
        store, engine, _ = await asyncio.to_thread(open_store, lock.layout)
        engine.start(asyncio.get_running_loop())
        try:
            return await _unless_refused(engine, act(store))
        finally:
            if engine.journal.trouble is None:
                await asyncio.to_thread(engine.close)
            else:
                with suppress(Degraded):
                    await asyncio.to_thread(engine.close, 0.0)


async def _unless_refused(engine: OpenedEngine, change: Coroutine[Any, Any, Answer]) -> Answer:
    """What the change answers; Degraded once the disk has refused the journal for a while."""
    import asyncio

    from datastore.errors import Degraded, alone
    from datastore.way_out import way_out

    refused_s = 0.0
    try:
        async with asyncio.TaskGroup() as group:
            changing = group.create_task(change)
            while not (await asyncio.wait((changing,), timeout=LOOK_EVERY_S))[0]:
                trouble = engine.journal.trouble
                refused_s = 0.0 if trouble is None else refused_s + LOOK_EVERY_S
                if trouble is not None and refused_s >= REFUSED_FOR_S:
                    then = f"{way_out(trouble)}, look whether it is done, and try again"
                    raise Degraded(f"given up before it was on disk: {trouble}; {then}")
    except BaseExceptionGroup as error:
        raise alone(error) from None
    return changing.result()
