"""One run in the process of the command that started it, when no server holds the repository.

Makes true: the same controllers as in `swamp serve` make the run go on, the repository's lock is
held and its socket answers meanwhile, and all of it ends when the command says so. Runs of other
such commands that were killed are ended; no other record is continued, swept or ended here: that is
for the next `swamp serve`.
"""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from controllers.retention import Keep
from datastore.clock import SystemClock
from datastore.errors import alone
from datastore.ids import uuid7
from datastore.layout import Layout
from datastore.lock import RepositoryLock
from swamp.serve.api import Api
from swamp.serve.listening import application, on_socket
from swamp.serve.orchestrator import Orchestrator, Report
from swamp.serve.serve_options import ServeOptions
from swamp.serve.served import Served
from swamp.serve.sessions import Sessions
from swamp.serve.starting import start_run


class OwnRun:
    """Context in which the run goes on; `id` is the run's."""

    def __init__(self, layout: Layout, request: dict[str, Any], keep: Keep, report: Report) -> None:
        """`request` is the body of `POST /api/v1/runs`; `report` is called in another thread."""
        self.id = uuid7(SystemClock().now(), random.SystemRandom())
        self._layout = layout
        self._request = request
        self._report = report
        self._options = ServeOptions(root=layout.root, keep=keep, only_run=self.id)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._started: Future[None] = Future()
        self._failed: BaseException | None = None
        self.interrupted: KeyboardInterrupt | None = None
        """What came while the run was being started."""
        # Not a daemon: the steps that it runs end before the process does.
        self._thread = threading.Thread(target=self._run, name="own-run")

    def __enter__(self) -> OwnRun:
        """Return once the run has started and the socket answers.

        RepositoryLocked, and every SwampError that a server would refuse the run with.
        """
        self._thread.start()
        try:
            self._await_start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop; steps that still run are killed. Degraded when the disk refuses the last words."""
        self._end()
        if self._failed is not None:
            raise self._failed

    def failed(self) -> BaseException | None:
        """What has ended it before it was told to; None while it goes on."""
        return self._failed

    def _await_start(self) -> None:
        try:
            self._started.result()
        except KeyboardInterrupt as interrupt:
            # The run may have begun: whoever follows it has to cancel it. A second one is final.
            self.interrupted = interrupt
            self._started.result()

    def _end(self) -> None:
        if self._loop is None:
            # An interrupt at the very start: it is not begun then.
            self._stop.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            held_for = f"run {self.id} of workflow '{self._request['workflow']}'"
            with RepositoryLock(self._layout, held_for=held_for) as lock:
                asyncio.run(self._orchestrate(lock))
        except BaseException as error:
            # Told where the command is: this thread has nobody who could mend it.
            if self._started.done():
                self._failed = alone(error)
            else:
                self._started.set_exception(alone(error))

    async def _orchestrate(self, lock: RepositoryLock) -> None:
        self._loop = asyncio.get_running_loop()
        own = Orchestrator(self._options, lock, self._report, self._front, stop=self._stop.set)
        await own.run()

    async def _front(self, served: Served, api: Api, sessions: Sessions) -> None:
        if self._stop.is_set():
            return
        await start_run(served, self._request, self.id)
        admin = application(api, api.health, admin=True)
        async with on_socket(served.layout, admin, served.own_socket):
            self._started.set_result(None)
            await self._stop.wait()
