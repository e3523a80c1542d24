"""Simulated machines: the real worker over a simulated socket, with runners that only sleep.

A machine starts a worker process, and another one when that has died or drained. Everything but the
child processes is the code of `swamp.worker`: enrollment, back-off, grace, slots, outbox.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import swamp.worker.worker
from datastore.kinds import LEASES, Outcome
from datastore.kinds.dispatch_name import is_probe
from datastore.kinds.probe import MARKER, PROBE_TYPE
from sim.loop import Standstill
from sim.network import Wire
from sim.server import GRACE_S, SECRET, TOKEN, SimServer, Unreachable
from sim.world import World
from swamp.execute.execution import Execution, Host
from swamp.protocol import Dispatch, Refused
from swamp.worker import real_time
from swamp.worker.link import Link, SocketLost
from swamp.worker.machine import Machine as KnownMachine
from swamp.worker.options import WorkerOptions
from swamp.worker.outbox import Delivery
from swamp.worker.runners import Runners
from swamp.worker.worker import EXIT_DRAINED, Worker

STORE_ATTEMPTS = 20

WOKEN_S = 20.0
"""How long a machine that woke up may go on with what was given up while it stood still."""


@dataclass(frozen=True)
class Machine:
    """What a machine is, for as long as the world lasts."""

    name: str
    labels: dict[str, str]
    capacity: int


def worker_name_of(machine: Machine) -> str:
    """The name under which the machine's worker enrolls."""
    return f"{TOKEN}-{hashlib.sha256(machine.name.encode()).hexdigest()[:16]}"


class SimProcess(Worker):
    """One worker process."""

    def __init__(self, machine: Machine, world: World, server: Callable[[], SimServer]) -> None:
        options = WorkerOptions(
            url="ws://sim",
            token=f"{TOKEN}.{SECRET}",
            concurrency=machine.capacity,
            labels=machine.labels,
        )
        self.machine = machine
        self.world = world
        self.server = server
        self.executions: dict[str, SimExecution] = {}
        self.standstill = Standstill(world.loop)
        self._dead = False
        self._slept_s = self._asleep_since_s = 0.0
        self._wire: Wire | None = None
        _process.set(self)
        host = Host(scratch=Path("never-used"))
        world.starts[machine.name] += 1
        known = KnownMachine(machine.name, world.starts[machine.name] << 32)
        super().__init__(options, known, host, self._tell, world.rng)
        self._instance = f"{world.rng.getrandbits(64):016x}"

    async def live(self) -> None:
        """Work until it is drained; the machine never gives up."""
        code = await self.run()
        if code != EXIT_DRAINED:
            self.world.fail(f"{self.machine.name} gave up with exit code {code}")

    @property
    def wire(self) -> Wire | None:
        """The latest socket."""
        return self._wire

    @property
    def worker(self) -> str | None:
        """The name under which it is enrolled."""
        return None if self._enrolled is None else self._enrolled.worker

    async def dial(self) -> Link:
        """A socket to the server that is there now; SocketLost without one."""
        await asyncio.sleep(self.world.latency_s())
        server = self.server()
        away = self.world.away_until.get(self.machine.name, 0.0) > self.world.loop.now
        if away or not server.listening:
            raise SocketLost("connection refused")
        self._wire = server.connect(self.machine.name)
        return Link(self._wire.client)  # type: ignore[arg-type]

    def die(self) -> bool:
        """The process is killed: its runners die with it (the guard sees to that).

        False where it does not even notice, as it stands still, and now for ever.
        """
        self._dead = True
        for dispatch in sorted(self.executions):
            self.world.truth.over(dispatch)
        self.executions.clear()
        if self.standstill.is_on and self._wire is not None:
            self._wire.left_by_client()
        return not self.standstill.is_on

    @property
    def lived_s(self) -> float:
        """How long it has not stood still."""
        return self.world.loop.now - self._slept_s

    def fall_asleep(self) -> None:
        """The machine stands still: neither the process nor its runners do anything from now on."""
        self.standstill.begin()
        self._asleep_since_s = self.world.loop.now
        truth = self.world.truth
        for dispatch in sorted(self.executions):
            if truth.running.pop(dispatch, None) is not None:
                truth.asleep[dispatch] = self.machine.name

    def wake_up(self) -> None:
        """It goes on, as if no time had gone by."""
        if not self.standstill.is_on or self._dead:
            return
        self.world.say(f"{self.machine.name} wakes up")
        slept_s = self.world.loop.now - self._asleep_since_s
        self._slept_s += slept_s
        self.standstill.end(timers_last=self.world.sleep_rng.random() < 0.5)
        self.world.loop.call_later(WOKEN_S, self._is_awake, slept_s >= GRACE_S)

    def _is_awake(self, too_late: bool) -> None:
        """After its grace window, it must by now have given up what others may be doing."""
        truth = self.world.truth
        if self.standstill.is_on:
            return
        for dispatch in sorted(self.executions.keys() & truth.asleep):
            step = dispatch.rpartition(".")[0]
            truth.running[dispatch] = truth.asleep.pop(dispatch)
            if too_late and ("steps", step) in truth.told_ends:
                self.world.fail(f"{dispatch} still runs {WOKEN_S:g}s after its machine woke up")
        self.world.changed = True

    def _tell(self, event: dict[str, Any]) -> None:
        what = event.get("dispatchId") or event.get("reason") or ""
        self.world.say(f"{self.machine.name} {event['kind']} {what}")


