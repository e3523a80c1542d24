"""A whole fleet from one seed: server, workers and people, what goes wrong, and what must hold.

First everything goes wrong for a while, at the world's own rates. Then nothing does, and within ten
minutes all work must be over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from controllers.controller import RESYNC_S
from datastore.definitions.workflow import Workflow
from datastore.ids import uuid7
from datastore.kinds import LEASES, PAUSES, PENDING, RUNS, WORKERS, RunSpec
from datastore.record import Kind
from sim.faults import Rates
from sim.invariants import Watchman
from sim.loop import Deadlock, run, stands_with
from sim.server import SimServer, Unreachable
from sim.worker import Machine, SimProcess, simulated_network, worker_name_of
from sim.workload import draw_machines, draw_workflow, is_placed
from sim.world import Violation, World
from swamp.serve.sessions import HEARTBEAT_S

CALM_S = 600.0
"""How long everything may take to end once nothing goes wrong any more."""

STABLE_S = 35.0
"""How long it must then stay as it is: longer than a resync."""

TRACE_LINES = 30

FULL_DISKS = 0.25
"""In this share of the worlds the server's disk is full once."""

SHARES_MODELS_EVERY = 3
"""In one of so many worlds runs share models that few may call at once."""

CRASH_AFTER_CUT = 0.3
"""How often a crash follows a cut at once, in a world with crashes: troubles come in pairs."""


