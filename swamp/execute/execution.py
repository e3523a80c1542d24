"""One dispatch as one child process: `sh -c`, its own group, folder and environment.

Promises: whatever happens, `run` ends with an Outcome and nothing of the dispatch stays behind, be
it in the group or outside of it; the last byte of output reaches the sink before the outcome.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from datastore.kinds import Outcome
from swamp.execute.calls import ShellCall
from swamp.execute.child import Child, start_child
from swamp.execute.ending import TIMED_OUT, WORKER_LOST, Ending, describe, never_begun, not_started
from swamp.execute.leftovers import Leftovers, Scratch
from swamp.execute.processes import (
    DISPATCH_VARIABLE,
    MARK_VARIABLE,
    group_alive,
    group_exists,
    signal_group,
)
from swamp.execute.redaction import Redactor, masked_outcome
from swamp.execute.streams import Output, OutputLimits, Pump, Sink
from swamp.traces import Traces

_GROUP_POLL_S = 0.05
_LAST_WORDS_S = 1.0
"""How long the pipes of a killed group are read; what it wrote before is in them."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a stopped group may take after TERM, and open pipes after the child's exit."""

    kill_after_s: float = 10.0
    drain_s: float = 5.0


class Watch(Protocol):
    """Somebody who outlives us: knows which processes exist, ends them, and tells of our death."""

    def tell_death_to(self, url: str, instance: str, credential: str) -> None:
        """Where and how to tell, should this process die."""

    def begin(self, family: str) -> None:
        """Processes with a mark of this family (`FAMILY.…`) may exist from now on."""

    def expect(self, mark: str) -> None:
        """The execution is about to have a process."""

    def too_late(self, mark: str) -> bool:
        """Whether it must not have one any more: it is given up, or should have been."""

    def spawned(self, mark: str, group: int) -> None:
        """The execution has this process group."""

    def emptied(self, mark: str) -> None:
        """The group is empty; others may still have the mark."""

    def begin_before(self, at_s: float) -> None:
        """From when on nothing more may have a process, unless another moment is named before."""

    def give_up_at(self, at_s: float) -> None:
        """When to end what runs, by `real_time`, unless another moment is named before."""

    def gave_up(self, mark: str) -> bool:
        """Whether that execution was ended for this."""

    def end(self, mark: str) -> None:
        """Nothing of that execution is left."""


class Unwatched:
    """Nobody is told."""

    def tell_death_to(self, url: str, instance: str, credential: str) -> None:
        pass

    def begin(self, family: str) -> None:
        pass

    def expect(self, mark: str) -> None:
        pass

    def too_late(self, mark: str) -> bool:
        return False

    def spawned(self, mark: str, group: int) -> None:
        pass

    def emptied(self, mark: str) -> None:
        pass

    def begin_before(self, at_s: float) -> None:
        pass

    def give_up_at(self, at_s: float) -> None:
        pass

    def gave_up(self, mark: str) -> bool:
        return False

    def end(self, mark: str) -> None:
        pass


@dataclass(frozen=True)
class Host:
    """What all executions of a process share; one per event loop. `scratch` must exist.

    Their marks are of the `family`.
    """

    scratch: Path
    watch: Watch = field(default_factory=Unwatched)
    patience: Patience = field(default_factory=Patience)
    limits: OutputLimits = field(default_factory=OutputLimits)
    traces: Traces | None = None
    came_room: Callable[[OSError, float], Awaitable[bool]] | None = None
    """Asked where a scratch folder or a process is refused, and has been for so long, seconds:
    whether to try again; may take its time."""
    family: str = field(default_factory=lambda: uuid.uuid4().hex)
    leftovers: Leftovers = field(init=False)
    _numbers: Iterator[int] = field(default_factory=itertools.count, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "leftovers", Leftovers(self.scratch))
        self.watch.begin(self.family)

    def new_mark(self) -> str:
        """What marks the processes of one execution."""
        return f"{self.family}.{next(self._numbers)}"