_process: ContextVar[SimProcess] = ContextVar("process")


class _NoHttp:
    """What the worker opens instead of an HTTP client."""

    def __init__(self, connector: None) -> None:
        pass

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *error: object) -> None:
        return None


async def _dial(http: None, url: str, card: dict[str, str]) -> Link:
    return await _process.get().dial()


@contextmanager
def simulated_network() -> Iterator[None]:
    """Inside, workers dial simulated servers."""
    module = swamp.worker.worker
    http = SimpleNamespace(ClientSession=_NoHttp, TCPConnector=lambda **given: None)
    with (
        patch.multiple(module, dial=_dial, aiohttp=http, Runners=SimRunners),
        patch.object(real_time, "now_s", lambda: _process.get().world.loop.now),
    ):
        yield


class SimRunners(Runners):
    """Runners that sleep, and sometimes say busy by mistake."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._process = _process.get()
        self._executions = self._process.executions  # type: ignore[assignment]

    def take(self, frame: Dispatch, tasks: asyncio.TaskGroup) -> bool:
        world = self._process.world
        if self.outbox.of(frame.dispatch) is None and world.chance(world.rates.busy_by_mistake):
            world.say(f"{self._process.machine.name} refuses {frame.dispatch} by mistake")
            self.outbox.say(Refused(dispatch=frame.dispatch, reason="worker_busy"))
            return False
        return super().take(frame, tasks)

    def _execution(self, frame: Dispatch, delivery: Delivery) -> Execution:
        return SimExecution(self._process, frame, delivery)  # type: ignore[return-value]


class SimExecution:
    """A runner: sleeps, prints, stores outputs, ends."""

    def __init__(self, process: SimProcess, frame: Dispatch, delivery: Delivery) -> None:
        self._process = process
        self._world = process.world
        self._frame = frame
        self._delivery = delivery
        self._pieces = 0
        self._stopped: asyncio.Future[str] = self._world.loop.create_future()

    def stop(self, reason: str) -> None:
        """TERM: it ends soon."""
        if not self._stopped.done():
            self._stopped.set_result(reason)

    def kill(self, reason: str) -> None:
        """KILL: it does not run from now on."""
        self._world.truth.over(self._frame.dispatch)
        self.stop(reason)

    async def run(self) -> Outcome:
        frame, world = self._frame, self._world
        if self._stopped.done():
            reason = self._stopped.result()
            return Outcome(ok=False, reason=reason, error=reason)
        self._begin()
        is_probe = frame.call.model_type == PROBE_TYPE
        plan = world.loop.create_task(self._probe() if is_probe else self._work())
        try:
            await asyncio.wait({plan, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.done():
                plan.cancel()
                await asyncio.sleep(world.rng.uniform(0.0, 0.05))
                reason = self._stopped.result()
                return Outcome(ok=False, reason=reason, error=reason)
            return plan.result()
        finally:
            plan.cancel()
            if not self._process_died:
                world.truth.pieces[frame.dispatch] = self._pieces
                world.truth.over(frame.dispatch)
                world.changed = True

    @property
    def _process_died(self) -> bool:
        return self._process.executions.get(self._frame.dispatch) is not self

    def _begin(self) -> None:
        truth, name = self._world.truth, self._frame.dispatch
        step = name.rpartition(".")[0]
        for earlier in truth.started.get(step, []):
            if earlier in truth.running:
                self._world.fail(f"promise 5: {name} starts while {earlier} runs")
            if int(earlier.rpartition(".")[2]) > int(name.rpartition(".")[2]):
                self._world.fail(f"promise 5: {name} starts after {earlier} did")
            if earlier in truth.stored:
                self._world.fail(f"{name} starts although {earlier} stored an output")
        if ("steps", step) in truth.told_ends:
            self._world.fail(f"promise 5: {name} starts after its step was told to have ended")
        truth.started.setdefault(step, []).append(name)
        truth.running[name] = self._process.machine.name

    async def _work(self) -> Outcome:
        rng = self._world.rng
        long = rng.random() < 0.12
        duration_s = rng.uniform(35.0, 70.0) if long else rng.uniform(0.05, 6.0)
        limit_s = self._frame.timeout_s
        timed_out = limit_s is not None and duration_s > limit_s
        if limit_s is not None:
            duration_s = min(duration_s, limit_s)
        acts = [self._print] * rng.randint(0, 3)
        if rng.random() < 0.3:
            acts += [self._store] * rng.randint(1, 3)
        moments = [(rng.uniform(0.0, duration_s), act) for act in acts]
        began = self._process.lived_s
        for at, act in sorted(moments, key=lambda moment: moment[0]):
            await self._live_until(began + at)
            await act()
        await self._live_until(began + duration_s)
        if timed_out:
            return Outcome(ok=False, reason="timed_out", error=f"timed out after {limit_s:g}s")
        if rng.random() < 0.12:
            return Outcome(ok=False, reason="failed", exit_code=7, error="exit code 7")
        return Outcome(ok=True, reason="completed", exit_code=0)

    async def _live_until(self, lived_s: float) -> None:
        """Work goes on where it was when the machine stood still."""
        left_s = max(0.0, lived_s - self._process.lived_s)
        while True:
            await asyncio.sleep(left_s)
            left_s = lived_s - self._process.lived_s
            if left_s < 1e-9:
                return

    async def _probe(self) -> Outcome:
        """Show that the machine works, as `swamp.execute.probe` does."""
        await asyncio.sleep(self._world.rng.uniform(0.05, 3.0))
        await self._store()
        report = {MARKER: self._frame.call.arguments[MARKER], "dataPlaneOk": True}
        line = json.dumps(report) + "\n"
        self._pieces += 1
        await self._delivery.put("stdout", line.encode())
        return Outcome(ok=True, reason="completed", exit_code=0, stdout=line)

    async def _print(self) -> None:
        self._pieces += 1
        await self._delivery.put("stdout", f"{self._frame.dispatch} {self._pieces}\n".encode())

    async def _store(self) -> None:
        """Store an output, as the data plane does: mark the lease, wait for the disk, write."""
        world = self._world
        for _ in range(STORE_ATTEMPTS):
            await asyncio.sleep(world.latency_s())
            server = self._process.server()
            try:
                await server.request(self._first_write(server))
                return
            except Unreachable:
                await asyncio.sleep(world.rng.uniform(0.5, 5.0))

    async def _first_write(self, server: SimServer) -> None:
        name = self._frame.dispatch
        worker = self._process.worker
        assert worker is not None
        if server.manager.leases.first_write(worker, name):
            await server.store.barrier()
            if not is_probe(name) or server.store.has(LEASES, name):
                # The records of a probe go with its end: the data plane looks once more.
                server.watchman.byte_stored(name)
