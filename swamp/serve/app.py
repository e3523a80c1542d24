"""The orchestrator process: opens the repository, sweeps, runs the controllers, listens, stops.

The order is fixed: lock → store → sweep → controllers → listen, and backwards at the end. SIGTERM
and SIGINT stop it within a few seconds and leave live runs to the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import os
import random
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from controllers.boot_sweep import BootSweep
from controllers.manager import Manager, Settings
from controllers.run.controller import RunContext
from controllers.run.plan import Defaults
from datastore.clock import Clock, SystemClock
from datastore.definitions.catalog import Catalog
from datastore.desired import DesiredTree
from datastore.engine import LoadReport, OpenedEngine, open_store
from datastore.errors import SwampError
from datastore.events import EventLog
from datastore.file_watch import FileWatch
from datastore.ids import uuid7
from datastore.kinds import RUNS, TOKENS
from datastore.layout import Layout
from datastore.lock import RepositoryLock
from datastore.store import Store
from swamp import __version__
from swamp.execute.calls import ShellCall
from swamp.protocol import ships
from swamp.serve.api import ADMIN, BODY_MAX_BYTES, Api, Served, errors_as_json
from swamp.serve.gateway import Gateway
from swamp.serve.local_executor import LocalRunner
from swamp.serve.sessions import Rules, Sessions

log = logging.getLogger(__name__)

Report = Callable[[dict[str, Any]], None]

CLOSE_WITHIN_S = 2.0
"""How long requests that are under way get at the stop, seconds."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `swamp serve` was asked for. Times in seconds."""

    root: Path
    host: str = "127.0.0.1"
    port: int = 9090
    queue_timeout_s: float | None = None
    """None: not given; 0: for ever."""
    grace_s: float = 60.0
    recover_leases_s: float | None = None
    """How long workers of an earlier process have to come back; 0 ends their leases at once."""
    schedule: bool = True
    insecure: bool = False


class ListenError(SwampError):
    """The address cannot be listened on."""


def run_serve(options: ServeOptions, report: Report) -> int:
    """Serve until a signal; the exit code. SwampError for what a person can mend."""
    _refuse_open_address(options)
    layout = Layout(options.root)
    with RepositoryLock(layout), _bound_to_port(options.host, options.port) as listener:
        asyncio.run(Orchestrator(options, layout, listener, report).run())
    report({"status": "stopped"})
    return 0


def _refuse_open_address(options: ServeOptions) -> None:
    if options.insecure or options.host == "localhost":
        return
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(options.host).is_loopback:
            return
    raise ListenError(
        f"--host {options.host} can be reached from other machines, and anybody there could start"
        " runs: keep 127.0.0.1, put a proxy with TLS in front, or say --insecure"
    )


