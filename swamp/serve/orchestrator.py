"""One process that makes runs go on: opens the repository, sweeps, runs the controllers, closes.

The order is fixed: store → sweep → controllers → the outside, and backwards at the end. What the
outside is, a *front* says: addresses for everybody (`app`), or one run and the repository's socket
(`own_run`). The repository's lock is held by the caller.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from controllers.boot_sweep import BootSweep, SweepReport
from controllers.manager import Manager, Settings
from controllers.probes import Verification
from controllers.run.context import RunContext
from controllers.run.plan import Defaults
from datastore.alive import Span, lived, say_alive
from datastore.clock import Clock, SystemClock
from datastore.definitions.catalog import Catalog
from datastore.desired import DesiredTree
from datastore.edit_lines import put_back_at_start_lines
from datastore.engine import OpenedEngine, open_store
from datastore.errors import DatastoreError, RepositoryMoved
from datastore.events import EventLog
from datastore.file_watch import FileWatch
from datastore.ids import uuid7
from datastore.key_file import load_or_make
from datastore.kinds import LEASES, PENDING, RUNS, TOKENS
from datastore.load_report import LoadReport
from datastore.lock import RepositoryLock
from datastore.outputs import OutputFiles
from datastore.private_folder import PrivateFolder
from datastore.record import Kind
from datastore.store import Store
from datastore.trouble import trouble_of
from datastore.vaults import Vaults
from swamp.execute.calls import ShellCall
from swamp.execute.environment import runner_environment, unicode_only
from swamp.protocol import ships
from swamp.serve.answers import trouble_before_barrier
from swamp.serve.api import Api
from swamp.serve.credentials import Credentials
from swamp.serve.data_plane import DataPlane
from swamp.serve.death_reports import DeathReports
from swamp.serve.dispatch_secrets import DispatchSecrets
from swamp.serve.housekeeping import Housekeeping
from swamp.serve.local_executor import LocalRunner
from swamp.serve.metrics import Metrics
from swamp.serve.metrics_export import MetricsExport
from swamp.serve.observer import Observer
from swamp.serve.probe_evidence import ProbeOutput
from swamp.serve.serve_options import ServeOptions
from swamp.serve.served import Served
from swamp.serve.sessions import Rules, Sessions
from swamp.serve.shared_looks import SharedLooks
from swamp.serve.step_data import OutputsOfSteps
from swamp.traces import Traces, open_traces

log = logging.getLogger(__name__)

Report = Callable[[dict[str, Any]], None]
Front = Callable[[Served, Api, Sessions], Awaitable[None]]
"""Faces the outside until the stop. Everything runs when it is called."""

Opened = tuple[Store, OpenedEngine, LoadReport]
Opening = Callable[[Callable[[], Opened]], Awaitable[Opened | None]]
"""Has the repository opened by a function that blocks; None when told to stop before."""

NEEDS_SERVE = (
    "workers connect to `swamp serve`, which is not running for this repository:"
    " start it, then run the workflow again"
)

SWITCH_S = 0.0001
"""How long a thread that computes keeps the interpreter from another that wants it: the journal's
thread wants it after each sync, and the event loop after each system call, while others wait."""

CLOSE_WITHIN_S = 30.0
"""How long the last changes may take to reach a disk that was well."""

GIVE_UP_S = 2.0
"""The same where the disk refused before, or an error of ours ends the process."""

ALIVE_EVERY_S = 2.0
"""How often `.swamp/alive` says that this server lives, while steps wait."""


class Orchestrator:
    """Everything between the repository and the front."""

    def __init__(
        self,
        options: ServeOptions,
        lock: RepositoryLock,
        report: Report,
        front: Front,
        opening: Opening = asyncio.to_thread,
        stop: Callable[[], None] | None = None,
    ) -> None:
        """`stop` has the front come to its end in order; without, it is cancelled."""
        self._options, self._lock, self._layout = options, lock, lock.layout
        self._report, self._front = report, front
        self._opening, self._stop = opening, stop
        self._moved: RepositoryMoved | None = None
        self._held_back: Callable[[], list[Span]] = list
        self._clock: Clock = SystemClock()
        # Ids are no secrets: the kernel is asked for a seed once, not for each of them.
        self._random = random.Random()
        self._traces: Traces | None = None
        self._export: MetricsExport
        self._swept = asyncio.Event()
        """What the sweep wrote is on disk: from then on waiting counts."""
        self._environment, left_out = unicode_only(os.environ)
        for name in left_out:
            log.warning("the variable %s is not UTF-8: expressions and workers do without it", name)

    async def run(self) -> None:
        """From opening the repository to its clean close."""
        for_long = self._options.only_run is None
        opened = await self._opening(partial(open_store, self._layout, for_long=for_long))
        if opened is None:
            return
        store, engine, found = opened
        self._traces = await asyncio.to_thread(open_traces, "swamp-serve")
        self._export = await asyncio.to_thread(MetricsExport)
        sys.setswitchinterval(SWITCH_S)
        engine.start(asyncio.get_running_loop())
        try:
            await self._serve(store, engine, found)
            if self._moved is not None:
                raise self._moved
        except BaseException:
            await asyncio.to_thread(_close_at_once, engine)
            raise
        else:
            # What a disk that refuses has not taken was acknowledged to nobody.
            give_up_s = CLOSE_WITHIN_S if engine.trouble is None else GIVE_UP_S
            await asyncio.to_thread(engine.close, give_up_s)
        finally:
            if self._traces is not None:
                await asyncio.to_thread(self._traces.close)
            await asyncio.to_thread(self._export.close)

    async def _keep_saying_alive(self, store: Store) -> None:
        """While something waits, note that this server lives: waiting counts until its end."""
        await self._swept.wait()
        await self._say_alive()
        while True:
            await asyncio.sleep(ALIVE_EVERY_S)
            if store.live(PENDING):
                await self._say_alive()

    async def _say_alive(self) -> None:
        """Not in a run of a command's own: it is no server, and nothing waits for it."""
        if self._options.only_run is None and self._swept.is_set():
            await asyncio.to_thread(say_alive, self._layout, self._clock, self._held_back())

    def _new_id(self) -> str:
        return uuid7(self._clock.now(), self._random)

    async def _serve(self, store: Store, engine: OpenedEngine, found: LoadReport) -> None:
        layout = self._layout
        events = EventLog(layout.events, self._clock, store.after_barrier, layout.expect_root)
        store.heed(lambda: events.trouble)
        catalog, desired = Catalog(layout.root, index=engine.definitions), DesiredTree(layout)
        watch = FileWatch(
            layout, store, (desired, catalog), engine, events=self._options.file_events
        )
        await watch.start()
        untold = await self._take_stock(store, events, found)

        async def look_at_desired(kind: Kind[Any, Any], name: str) -> None:
            watch.apply(await asyncio.to_thread(desired.refresh_record, kind, name))

        housekeeping = Housekeeping(store, engine.stored, lambda: catalog.objects)
        observer = Observer(store, engine.journal.measures, self._traces)

        async def look_at_token(name: str) -> int:
            changes = await asyncio.to_thread(desired.refresh_record, TOKENS, name)
            watch.apply(changes)
            return len(changes)

        tokens = SharedLooks(look_at_token)

        async def fresh_token(name: str) -> None:
            observer.enrolling().looked(await tokens.fresh(name))

        credentials = Credentials(await asyncio.to_thread(load_or_make, layout))
        secrets, outputs, data = await asyncio.to_thread(self._step_data, store, credentials)
        probes = ProbeOutput(events, outputs)
        sessions = Sessions(store, probes, self._rules(credentials, secrets, fresh_token))
        runner = self._local_runner(store, events, secrets)
        manager = self._manager(store, sessions, events, runner, catalog, probes)
        sessions.bind(manager.leases, manager.enrollment, manager.session_changed)
        data.bind(manager.leases, secrets.scan)
        runner.bind(manager.runs.local_ended)
        manager.runs.tell_again(untold)
        private = PrivateFolder(layout, self._lock, engine, events)
        served = Served(
            layout=layout,
            store=store,
            clock=self._clock,
            manager=manager,
            events=events,
            catalog=catalog,
            data=data,
            deaths=DeathReports(store, credentials, sessions),
            new_run=self._new_id,
            problems=watch.problems,
            look_at_desired=look_at_desired,
            silent_s=sessions.silent_s,
            files_trouble=partial(trouble_of, events, runner, private, engine.observed, watch),
            measured=lambda: [*observer.instruments(), watch.findings, housekeeping.pauses],
            received=observer.received,
            only_run=self._options.only_run,
        )

        def beside(data_url: str) -> Iterable[Coroutine[None, None, None]]:
            yield watch.run()
            yield self._until_moved(private)
            yield runner.run(data_url)
            yield self._keep_saying_alive(store)
            yield housekeeping.run()
            yield observer.watch_loop()
            yield self._export.run(Metrics(served))

        try:
            await self._together(served, sessions, beside)
        finally:
            await asyncio.to_thread(events.close, 5.0 if self._moved is None else 0.1)
            await self._say_alive()

    async def _until_moved(self, private: PrivateFolder) -> None:
        try:
            await private.keep()
        except RepositoryMoved as error:
            if self._stop is None:
                raise
            self._moved = error
            log.error("%s", error)
            self._stop()

    async def _together(
        self,
        served: Served,
        sessions: Sessions,
        beside: Callable[[str], Iterable[Coroutine[None, None, None]]],
    ) -> None:
        """Face the outside until the stop, and do all else beside it; at the end all is on disk."""
        async with served.data.on_loopback() as data_url, asyncio.TaskGroup() as group:
            helpers = [group.create_task(one) for one in beside(data_url)]
            group.create_task(served.manager.run())
            await self._front(served, Api(served), sessions)
            served.manager.stop()
            for helper in helpers:
                helper.cancel()
        await trouble_before_barrier(served.store)
        await self._export.last(Metrics(served))

    def _local_runner(
        self, store: Store, events: EventLog, secrets: DispatchSecrets
    ) -> LocalRunner:
        traced = self._traces is not None
        return LocalRunner(store, events, self._layout, secrets, traced=traced)

    def _rules(
        self,
        credentials: Credentials,
        secrets: DispatchSecrets,
        fresh_token: Callable[[str], Awaitable[None]],
    ) -> Rules:
        """What workers are told or held to."""
        environment = {key: value for key, value in self._environment.items() if ships(key)}
        grace_s = self._options.grace_s
        traced = self._traces is not None
        return Rules(grace_s, environment, fresh_token, secrets, credentials.of_death, traced)

    def _step_data(
        self, store: Store, credentials: Credentials
    ) -> tuple[DispatchSecrets, OutputsOfSteps, DataPlane]:
        """What passes between steps and the disk, knowing what an earlier process left. Blocks."""
        secrets = DispatchSecrets(credentials, Vaults(self._layout).get)
        live = [store.find(PENDING, lease.name) for lease in store.live(LEASES)]
        secrets.reopen({pending.name: pending.spec.call for pending in live if pending is not None})
        store.watch(
            LEASES, lambda name: secrets.forget(name) if store.is_finished(LEASES, name) else None
        )
        outputs = OutputsOfSteps(OutputFiles(self._layout), secrets.check)
        outputs.load(store)
        most = self._options.output_max_bytes
        return secrets, outputs, DataPlane(store, outputs, credentials, self._clock, most)

    def _manager(
        self,
        store: Store,
        sessions: Sessions,
        events: EventLog,
        runner: LocalRunner,
        catalog: Catalog,
        probes: ProbeOutput,
    ) -> Manager:
        options = self._options
        context = RunContext(
            clock=self._clock,
            events=events,
            executor=runner,
            new_uid=self._new_id,
            offload=asyncio.to_thread,
            find_model=lambda name: catalog.fresh("model", name),
            check_call=ShellCall.parse,
            defaults=self._defaults(),
            # As for runners: the server's own tokens are not for workflows.
            env=runner_environment(self._environment, {}, {}),
            data=probes.outputs,
            only_run=options.only_run,
        )
        settings = Settings(
            grace_s=options.grace_s,
            keep=options.keep,
            verification=Verification(options.verify_on_enroll, probes),
        )
        manager = Manager(store, sessions, context, settings, self._random, events.forget)
        self._held_back = manager.scheduler.held_back
        return manager

    def _defaults(self) -> Defaults:
        if self._options.only_run is not None:
            return Defaults(no_workers=NEEDS_SERVE)
        if self._options.queue_timeout_s is not None:
            return Defaults(self._options.queue_timeout_s, "serve")
        return Defaults()

    async def _take_stock(self, store: Store, events: EventLog, found: LoadReport) -> list[str]:
        """Have what earlier processes left tell the truth; the runs whose end is still to be told.

        Beside one run of its own a process looks only at what others like it left.
        """
        untold: list[str] = []
        live = store.live(RUNS)
        if self._options.only_run is None:
            finished = [name for name in store.names(RUNS) if store.is_finished(RUNS, name)]
            untold = await asyncio.to_thread(events.untold, finished)
        else:
            live = tuple(run for run in live if run.spec.own_process)
        await asyncio.to_thread(events.recover, [*(run.name for run in live), *untold])
        return untold + await self._sweep(store, found)

    async def _sweep(self, store: Store, found: LoadReport) -> list[str]:
        """Sweep, and report what was found; the runs that it ended and whose end is to be told."""
        for problem in found.invalid:
            self._report({"kind": "warning", "message": str(problem)})
        for line in put_back_at_start_lines(found.put_back, found.restored):
            self._report({"kind": "warning", "message": line})
        recover = self._options.recover_leases_s != 0
        now, lock_held = self._clock.now(), self._lock.last_held
        sweep = BootSweep(
            store,
            self._clock,
            self._new_id,
            foreign=found.unvouched,
            recover=recover,
            earlier=await asyncio.to_thread(lived, self._layout, now, lock_held),
        )
        swept = sweep.run() if self._options.only_run is None else sweep.run_of_commands()
        store.after_barrier(partial(self._report_sweep, swept))
        # While the disk refuses, what was swept comes before all else in the journal, and nothing
        # that is seen from outside comes before that: the server can answer, and say why it waits.
        await trouble_before_barrier(store)
        return swept.ended_runs

    def _report_sweep(self, swept: SweepReport) -> None:
        self._swept.set()
        for warning in swept.warnings:
            self._report({"kind": "warning", "message": warning})
        if (summary := swept.summary()) is not None:
            self._report({"kind": "boot_sweep", "summary": summary, "counts": dict(swept.counts)})


def _close_at_once(engine: OpenedEngine) -> None:
    """Let go of the repository; what ended us is told by others, and must not be hidden."""
    try:
        engine.close(GIVE_UP_S)
    except DatastoreError as error:
        log.error("%s", error)
