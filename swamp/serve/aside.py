"""Answers that take long to make, aside from the event loop.

On the loop a handler only takes hold of what it tells of: references to records, which never
change. Those are parsed, shown and encoded in a thread that leaves two thirds of the interpreter to
the loop, however many such answers are under way. What only the loop knows is asked in slices.

Promises: such an answer is told like any other (`answers.told`); it tells of one moment; few
records are told at once, without a thread; a client that leaves costs nothing from then on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from aiohttp import hdrs, web

from datastore.beside_loop import beside_the_loop
from datastore.courtesy import REST_PER_WORK, Pause, Time, no_pause
from datastore.sqlite_file import to_json
from datastore.store import Store
from swamp.serve.answers import refuse_if_left, told_headers, unless_left

FEW = 100
"""So many records are parsed, shown and encoded in two milliseconds."""

AT_ONCE = 3
"""Threads that work at the same time. They are of the pool that looks at files, too."""

SLICE_S = 0.001
"""How long the loop works on one answer at a time."""

PIECE_BYTES = 64 << 10
READ_WITHIN_S = 60.0
"""A client that takes no piece for so long is let go: the rest of its answer is in memory."""

Found = TypeVar("Found")


class Aside:
    """Makes the large answers of one server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._under_way = 0
        self._clocks = Time(rest=self._rest)

    async def told(
        self, request: web.Request, size: int, make: Callable[[Pause], Any]
    ) -> web.StreamResponse:
        """The answer to a question about `size` records; `make` pauses after each of them.

        The view that it makes must be nobody else's.
        """
        if size <= FEW:
            pieces = list(encoded(make(no_pause), no_pause))
            return web.Response(body=b"".join(pieces), headers=await told_headers(self._store))
        pieces = await self.worked(request, size, lambda pause: list(encoded(make(pause), pause)))
        return await self._sent(request, pieces)

    async def worked(
        self, request: web.Request, size: int, work: Callable[[Pause], Found]
    ) -> Found:
        """What the work on so many records finds."""
        if size <= FEW:
            return work(no_pause)
        return await unless_left(request, self._in_turn(work))

    async def sliced(self, request: web.Request, items: Iterable[Found]) -> list[Found]:
        """The items, each of which only the loop can make; others get their turn meanwhile."""
        clock = asyncio.get_running_loop().time
        found, began_s = [], clock()
        for item in items:
            found.append(item)
            if clock() - began_s >= SLICE_S:
                await asyncio.sleep(0)
                refuse_if_left(request)
                began_s = clock()
        return found

    async def _in_turn(self, work: Callable[[Pause], Found]) -> Found:
        async with self._turns:
            self._under_way += 1
            try:
                return await beside_the_loop(work, self._clocks)
            finally:
                self._under_way -= 1

    def _rest(self, rest_s: float) -> None:
        """Rest for the others, too: all of them together leave as much to the loop as one."""
        count = max(1, self._under_way)
        time.sleep(rest_s * (count * (1 + REST_PER_WORK) - 1) / REST_PER_WORK)

    async def _sent(self, request: web.Request, pieces: list[bytes]) -> web.StreamResponse:
        """The answer, as fast as the client takes it; one large write would hold up the loop."""
        response = web.StreamResponse(headers=await told_headers(self._store))
        response.content_length = sum(map(len, pieces))
        await response.prepare(request)
        if request.method != hdrs.METH_HEAD:
            for piece in pieces:
                try:
                    async with asyncio.timeout(READ_WITHIN_S):
                        await response.write(piece)
                except TimeoutError:
                    if request.transport is not None:
                        request.transport.abort()
                    raise ConnectionResetError("the client does not read its answer") from None
                await asyncio.sleep(0)
        await response.write_eof()
        return response


def encoded(view: Any, pause: Pause) -> Iterator[bytes]:
    """The view as JSON, in pieces; bytes in a list are the JSON of their item already.

    Lists of objects are emptied on the way: to let go of all their objects at the end would take
    as long as to encode them, and nobody else would get the interpreter.
    """
    piece = bytearray()
    for part in _parts(view, pause):
        piece += part
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def _parts(value: Any, pause: Pause) -> Iterator[bytes]:
    if isinstance(value, list):
        yield b"["
        for at, item in enumerate(value):
            if at:
                yield b","
            yield from _parts(item, pause)
            value[at] = None
            pause()
        yield b"]"
    elif isinstance(value, dict) and any(map(_has_objects, value.values())):
        yield b"{"
        for at, (key, part) in enumerate(value.items()):
            yield (b"," if at else b"") + to_json(key) + b":"
            # Only what is surely the view's own is emptied: other values may belong to records.
            yield from _parts(part, pause) if _has_objects(part) else (to_json(part),)
        yield b"}"
    else:
        yield value if isinstance(value, bytes) else to_json(value)


def _has_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], (dict, bytes))
