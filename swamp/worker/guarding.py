"""The worker's side of its guard process: starts it, keeps it alive and tells it every group."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from datastore.errors import alone
from swamp.execute.environment import runner_environment
from swamp.protocol import CA_VARIABLE

_ROOT = str(Path(__file__).resolve().parents[2])
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from swamp.worker.guard import main; main()"
)
_RESTART_S = 1.0
_END_WITHIN_S = 0.1


class Guard:
    """A `Watch` for executions. While `running()` is entered, a guard process has the list."""

    def __init__(self, ca_cert: Path | None = None) -> None:
        """`ca_cert`: whom the guard trusts when it reports a death over TLS."""
        self._extra = {} if ca_cert is None else {CA_VARIABLE: str(ca_cert.absolute())}
        self._family: str | None = None
        self._left: dict[str, int] = {}
        self._unsaid: list[str] = []
        self._tell_death: str | None = None
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        """The guard process; None while there is none."""
        return None if self._process is None else self._process.pid

    def begin(self, family: str) -> None:
        self._family = family
        self._tell(f"begin {family}")

    def spawned(self, mark: str, group: int) -> None:
        self._left[mark] = group
        self._tell(f"group {group} {mark}")

    def end(self, mark: str) -> None:
        # It can wait for the next line a little: no pid comes again that soon.
        if self._left.pop(mark, None) is not None:
            self._unsaid.append(f"end {mark}")
            if len(self._unsaid) == 1:
                asyncio.get_running_loop().call_later(_END_WITHIN_S, self._tell)

    def tell_death_to(self, url: str, instance: str, credential: str) -> None:
        # Without a credential, nobody would believe it.
        self._tell_death = f"tell {json.dumps([url, instance, credential])}" if credential else None
        self._tell(self._tell_death or "over")

    def over(self) -> None:
        """The worker ends in order: nobody has to be told."""
        self._tell_death = None
        self._tell("over")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Guard]:
        """Keep a guard process alive; at the end it has gone as well."""
        await self._start()
        failed: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                keeper = tasks.create_task(self._keep())
                try:
                    yield self
                finally:
                    keeper.cancel()
        except BaseExceptionGroup as group:
            # Raised below, once the guard has gone; that a group kept it is nobody's business.
            failed = alone(group)
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            await process.wait()
        if failed is not None:
            raise failed

    async def _keep(self) -> None:
        while True:
            if self._process is not None:
                await self._process.wait()
            await asyncio.sleep(_RESTART_S)
            await self._start()

    async def _start(self) -> None:
        # Its own session: a Ctrl-C in the worker's terminal must not reach it. It holds none of
        # the worker's streams, so that whoever reads them sees their end when the worker dies.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", "-c", _PROGRAM, _ROOT),
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=DEVNULL,
            cwd="/",
            env=runner_environment(os.environ, {}, self._extra),
            start_new_session=True,
        )
        self._unsaid.clear()
        known = [] if self._family is None else [f"begin {self._family}"]
        known += [] if self._tell_death is None else [self._tell_death]
        self._tell(*known, *(f"group {group} {mark}" for mark, group in self._left.items()))

    def _tell(self, *lines: str) -> None:
        text = "".join(f"{line}\n" for line in (*self._unsaid, *lines))
        self._unsaid.clear()
        pipe = None if self._process is None else self._process.stdin
        if text and pipe is not None and not pipe.is_closing():
            pipe.write(text.encode())