def _bound_to_port(host: str, port: int) -> socket.socket:
    """A socket bound there, not listening yet: a port in use is told before anything is touched."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            why = "the port is in use: stop what listens there, or choose another with --port"
        raise ListenError(f"cannot listen on {host}:{port}: {why}") from None
    return bound


class Orchestrator:
    """One process of `swamp serve`."""

    def __init__(
        self, options: ServeOptions, layout: Layout, listener: socket.socket, report: Report
    ) -> None:
        self._options = options
        self._layout = layout
        self._listener = listener
        self._report = report
        self._clock: Clock = SystemClock()
        self._random = random.SystemRandom()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """From opening the repository to its clean close."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        store, engine, found = await asyncio.to_thread(open_store, self._layout)
        engine.start(loop)
        try:
            await self._serve(store, engine, found)
        finally:
            await asyncio.to_thread(engine.close)

    def _new_id(self) -> str:
        return uuid7(self._clock.now(), self._random)

    # -- wiring ----------------------------------------------------------------------------------

    async def _serve(self, store: Store, engine: OpenedEngine, found: LoadReport) -> None:
        layout = self._layout
        events = EventLog(layout.events, self._clock, store.after_barrier)
        catalog, desired = Catalog(layout.root), DesiredTree(layout)
        watch = FileWatch(layout, store, (desired, catalog), engine.rescan)
        await watch.start()
        await asyncio.to_thread(events.recover, [run.name for run in store.live(RUNS)])
        await self._sweep(store, found)

        async def fresh_token(name: str) -> None:
            watch.apply(await asyncio.to_thread(desired.refresh_record, TOKENS, name))

        environment = {key: value for key, value in os.environ.items() if ships(key)}
        sessions = Sessions(store, events, Rules(self._options.grace_s, environment, fresh_token))
        runner = LocalRunner(store, events, layout.private / "scratch")
        manager = self._manager(store, sessions, events, runner, catalog)
        sessions.bind(manager.leases, manager.enrollment, manager.session_changed)
        runner.bind(manager.runs.local_ended)
        served = Served(
            layout=layout,
            store=store,
            clock=self._clock,
            manager=manager,
            events=events,
            catalog=catalog,
            new_run=self._new_id,
            problems=watch.problems,
        )
        gc.collect()
        gc.freeze()
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(one) for one in (watch.run(), runner.run())]
                group.create_task(manager.run())
                await self._listen(served, sessions)
                manager.stop()
                for helper in helpers:
                    helper.cancel()
            await store.barrier()
        finally:
            await asyncio.to_thread(events.close)

    def _manager(
        self,
        store: Store,
        sessions: Sessions,
        events: EventLog,
        runner: LocalRunner,
        catalog: Catalog,
    ) -> Manager:
        options = self._options
        defaults = Defaults()
        if options.queue_timeout_s is not None:
            defaults = Defaults(options.queue_timeout_s, "serve")
        context = RunContext(
            clock=self._clock,
            events=events,
            executor=runner,
            new_uid=self._new_id,
            offload=asyncio.to_thread,
            find_model=lambda name: catalog.fresh("model", name),
            check_call=ShellCall.parse,
            defaults=defaults,
            env=dict(os.environ),
        )
        settings = Settings(grace_s=options.grace_s)
        return Manager(store, sessions, context, settings, self._random)

    async def _sweep(self, store: Store, found: LoadReport) -> None:
        for problem in found.invalid:
            self._report({"kind": "warning", "message": str(problem)})
        for path in (*found.put_back, *found.restored):
            message = f"{path} was changed while the server was stopped; it was put back: what"
            advice = " people ask for goes into datastore/desired/"
            self._report({"kind": "warning", "message": message + advice})
        recover = self._options.recover_leases_s != 0
        sweep = BootSweep(store, self._clock, foreign=found.unvouched, recover=recover)
        swept = sweep.run()
        await store.barrier()
        for warning in swept.warnings:
            self._report({"kind": "warning", "message": warning})
        summary = swept.summary()
        if summary is not None:
            counts = dict(swept.counts)
            self._report({"kind": "boot_sweep", "summary": summary, "counts": counts})

    # -- listening -------------------------------------------------------------------------------

    async def _listen(self, served: Served, sessions: Sessions) -> None:
        """Serve both listeners until the stop."""
        api = Api(served)
        gateway = Gateway(sessions)
        public = self._application(api, gateway, admin=False)
        private = self._application(api, gateway, admin=True)
        await public.setup()
        await private.setup()
        try:
            await web.SockSite(public, self._listener, backlog=4096).start()
            await self._open_socket(private)
            port = self._listener.getsockname()[1]
            host = self._options.host
            shown = f"[{host}]" if ":" in host else host
            self._report(
                {
                    "status": "listening",
                    "host": host,
                    "port": port,
                    "url": f"http://{shown}:{port}",
                    "schedulingEnabled": self._options.schedule,
                    "version": __version__,
                    "pid": os.getpid(),
                }
            )
            await self._stop.wait()
            self._report({"status": "stopping"})
            sessions.close_all("the orchestrator stops")
        finally:
            self._layout.socket.unlink(missing_ok=True)
            await public.cleanup()
            await private.cleanup()

    def _application(self, api: Api, gateway: Gateway, *, admin: bool) -> web.AppRunner:
        app = web.Application(middlewares=[errors_as_json], client_max_size=BODY_MAX_BYTES)
        app[ADMIN] = admin

        async def root(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                return await gateway.serve(request)
            return await api.health(request)

        app.router.add_get("/", root)
        app.add_routes(api.routes())
        return web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=CLOSE_WITHIN_S
        )

    async def _open_socket(self, runner: web.AppRunner) -> None:
        path = self._layout.socket
        path.unlink(missing_ok=True)
        await web.SockSite(runner, _bound(path)).start()
        path.chmod(0o600)


def _bound(path: Path) -> socket.socket:
    """A socket at `path`, however long that is."""
    # The kernel takes 107 bytes at most; a deep repository is reached through its open folder.
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(f"/proc/self/fd/{folder}/{path.name}")
    except OSError:
        bound.close()
        raise
    finally:
        os.close(folder)
    return bound