class SimFleet:
    """One world with everything in it."""

    def __init__(
        self, seed: int, *, resync_s: float | None = RESYNC_S, only_disk: bool = False
    ) -> None:
        self.world = World(seed, only_disk=only_disk)
        self.watchman = Watchman(self.world)
        self._resync_s = resync_s
        rng = self.world.rng
        self._chaos_s = rng.uniform(15.0, 200.0)
        self._machines = draw_machines(rng)
        self._processes: dict[str, SimProcess] = {}
        self._deaths: dict[str, asyncio.Event] = {}
        self._people: set[asyncio.Task[None]] = set()
        self._server = SimServer(self.world, self.watchman, resync_s)
        self._down = False
        self._up = asyncio.Event()
        for machine in self._machines:
            self.watchman.capacity[machine.name] = machine.capacity

    def run(self) -> None:
        """Live through it; Violation tells what broke, with the trace."""
        self.world.loop.after_step = self._after_step
        log = logging.getLogger("controllers")
        listener = _Failures(self.world.fail)
        log.addHandler(listener)
        propagates, log.propagate = log.propagate, False
        try:
            with simulated_network():
                run(self.world.loop, self._live())
        except Deadlock as error:
            raise Violation(self._report(str(error))) from None
        finally:
            log.removeHandler(listener)
            log.propagate = propagates

    def _after_step(self) -> None:
        if self.world.changed:
            self.world.changed = False
            server = self._server
            looks = server.listening and not server.standstill.is_on
            self.watchman.look(server.store if looks else None)
        if self.world.violations:
            raise Violation(self._report(self.world.violations[0]))

    def _report(self, problem: str) -> str:
        lines = "\n".join(self.world.trace[-TRACE_LINES:])
        seed = self.world.seed
        replay = f"SWAMP_SIM_FIRST={seed} SWAMP_SIM_SEEDS=1 pytest tests/sim/test_fleet.py"
        return f"seed {seed}: {problem}\n{self.world.drawn}\n{lines}\nreplay: {replay}"

    # -- the story -------------------------------------------------------------------------------

    async def _live(self) -> None:
        world = self.world
        self._boot()
        for machine in self._machines:
            self._go(self._keep_up(machine))
        runs = [
            self._go(self._start_run(number, world.rng.uniform(0.0, self._chaos_s * 0.7)))
            for number in range(world.rng.randint(1, 7))
        ]
        self._draw_faults()
        await asyncio.sleep(self._chaos_s)
        await self._calm()
        await asyncio.wait(runs)
        await self._settle()
        await asyncio.sleep(STABLE_S)
        if left := self.watchman.unsettled(self._server.store):
            world.fail(f"it had ended, and goes on: {left[0]}")
        self.watchman.settled(self._server.store)

    def _go(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.world.loop.create_task(work)
        self._people.add(task)
        task.add_done_callback(self._check_person)
        return task

    def _check_person(self, task: asyncio.Task[None]) -> None:
        self._people.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.world.fail(f"the rig failed: {task.exception()!r}")

    async def _calm(self) -> None:
        """Nothing goes wrong from here on."""
        world = self.world
        world.rates = Rates()
        world.say("calm")
        world.away_until.clear()
        world.full_until = 0.0
        for process in self._processes.values():
            process.wake_up()
        self._wake_server(self._server)
        self._server.journal.before_write = self._server.journal.after_write = lambda: None
        self._up.clear()
        if not self._server.listening:
            await self._up.wait()
        for machine in self._machines:
            self._cordon(machine, schedulable=True)
        for kind, name in list(world.disk.desired):
            if kind == PAUSES.folder:
                self._ask(PAUSES, name, {"paused": False})

    async def _settle(self) -> None:
        world = self.world
        deadline = world.loop.now + CALM_S
        while left := self.watchman.unsettled(self._server.store):
            if world.loop.now > deadline:
                world.fail(f"not over after {CALM_S:g}s of calm: {left[0]} (and {len(left) - 1})")
            await asyncio.sleep(5.0)

    # -- people ----------------------------------------------------------------------------------

    async def _start_run(self, number: int, at_s: float) -> None:
        world = self.world
        shared = world.model_rng if world.seed % SHARES_MODELS_EVERY == 2 else None
        workflow = draw_workflow(world.rng, f"w{number}", shared)
        for step, placed in is_placed(workflow).items():
            world.truth.placed[workflow.name, step] = placed
        await asyncio.sleep(at_s)
        spec = RunSpec(
            workflow=workflow.name,
            workflow_id=workflow.id,
            inputs={"hosts": [f"h{i}" for i in range(world.rng.randint(0, 5))]},
            definition=workflow.source,
        )
        name = None
        while name is None:
            name = await self._try_to_start(workflow, spec)
        if world.rng.random() < 0.25:
            await asyncio.sleep(world.rng.uniform(0.0, 40.0))
            await self._cancel_run(name)

    async def _try_to_start(self, workflow: Workflow, spec: RunSpec) -> str | None:
        """The run's name, if the server confirmed it."""
        server = self._server
        name = uuid7(self.world.clock.now(), self.world.rng)

        async def create() -> None:
            server.manager.runs.create(workflow, spec, name)
            await server.store.barrier()

        try:
            await server.request(create())
        except Unreachable:
            await asyncio.sleep(self.world.rng.uniform(0.5, 3.0))
            return None
        self.world.say(f"run {name} was started")
        self.world.truth.runs[name] = False
        return name

    async def _cancel_run(self, name: str) -> None:
        server = self._server

        async def cancel() -> None:
            server.manager.runs.cancel(name, "not needed")
            await server.store.barrier()

        with suppress(Unreachable):
            await server.request(cancel())
            self.world.say(f"run {name} was cancelled")
            self.world.truth.runs[name] = True

    def _cordon(self, machine: Machine, *, schedulable: bool) -> None:
        worker = worker_name_of(machine)
        self.world.say(f"desire {machine.name} schedulable={schedulable}")
        file = self.world.desire(worker, schedulable)
        if self._server.alive:
            self._server.store.set_desired(WORKERS, worker, file)

    # -- machines --------------------------------------------------------------------------------

    async def _keep_up(self, machine: Machine) -> None:
        """Start a worker process whenever there is none."""
        world = self.world
        await asyncio.sleep(world.rng.uniform(0.0, 5.0))
        while True:
            process = SimProcess(machine, world, lambda: self._server)
            self._processes[machine.name] = process
            death = self._deaths[machine.name] = asyncio.Event()
            context = copy_context()
            context.run(stands_with.set, process.standstill)
            work = world.loop.create_task(process.live(), context=context)
            waiting = world.loop.create_task(death.wait())
            await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not work.done():
                if process.die():
                    work.cancel()
                    await asyncio.wait({work})
            elif work.exception() is not None:
                world.fail(f"{machine.name} failed: {work.exception()!r}")
            await asyncio.sleep(world.rng.uniform(0.1, 15.0))

    # -- what goes wrong -------------------------------------------------------------------------

    def _draw_faults(self) -> None:
        rates = self.world.rates
        occasions: list[tuple[int, Callable[[], None]]] = [
            (rates.crashes, self._crash),
            (rates.cuts, self._cut),
            (rates.partitions, self._partition),
            (rates.deaths, self._death),
            (rates.drains, self._drain),
            (rates.cordons, self._cordon_one),
            (rates.clock_jumps, self._jump),
        ]
        edits = self.world.edit_rng
        for action in (self._pause, self._prioritize, self._prioritize):
            if edits.random() < 0.5:
                self.world.loop.call_later(edits.uniform(0.0, self._chaos_s), action)
        full, only_disk = self.world.full_rng, self.world.only_disk
        for _ in range(2 if only_disk else full.random() < FULL_DISKS):
            self.world.loop.call_later(full.uniform(0.0, self._chaos_s), self._fill_disk)
        sleeps = self.world.sleep_rng
        for _ in range(sleeps.randint(1, 3) if sleeps.random() < 0.5 else 0):
            self.world.loop.call_later(sleeps.uniform(0.0, self._chaos_s), self._sleep)
        if sleeps.random() < 0.3:
            self.world.loop.call_later(sleeps.uniform(0.0, self._chaos_s), self._stop_server)
        cancels = self.world.cancel_rng
        for kind in (RUNS, PENDING, PENDING, LEASES, LEASES):
            if cancels.random() < 0.3:
                at_s = cancels.uniform(0.0, self._chaos_s)
                self.world.loop.call_later(at_s, self._cancel_by_file, kind)
        for count, action in occasions:
            for _ in range(count):
                self.world.loop.call_later(self.world.rng.uniform(0.0, self._chaos_s), action)

    def _fill_disk(self) -> None:
        """The server's disk is full for a while, often for longer than the grace window."""
        if self.world.rates is self.world.drawn:
            for_s = self.world.full_rng.uniform(20.0, 150.0)
            self.world.say(f"the disk is full for {for_s:.0f}s")
            self.world.full_until = self.world.loop.now + for_s

    def _one(self) -> Machine:
        return self.world.rng.choice(self._machines)

    def _crash(self) -> None:
        """Kill the server now, just before its next transaction, or just after it."""
        if not self.world.rates.crashes:
            return
        journal = self._server.journal
        when = self.world.rng.randrange(3)
        if when == 0:
            self._kill_server()
        elif when == 1:
            journal.before_write = self._kill_server
        else:
            journal.after_write = self._kill_server

    def _kill_server(self) -> None:
        if self._down or not self._server.alive:
            return
        self._down = True
        self.world.say("server killed")
        self._server.kill()
        long = self.world.chance(0.15)
        down_s = self.world.rng.uniform(40.0, 90.0) if long else self.world.rng.uniform(0.05, 15.0)
        self.world.loop.call_later(down_s, self._start_server)

    def _start_server(self) -> None:
        self._down = False
        self.world.say("server starts")
        self._server = SimServer(self.world, self.watchman, self._resync_s)
        self._boot()

    def _boot(self) -> None:
        self._server.spawn(self._server.boot()).add_done_callback(lambda task: self._up.set())

    def _cut(self) -> None:
        process = self._processes.get(self._one().name)
        if process is not None and process.wire is not None:
            self.world.say(f"cut {process.machine.name}")
            process.wire.cut()
            if self.world.chance(CRASH_AFTER_CUT) and self.world.rates.crashes:
                self.world.loop.call_later(self.world.rng.uniform(0.0, 4.0), self._crash)

    def _partition(self) -> None:
        """A machine loses the network for a while, often for longer than the grace window."""
        machine = self._one()
        process = self._processes.get(machine.name)
        if process is not None and process.wire is not None:
            away_s = self.world.rng.uniform(5.0, 130.0)
            self.world.say(f"{machine.name} is away for {away_s:.0f}s")
            self.world.away_until[machine.name] = self.world.loop.now + away_s
            process.wire.cut()

    def _sleep(self) -> None:
        """A machine that has work stands still, often for longer than the grace window."""
        rng, loop = self.world.sleep_rng, self.world.loop
        busy = [one for one in self._processes.values() if one.executions]
        awake = [one for one in busy if not one.standstill.is_on]
        if self.world.rates is not self.world.drawn or self.world.only_disk:
            return
        if not awake:
            loop.call_later(1.0, self._sleep)
            return
        process = rng.choice(awake)
        asleep_s = rng.uniform(HEARTBEAT_S, 130.0)
        self.world.say(f"{process.machine.name} stands still for {asleep_s:.0f}s")
        process.fall_asleep()
        self.watchman.machine_sleeps()
        if process.wire is not None and rng.random() < 0.5:
            # The network forgets who says nothing, and tells nobody.
            process.wire.silent = True
        loop.call_later(asleep_s, process.wake_up)

    def _stop_server(self) -> None:
        """The server's machine stands still for a while."""
        server, rng = self._server, self.world.sleep_rng
        if server.listening and not self.world.only_disk:
            for_s = rng.uniform(1.0, 100.0)
            self.world.say(f"the server stands still for {for_s:.0f}s")
            server.standstill.begin()
            self.world.loop.call_later(for_s, self._wake_server, server)

    def _wake_server(self, server: SimServer) -> None:
        if server.standstill.is_on:
            self.world.say("the server wakes up")
            self.watchman.server_woke()
            server.standstill.end(timers_last=self.world.sleep_rng.random() < 0.5)

    def _death(self) -> None:
        machine = self._one()
        if machine.name in self._deaths:
            self.world.say(f"{machine.name} dies")
            self._deaths[machine.name].set()

    def _drain(self) -> None:
        process = self._processes.get(self._one().name)
        if process is not None:
            process.drain("signal")

    def _cordon_one(self) -> None:
        machine = self._one()
        self._cordon(machine, schedulable=False)
        back_s = self.world.rng.uniform(1.0, 40.0)
        self.world.loop.call_later(back_s, lambda: self._cordon(machine, schedulable=True))

    def _ask(self, kind: Kind[Any, Any], name: str, spec: dict[str, Any]) -> None:
        self.world.say(f"ask {kind.folder}/{name} {spec}")
        file = self.world.ask(kind, name, spec)
        if self._server.alive:
            self._server.store.set_desired(kind, name, file)

    def _pause(self) -> None:
        """Hold the queue back, or the part of it that asks for one pool, and let it go on."""
        rng = self.world.edit_rng
        pool = rng.choice(["", "a", "b"])
        labels = {"pool": pool} if pool else {}
        self._ask(PAUSES, pool or "all", {"labels": labels, "paused": True})
        self.world.loop.call_later(
            rng.uniform(0.5, 30.0), self._ask, PAUSES, pool or "all", {"paused": False}
        )

    def _prioritize(self) -> None:
        """Another priority for something that waits just now."""
        store, rng = self._server.store, self.world.edit_rng
        waiting = sorted(one.name for one in store.live(PENDING)) if self._server.alive else []
        if waiting:
            self._ask(PENDING, rng.choice(waiting), {"priority": rng.randint(1, 5)})

    def _cancel_by_file(self, kind: Kind[Any, Any]) -> None:
        """End something that lives just now, by its desired file."""
        store = self._server.store
        living = sorted(one.name for one in store.live(kind)) if self._server.alive else []
        if living:
            self._ask(kind, self.world.cancel_rng.choice(living), {"cancel": True})

    def _jump(self) -> None:
        self.world.clock.jumped_s += self.world.rng.uniform(-7200.0, 7200.0)
        self.world.say("the wall clock jumps")


class _Failures(logging.Handler):
    """A reconcile that raises is a bug: nothing in this world may surprise a controller."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._fail = fail

    def emit(self, record: logging.LogRecord) -> None:
        # A probe may come to nothing, a step be given up or wait: people are warned of that.
        told = record.getMessage()
        is_planned = "is given up: worker lost" in told or "cannot be prepared just now" in told
        if record.name != "controllers.probes" and not is_planned:
            self._fail(told)
