"""One life of the server: the real store, controllers and sessions over simulated disk and sockets.

`boot` does what `swamp serve` does, in the same order. `kill` is a `kill -9`: from that instant
nothing of this life reaches the disk, a worker, a client or the event log.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from controllers.boot_sweep import BootSweep
from controllers.enrollment import EnrollmentRefused, Made, create_token
from controllers.manager import Manager, Settings
from controllers.probes import Verification
from controllers.run.context import RunContext
from controllers.run.plan import Defaults
from datastore.definitions.model import ModelDefinition, model_from_source
from datastore.ids import uuid7
from datastore.kinds import KINDS, TOKENS, Call, TokenSpec
from datastore.store import Store
from sim.events import SimEvents
from sim.invariants import Watchman
from sim.journal import SimJournal, load
from sim.local import SimLocalExecutor
from sim.loop import Standstill
from sim.models import MODELS
from sim.network import Wire
from sim.world import World
from swamp.protocol import (
    Enroll,
    FrameError,
    encode,
    frames_in,
    from_worker,
    message_of,
    to_worker,
)
from swamp.serve.probe_evidence import ProbeOutput
from swamp.serve.refusals import refusal
from swamp.serve.sessions import HEARTBEAT_S, Rules, Session, Sessions

R = TypeVar("R")

GRACE_S = 60.0
TOKEN = "fleet"
SECRET = "s" * 64
QUEUE_TIMEOUT_S = 150.0
METHODS = {"execute": {"arguments": {"run": "x"}}}


VERIFIES_EVERY = 5
"""In one of so many worlds workers get no steps before a probe of them has passed."""


REFUSES_EVERY, REFUSED = 11, 0.4
"""In one of so many worlds this share of the steps cannot be prepared when they are to start."""


class SimProbes(ProbeOutput):
    """What probes print. What they store is a mark on their lease and nothing else."""

    def forget(self, dispatch: str) -> None:
        self._texts.pop(dispatch, None)
        self._counts.pop(dispatch, None)


class Unreachable(Exception):
    """The server is not there, or died before it answered."""


class SimTransport:
    """The server's end of a wire; everything that leaves the process is looked at here."""

    def __init__(self, wire: Wire, server: SimServer) -> None:
        self._wire = wire
        self._server = server
        self._due: list[str] = []

    def send(self, text: str) -> None:
        if self._server.alive:
            self._server.watchman.frame_leaves(to_worker(text))
            if not self._due:
                self._wire.world.loop.call_soon(self._flush)
            self._due.append(text)

    def _flush(self) -> None:
        """What is due at one moment goes in one message, as over a real socket."""
        due, self._due = self._due, []
        if self._server.alive:
            self._wire.down(message_of(due))

    def abort(self, reason: str) -> None:
        self._wire.world.say(f"server cuts {self._wire.name}: {reason}")
        if self._wire.world.only_disk and reason.startswith("no answer"):
            self._wire.world.fail(f"{self._wire.name} is cut for what the disk holds up: {reason}")
        self._wire.close_server()
        self._wire.close_client()


