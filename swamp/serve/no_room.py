"""A server on a full disk: what needs room waits for it, and says so, instead of ending.

Makes true: a repository that cannot be opened for want of room is opened as soon as there is some,
health is answered meanwhile (*degraded*, with the reason), and a stop ends that wait in order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from controllers.retention import Keep
from datastore.errors import DiskFull
from datastore.lock import RepositoryLock
from datastore.regular_file import NO_FILE_MORE
from datastore.room import NO_ROOM, has_room
from datastore.trouble import Trouble, together
from swamp.dialling import DEGRADED_HEADER
from swamp.open_files import may_open
from swamp.serve.answers import health, in_a_header, with_expectations
from swamp.serve.come_back import spread_s
from swamp.serve.listening import runner_of
from swamp.serve.reception import Door

LOOK_EVERY_S = 1.0
"""How often it is tried whether there is room."""

SAY_EVERY_S = 30.0
"""How often the log says what is waited for."""

STEP_BYTES = 1 << 14
"""What the folder of a step may need on any disk."""

STEP_FILES = 8
"""Open files that starting a step needs at the most, for a moment."""

RETRY_AFTER_S = 5
"""What workers and clients are told that come meanwhile, about: see `spread_s`."""

log = logging.getLogger(__name__)

Opened = TypeVar("Opened")


class OpeningOnceThereIsRoom:
    """Opens a repository, now or once its disk, that of `folder`, has room."""

    def __init__(
        self,
        lock: RepositoryLock,
        keep: Keep,
        door: Door,
        stop: asyncio.Event,
        *,
        randomness: random.Random | None = None,
    ) -> None:
        """`door` is where health is answered meanwhile; with `stop` the waiting ends."""
        self._randomness = randomness or random.Random()
        self._folder, self._lock = lock.layout.private, lock
        self._keep, self._door, self._stop = keep, door, stop
        self._reason = ""
        self._say_at_s = 0.0

    async def __call__(self, open_: Callable[[], Opened]) -> Opened | None:
        """What `open_`, which blocks, answers; None when told to stop before it could."""
        try:
            return await asyncio.to_thread(open_)
        except DiskFull as error:
            await self._refused(error)
        self._say()
        async with self._answering():
            while not await self._stopped():
                if not await asyncio.to_thread(has_room, self._folder):
                    self._say()
                    continue
                try:
                    opened = await asyncio.to_thread(open_)
                except DiskFull as error:
                    await self._refused(error)
                    self._say()
                else:
                    await asyncio.to_thread(self._lock.waits_for, None)
                    log.warning("there is room on the disk: the server starts")
                    return opened
        return None

    async def _stopped(self) -> bool:
        """Whether that is so within a while."""
        try:
            await asyncio.wait_for(self._stop.wait(), LOOK_EVERY_S)
        except TimeoutError:
            return False
        return True

    async def _refused(self, error: DiskFull) -> None:
        self._reason = (
            "the disk is full, make room on it (`swamp run prune` needs some itself): the server"
            " waits for that and starts then. Nothing is damaged, and nothing is to be removed from"
            f" .swamp/: {error.refused}"
        )
        # For commands here, which find the server by its lock.
        await asyncio.to_thread(self._lock.waits_for, self._reason)

    def _say(self) -> None:
        if time.monotonic() >= self._say_at_s:
            self._say_at_s = time.monotonic() + SAY_EVERY_S
            log.error("%s", self._reason)

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """Answer over the network meanwhile: health, and a refusal to all else.

        Not on the repository's own socket: commands that only read find the records by themselves.
        """
        app = web.Application()
        app.add_routes(with_expectations([web.route("*", "/{path:.*}", self._answer)]))
        runner = runner_of(app)
        await runner.setup()
        try:
            # The site closes its socket at the end; who comes then waits in the kernel.
            own = self._door.listener.dup()
            await web.SockSite(runner, own, ssl_context=self._door.tls).start()
            yield
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        asks_health = request.path in ("/", "/health") and request.method in ("GET", "HEAD")
        if asks_health and "Upgrade" not in request.headers:
            return web.json_response(health(self._reason, False, 0, self._keep))
        refused: dict[str, Any] = {"error": self._reason, "code": "degraded"}
        again_s = spread_s(RETRY_AFTER_S, self._randomness)
        headers = {"Retry-After": str(again_s), DEGRADED_HEADER: in_a_header(self._reason)}
        return web.json_response(refused, status=503, headers=headers)


class RoomForSteps:
    """Room on the disk and open files, as the server's own steps need them.

    They wait for these, and `trouble` tells.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._none = Trouble("steps on the server wait for room on the disk", log)
        self._few_files = Trouble("steps on the server wait until they may open files", log)

    @property
    def trouble(self) -> str | None:
        """Why they wait just now; None while they need not."""
        return together((self._none.reason, self._few_files.reason))

    async def came_after(self, error: OSError, _waited_s: float = 0.0) -> bool:
        """True after a while if it was for want of room, or of files: it may be tried again.

        At once if not. However long it takes: they wait for what passes.
        """
        if error.errno not in NO_ROOM and error.errno not in NO_FILE_MORE:
            return False
        lack = self._none if error.errno in NO_ROOM else self._few_files
        # Without the name of what could not be made: that is another one each time.
        lack.found(OSError(error.errno, os.strerror(error.errno)))
        await asyncio.sleep(LOOK_EVERY_S)
        return True

    async def once_there_is(self, take: Callable[[], Awaitable[Opened]]) -> Opened:
        """What `take` answers, tried until there is room for it."""
        while True:
            try:
                taken = await take()
            except OSError as error:
                if not await self.came_after(error):
                    raise
            else:
                self._none.over()
                self._few_files.over()
                return taken

    async def keep_looking(self) -> None:
        """Note when there is room again, also if nobody waits for it any more. For ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._few_files.reason is not None and await asyncio.to_thread(may_open, STEP_FILES):
                self._few_files.over()
            if self._none.reason is None:
                continue
            if await asyncio.to_thread(has_room, self._folder, STEP_BYTES):
                self._none.over()