@dataclass(frozen=True, slots=True)
class Order:
    """What to execute. `environment` is complete but for the marks; `timeout_s` is the step's.

    `redactor` masks what may not show in output and outcome.
    """

    dispatch: str
    call: ShellCall
    environment: Mapping[str, str]
    timeout_s: float | None = None
    redactor: Redactor = field(default_factory=lambda: Redactor(()), repr=False)

    @property
    def limit_s(self) -> float | None:
        """The nearer of the step's and the call's time limits, seconds."""
        own_s = None if self.call.timeout_ms is None else self.call.timeout_ms / 1000
        return min((s for s in (own_s, self.timeout_s) if s is not None), default=None)


class _Unwanted(Exception):
    """It was stopped while it waited for its folder, or for its process."""


class Execution:
    """One order being executed. `run` once; `stop` and `kill` at any time, from the event loop."""

    def __init__(self, order: Order, sink: Sink, host: Host) -> None:
        self._order = order
        self._mark = host.new_mark()
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._output = Output(sink, host.limits)
        self._pumps = (
            Pump("stdout", self._output, order.redactor),
            Pump("stderr", self._output, order.redactor),
        )
        self._process: Child | None = None
        self._group: int | None = None
        """Its group, as long as anybody may be in it: later its number may be a stranger's."""
        self._stopped: str | None = None
        self._patience_s = host.patience.kill_after_s
        self._kill_at = 0.0
        self._timers: list[asyncio.TimerHandle] = []
        self._refused_at: float | None = None

    def stop(self, reason: str) -> None:
        """TERM to the group, KILL after the patience; the outcome has this reason.

        The first reason counts. Without effect once the child has exited by itself.
        """
        if self._stopped is None and not self._exited():
            self._stopped = reason
            self._terminate()

    def kill(self, reason: str) -> None:
        """KILL to the group at once, also after a `stop`."""
        self._patience_s = 0.0
        self.stop(reason)
        self._kill_at = self._loop.time()
        self._signal(signal.SIGKILL)

    async def run(self) -> Outcome:
        """Execute; the outcome, whichever it is. Cancelling it kills the group."""
        began = self._loop.time()
        scratch: Scratch | None = None
        try:
            self._host.watch.expect(self._mark)
            scratch = await self._new_scratch()
            outcome = await self._run_in(self._directory(scratch.path))
        except _Unwanted:
            outcome = never_begun(self._stopped or "cancelled", self._order.limit_s)
        except (OSError, ValueError) as error:
            outcome = not_started(error, self._order.call, self._order.environment)
        finally:
            self._disarm()
            if scratch is not None:
                child = self._process.birth if self._process is not None else None
                await self._host.leftovers.clear(self._mark, scratch, child)
            self._host.watch.end(self._mark)
        took_ms = round((self._loop.time() - began) * 1000)
        outcome = outcome.model_copy(update={"duration_ms": took_ms})
        return masked_outcome(outcome, self._order.redactor)

    async def _new_scratch(self) -> Scratch:
        """A folder, unless there is no need of one any more; OSError."""
        while True:
            try:
                return await self._host.leftovers.new_scratch()
            except OSError as error:
                await self._until_again(error)

    async def _until_again(self, error: OSError) -> None:
        """Return when it is to be tried again; the error if never, _Unwanted if stopped meanwhile.

        The time limit counts from the first refusal.
        """
        came_room, now = self._host.came_room, self._loop.time()
        if self._refused_at is None:
            self._refused_at = now
            self._arm()
        if came_room is None or not await came_room(error, now - self._refused_at):
            raise error
        if self._stopped is not None:
            raise _Unwanted from error

    async def _run_in(self, directory: str) -> Outcome:
        while self._process is None:
            if self._stopped is not None:
                return never_begun(self._stopped, self._order.limit_s)
            if self._host.watch.too_late(self._mark):
                return never_begun(WORKER_LOST)
            try:
                self._process = self._spawn(directory)
            except OSError as error:
                await self._until_again(error)
        return await self._attend(self._process)

    async def _attend(self, process: Child) -> Outcome:
        self._group = process.pid
        try:
            self._host.watch.spawned(self._mark, process.pid)
            if self._host.watch.too_late(self._mark):
                # We stood still since it was asked; the shell has hardly been loaded.
                self.kill(WORKER_LOST)
            self._host.leftovers.born(process.birth)
            self._arm()
            async with asyncio.TaskGroup() as tasks:
                for pump in self._pumps:
                    tasks.create_task(pump.run())
                await process.wait()
                if not group_exists(process.pid):
                    self._group_is_empty()
                if self._stopped is None and self._host.watch.gave_up(self._mark):
                    self._stopped = WORKER_LOST
                self._drain()
            await self._let_group_end()
        finally:
            await self._clean_up(process)
        if any(pump.truncated for pump in self._pumps):
            await self._output.note("output truncated: a background process kept the stream open")
        return describe(
            Ending(process.returncode or 0, self._stopped, self._order.limit_s),
            self._order.call,
            (self._output.text("stdout"), self._output.text("stderr")),
        )

    def _spawn(self, directory: str) -> Child:
        ends: list[int] = []
        try:
            for pump in self._pumps:
                ends.append(pump.open())  # noqa: PERF401
            command = ("/bin/sh", "-c", self._order.call.run)
            return start_child(command, directory, self._environment(), (ends[0], ends[1]))
        except BaseException:
            self._close_pumps()
            raise
        finally:
            for end in ends:
                os.close(end)

    def _environment(self) -> dict[str, str]:
        return {
            **self._order.environment,
            DISPATCH_VARIABLE: self._order.dispatch,
            MARK_VARIABLE: self._mark,
        }

    def _arm(self) -> None:
        if self._order.limit_s is not None and not self._timers:
            self._timers.append(self._loop.call_later(self._order.limit_s, self.stop, TIMED_OUT))

    def _disarm(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _terminate(self) -> None:
        if self._process is None:
            # It is not begun then.
            return
        self._kill_at = self._loop.time() + self._patience_s
        self._timers.append(self._loop.call_at(self._kill_at, self._signal, signal.SIGKILL))
        self._signal(signal.SIGTERM if self._patience_s else signal.SIGKILL)

    def _drain(self) -> None:
        """The child is gone: its pipes end soon, or belong to a process in the background."""
        drain_s = self._host.patience.drain_s
        if self._stopped is not None:
            drain_s = max(_LAST_WORDS_S, self._kill_at - self._loop.time())
        for pump in self._pumps:
            pump.child_exited(drain_s)

    async def _let_group_end(self) -> None:
        # After a TERM the rest of the group has the same patience as the child, for example a
        # service that flushes its files. There is no event for "the group is empty".
        if self._stopped is None:
            return
        group = self._group
        while group is not None and self._loop.time() < self._kill_at:
            if not await asyncio.to_thread(group_alive, group):
                return
            await asyncio.sleep(_GROUP_POLL_S)

    async def _clean_up(self, process: Child) -> None:
        self._disarm()
        self._signal(signal.SIGKILL)
        await process.wait()
        # Whoever was in it dies, and nobody can come.
        self._group_is_empty()
        self._close_pumps()

    def _group_is_empty(self) -> None:
        if self._group is not None:
            self._group = None
            self._host.watch.emptied(self._mark)

    def _signal(self, number: signal.Signals) -> None:
        if self._group is not None:
            signal_group(self._group, number)

    def _exited(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    def _close_pumps(self) -> None:
        for pump in self._pumps:
            pump.close()

    def _directory(self, scratch: str) -> str:
        return os.path.join(scratch, self._order.call.working_dir or "")
