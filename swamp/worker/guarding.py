"""The worker's side of its guard process: starts it and keeps it alive."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from datastore.errors import alone
from swamp.execute.environment import runner_environment
from swamp.protocol import CA_VARIABLE
from swamp.worker import real_time
from swamp.worker.group_table import GroupTable

_ROOT = str(Path(__file__).resolve().parents[2])
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from swamp.worker.guard import main;"
    " main(int(sys.argv[2]))"
)
_RESTART_S = 1.0
"""A guard that lived for less than this is not replaced any faster."""

END_WITHIN_S = 30.0
"""Longer than a guard takes at its end, also where it reports a death to nobody, seconds."""


class Guard:
    """A `Watch` for executions. While `running()` is entered, a guard process has the table."""

    def __init__(self, ca_cert: Path | None = None) -> None:
        """`ca_cert`: whom the guard trusts when it reports a death over TLS."""
        self._extra = {} if ca_cert is None else {CA_VARIABLE: str(ca_cert.absolute())}
        self._family: str | None = None
        self._groups: GroupTable | None = None
        self._entries: dict[str, tuple[int, int]] = {}
        self._begin_before_s = math.inf
        self._tell_death: str | None = None
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        """The guard process; None while there is none."""
        return None if self._process is None else self._process.pid

    def begin(self, family: str) -> None:
        self._family = family
        self._tell(f"begin {family}")

    def expect(self, mark: str) -> None:
        if self._groups is not None:
            number = int(mark.rpartition(".")[2])
            self._entries[mark] = self._groups.expect(number), number

    def too_late(self, mark: str) -> bool:
        # The guard leaves it to us for a while if it stood still as well.
        return real_time.now_s() >= self._begin_before_s or self.gave_up(mark)

    def spawned(self, mark: str, group: int) -> None:
        entry = self._entries.get(mark)
        if self._groups is not None and entry is not None:
            self._groups.enter(entry[0], group)

    def emptied(self, mark: str) -> None:
        entry = self._entries.get(mark)
        if self._groups is not None and entry is not None:
            self._groups.forget_group(entry[0])

    def gave_up(self, mark: str) -> bool:
        entry = self._entries.get(mark)
        return self._groups is not None and entry is not None and self._groups.was_given_up(*entry)

    def end(self, mark: str) -> None:
        entry = self._entries.pop(mark, None)
        if self._groups is not None and entry is not None:
            self._groups.leave(entry[0])

    def begin_before(self, at_s: float) -> None:
        self._begin_before_s = at_s

    def give_up_at(self, at_s: float) -> None:
        if self._groups is not None:
            self._groups.set_limit(at_s)

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
        self._groups = GroupTable()
        try:
            async with self._kept(self._groups):
                yield self
        finally:
            self._groups.close()
            self._groups = None
            self._entries.clear()

    @asynccontextmanager
    async def _kept(self, groups: GroupTable) -> AsyncIterator[None]:
        await self._start(groups)
        failed: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                keeper = tasks.create_task(self._keep(groups))
                try:
                    yield
                finally:
                    keeper.cancel()
        except BaseExceptionGroup as group:
            # Raised below, once the guard has gone; that a group kept it is nobody's business.
            failed = alone(group)
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            try:
                async with asyncio.timeout(END_WITHIN_S):
                    await process.wait()
            except TimeoutError:
                # It was stopped, say: no work is left that it could end.
                process.kill()
                await process.wait()
        if failed is not None:
            raise failed

    async def _keep(self, groups: GroupTable) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            if self._process is not None:
                await self._process.wait()
            # At once, so that the worker is not without one; unless that one ended at once, too.
            if loop.time() - began < _RESTART_S:
                await asyncio.sleep(_RESTART_S)
            # Where nothing can be started just now, what runs is not ended for that.
            with suppress(OSError):
                await self._start(groups)

    async def _start(self, groups: GroupTable) -> None:
        # Its own session: a Ctrl-C in the worker's terminal must not reach it. It holds none of
        # the worker's streams, so that whoever reads them sees their end when the worker dies.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", "-c", _PROGRAM, _ROOT, str(groups.handle)),
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=DEVNULL,
            cwd="/",
            env=runner_environment(os.environ, {}, self._extra),
            start_new_session=True,
            pass_fds=(groups.handle,),
        )
        known = [] if self._family is None else [f"begin {self._family}"]
        self._tell(*known, *([] if self._tell_death is None else [self._tell_death]))

    def _tell(self, *lines: str) -> None:
        text = "".join(f"{line}\n" for line in lines)
        pipe = None if self._process is None else self._process.stdin
        if text and pipe is not None and not pipe.is_closing():
            pipe.write(text.encode())
