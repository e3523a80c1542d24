"""Steps without a placement, executed by the orchestrator itself.

Their output goes to the run's event log like a worker's; their end is told to the run controller.
They die with the server (the guard sees to it), and the boot sweep says so.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from controllers.ports import LocalEnded
from datastore.errors import SwampError
from datastore.kinds import STEPS, Call, Outcome, Step
from datastore.store import Store
from swamp.execute.calls import ShellCall
from swamp.execute.environment import runner_environment
from swamp.execute.execution import Execution, Host, Order
from swamp.execute.streams import StreamName
from swamp.serve.sessions import OutputLog
from swamp.worker.guarding import Guard


class LocalRunner:
    """The run controller's `LocalExecutor`. Runs inside `run()`."""

    def __init__(self, store: Store, output: OutputLog, scratch: Path) -> None:
        self._store = store
        self._output = output
        self._scratch = scratch
        self._guard = Guard()
        self._running: dict[str, Execution | None] = {}
        self._group: asyncio.TaskGroup | None = None
        self._waiting: list[Callable[[], None]] = []
        self._ended: LocalEnded = lambda step, outcome: None

    def bind(self, ended: LocalEnded) -> None:
        """Tell the ends of steps to this."""
        self._ended = ended

    async def run(self) -> None:
        """Execute what is started, until cancelled; then everything is killed."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._host = Host(scratch=self._scratch, watch=self._guard)
        async with self._guard.running(), asyncio.TaskGroup() as group:
            self._group = group
            for start in self._waiting:
                start()
            self._waiting.clear()
            await asyncio.Event().wait()

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

    async def _execute(self, name: str, call: Call, timeout_s: float | None) -> None:
        step = self._store.find(STEPS, name)
        if step is None or not step.live:
            self._running.pop(name, None)
            return
        try:
            order = Order(
                dispatch=name,
                call=ShellCall.parse(call),
                environment=_environment(call),
                timeout_s=timeout_s,
            )
        except SwampError as error:
            self._finish(name, Outcome(ok=False, reason="start_failed", error=str(error)))
            return
        # `git clean -fdx` may have removed it since the start.
        await asyncio.to_thread(self._scratch.mkdir, parents=True, exist_ok=True)
        execution = Execution(order, self._sink(step), self._host)
        self._running[name] = execution
        self._finish(name, await execution.run())

    def _finish(self, name: str, outcome: Outcome) -> None:
        self._running.pop(name, None)
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


def _environment(call: Call) -> Mapping[str, str]:
    extra = call.arguments.get("env") or {}
    return runner_environment(os.environ, {}, extra)
