"""Steps without a placement, executed by the orchestrator itself.

Their output goes to the run's event log like a worker's; their end is told to the run controller.
They die with the server (the guard sees to it), and the boot sweep says so.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from controllers.ports import LocalEnded
from datastore.errors import SwampError
from datastore.kinds import STEPS, Call, Outcome, Step
from datastore.layout import Layout, make_folder
from datastore.store import Store
from swamp.execute.calls import ShellCall
from swamp.execute.ending import never_begun
from swamp.execute.environment import (
    commands_folder,
    data_environment,
    runner_environment,
    with_commands,
)
from swamp.execute.execution import Execution, Host, Order
from swamp.execute.redaction import Redactor
from swamp.execute.scratch import take_scratch
from swamp.execute.streams import StreamName
from swamp.serve.dispatch_secrets import DispatchSecrets
from swamp.serve.no_room import RoomForSteps
from swamp.serve.output_log import OutputLog
from swamp.traces import STEP, trace_environment
from swamp.worker.guarding import Guard

log = logging.getLogger(__name__)

ROOT_LOOK_S = 0.2
"""How often a step looks whether the repository is back before it begins."""


class LocalRunner:
    """The run controller's `LocalExecutor`. Runs inside `run()`."""

    def __init__(
        self,
        store: Store,
        output: OutputLog,
        layout: Layout,
        secrets: DispatchSecrets,
        *,
        traced: bool = False,
    ) -> None:
        """`traced`: whether our spans are sent, so that those of runners have a parent."""
        self._store = store
        self._traced = traced
        self._secrets = secrets
        self._data_url = ""
        self._commands = commands_folder()
        self._output = output
        self._layout = layout
        self._scratch = layout.private / "scratch"
        self._room = RoomForSteps(layout.private)
        self._guard = Guard()
        self._running: dict[str, Execution | None] = {}
        self._stopped: set[str] = set()
        """Steps that were stopped before their execution was there."""
        self._group: asyncio.TaskGroup | None = None
        self._waiting: list[Callable[[], None]] = []
        self._ended: LocalEnded = lambda step, outcome: None

    def bind(self, ended: LocalEnded) -> None:
        """Tell the ends of steps to this."""
        self._ended = ended

    @property
    def trouble(self) -> str | None:
        """Why steps wait for the disk just now; None while they need not."""
        return self._room.trouble

    async def run(self, data_url: str) -> None:
        """Execute what is started, until cancelled; then everything is killed.

        Steps put their outputs at `data_url`.
        """
        self._data_url = data_url
        # What an earlier server ran is ended, should it have died together with its guard.
        scratch = await self._room.once_there_is(
            partial(asyncio.to_thread, take_scratch, self._scratch)
        )
        if scratch.warning is not None:
            log.warning("%s", scratch.warning)
        self._host = Host(
            scratch.folder, self._guard, family=scratch.family, came_room=self._room.came_after
        )
        try:
            async with self._guard.running(), asyncio.TaskGroup() as group:
                group.create_task(self._room.keep_looking())
                self._group = group
                for start in self._waiting:
                    start()
                self._waiting.clear()
                await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(scratch.remove)

    def running(self, step: str) -> bool:
        return step in self._running

    def start(self, step: str, call: Call, timeout_s: float | None) -> None:
        self._running[step] = None

        def begin() -> None:
            if self._group is None:
                self._waiting.append(begin)
            else:
                self._group.create_task(self._execute(step, call, timeout_s))

        self._store.after_barrier(begin)

    def stop(self, step: str) -> None:
        execution = self._running.get(step)
        if execution is not None:
            execution.stop("cancelled")
        elif step in self._running:
            self._stopped.add(step)
            if self._group is None:
                # There may be no room for it for long.
                self._finish(step, never_begun("cancelled"))

    async def _execute(self, name: str, call: Call, timeout_s: float | None) -> None:
        step = self._store.find(STEPS, name)
        if step is None or not step.live:
            self._running.pop(name, None)
            return
        try:
            order = await self._order(name, call, timeout_s)
        except SwampError as error:
            self._finish(name, Outcome(ok=False, reason="start_failed", error=str(error)))
            return
        # `git clean -fdx` may have removed it since the start. What is in the way of that is in
        # the way of the execution, too, which tells it, or waits.
        with suppress(OSError):
            # Where the repository itself was moved, it comes back at once, or this all ends.
            while True:
                if await asyncio.to_thread(self._layout.root_is_here):
                    break
                await asyncio.sleep(ROOT_LOOK_S)
            await asyncio.to_thread(make_folder, self._layout, self._host.scratch)
        execution = Execution(order, self._sink(step), self._host)
        self._running[name] = execution
        if name in self._stopped:
            execution.stop("cancelled")
        self._finish(name, await execution.run())

    async def _order(self, name: str, call: Call, timeout_s: float | None) -> Order:
        opened = await asyncio.to_thread(self._secrets.open, name, call)
        parsed = ShellCall.parse(opened.call)
        trace = trace_environment(name, STEP) if self._traced else {}
        environment = runner_environment(os.environ, trace, parsed.env)
        environment |= data_environment(self._data_url, opened.credential)
        if parsed.outputs:
            environment = with_commands(environment, self._commands)
        return Order(
            dispatch=name,
            call=parsed,
            environment=environment,
            timeout_s=timeout_s,
            redactor=Redactor([*opened.secrets, opened.credential]),
        )

    def _finish(self, name: str, outcome: Outcome) -> None:
        self._running.pop(name, None)
        self._stopped.discard(name)
        self._secrets.forget(name)
        self._ended(name, outcome)

    def _sink(self, step: Step) -> Callable[[StreamName, bytes], Any]:
        number = 0

        async def take(stream: StreamName, data: bytes) -> None:
            nonlocal number
            number += 1
            event: dict[str, Any] = {
                "job": step.spec.job,
                "step": step.spec.step,
                "stream": stream,
            }
            try:
                event["text"] = data.decode()
            except UnicodeDecodeError:
                event["data"] = base64.b64encode(data).decode()
            written = asyncio.get_running_loop().create_future()
            self._output.output(
                step.spec.run,
                step.name,
                number,
                event,
                lambda: None if written.done() else written.set_result(None),
            )
            await written

        return take