class SimServer:
    """A process of the orchestrator."""

    def __init__(self, world: World, watchman: Watchman, resync_s: float | None) -> None:
        self.world = world
        self.watchman = watchman
        self.alive = True
        self.listening = False
        self.standstill = Standstill(world.loop)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wires: set[Wire] = set()
        self.journal = SimJournal(world)
        self.store = Store(KINDS.values(), self.journal, deliver=self._deliver)
        load(self.store, world)
        for (_, name), (kind, file) in world.disk.desired.items():
            self.store.set_desired(kind, name, file)
        self.events = SimEvents(world, self.store, watchman.event_published)
        self.executor = SimLocalExecutor(world, self.store, self.spawn)
        rules = Rules(GRACE_S, {}, self._fresh_token)
        self.probes = SimProbes(self.events, outputs=None)  # type: ignore[arg-type]
        self.sessions = Sessions(self.store, self.probes, rules)
        self._resync_s = resync_s

    def spawn(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """A task of this process: it dies with it."""
        # Of its own, whoever dialed or asked.
        task = self.world.loop.create_task(work, context=self.standstill.context())
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self.alive and not task.cancelled() and task.exception() is not None:
            self.world.fail(f"a task of the server failed: {task.exception()!r}")

    async def boot(self) -> None:
        """Sweep, then run the controllers, then listen."""
        BootSweep(self.store, self.world.clock, self._new_uid).run()
        await self.store.barrier()
        self.watchman.swept(self.store)
        self.manager = Manager(
            self.store,
            self.sessions,
            self._context(),
            self._settings(),
            random.Random(self.world.rng.random()),
        )
        self.sessions.bind(
            self.manager.leases, self.manager.enrollment, self.manager.session_changed
        )
        self.executor.bind(self.manager.runs.local_ended)
        self.manager.runs.tell_again(self.events.untold)
        self.spawn(self.manager.run())
        if self.store.find(TOKENS, TOKEN) is None:
            made = Made(self._new_uid(), self.world.clock.now())
            spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z", max_enrollments="unlimited")
            create_token(self.store, TOKEN, spec, SECRET, made)
            await self.store.barrier()
        self.listening = True

    def _settings(self) -> Settings:
        verifies = self.world.seed % VERIFIES_EVERY == 3
        verification = Verification(verifies, self.probes)
        return Settings(grace_s=GRACE_S, resync_s=self._resync_s, verification=verification)

    def kill(self) -> None:
        """`kill -9`."""
        self.alive = self.listening = False
        self.journal.kill()
        self.events.kill()
        self.executor.kill()
        for task in list(self._tasks):
            task.cancel()
        for wire in sorted(self._wires, key=lambda one: one.name):
            if self.world.chance(self.world.rates.silent_cut):
                wire.silent = True
            else:
                wire.close_client()
        self.standstill.end()

    async def request(self, work: Coroutine[Any, Any, R]) -> R:
        """Have something done inside the server; Unreachable if it dies meanwhile."""
        if not self.listening:
            work.close()
            raise Unreachable
        task = self.spawn(work)
        try:
            return await task
        except asyncio.CancelledError:
            if self.alive:
                raise
            raise Unreachable from None

    # -- the gateway -----------------------------------------------------------------------------

    def connect(self, name: str) -> Wire:
        """A worker dials in."""
        wire = Wire(self.world, name)
        self._wires.add(wire)
        self.spawn(self._serve(wire))
        return wire

    async def _serve(self, wire: Wire) -> None:
        transport = SimTransport(wire, self)
        try:
            session = await self._enroll(wire, transport)
            if session is None:
                return
            beat = self.spawn(self._beat(session))
            try:
                while (text := await wire.inbox.get()) is not None:
                    self.world.changed = True
                    for one in frames_in(text):
                        self.sessions.handle(session, from_worker(one))
            finally:
                beat.cancel()
                self.sessions.closed(session)
        finally:
            self._wires.discard(wire)

    async def _enroll(self, wire: Wire, transport: SimTransport) -> Session | None:
        try:
            async with asyncio.timeout(30.0):
                text = await wire.inbox.get()
            if text is None:
                return None
            frame = from_worker(text)
            assert isinstance(frame, Enroll)
            return await self.sessions.enroll(frame, transport)
        except EnrollmentRefused as error:
            self.world.say(f"{wire.name} is refused: {error}")
            if error.permanent:
                self.world.fail(f"{wire.name} was refused for good: {error}")
            wire.down(encode(refusal(error)))
            wire.close_client()
        except (TimeoutError, FrameError) as error:
            self.world.say(f"{wire.name} did not enroll: {error!r}")
        return None

    async def _beat(self, session: Session) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self.sessions.look_after(session)

    # -- what the controllers are given ----------------------------------------------------------

    def _deliver(self, wake: Any, name: str) -> None:
        if self.alive:
            self.world.deliver(wake, name)

    async def _fresh_token(self, name: str) -> None:
        await asyncio.sleep(self.world.rng.uniform(0.0, 0.002))

    def _new_uid(self) -> str:
        return uuid7(self.world.clock.now(), self.world.rng)

    async def _offload(self, work: Any) -> Any:
        await asyncio.sleep(self.world.rng.uniform(0.0, 0.005))
        return work()

    def _context(self) -> RunContext:
        return RunContext(
            clock=self.world.clock,
            events=self.events,
            executor=self.executor,
            new_uid=self._new_uid,
            offload=self._offload,
            find_model=_find_model,
            check_call=self._check_call,
            defaults=Defaults(QUEUE_TIMEOUT_S, "serve"),
        )

    def _check_call(self, call: Call) -> None:
        """Every call can be executed, though it may be that no file more can be open just now."""
        refuses = self.world.seed % REFUSES_EVERY == 6 and self.world.rates is self.world.drawn
        if refuses and self.world.file_rng.random() < REFUSED:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _find_model(name: str) -> ModelDefinition:
    source = {"name": name, "type": "command/shell", "concurrency": MODELS[name]}
    return model_from_source({**source, "methods": METHODS})
