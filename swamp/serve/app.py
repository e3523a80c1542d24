"""`swamp serve`: the orchestrator that listens for everybody, until a signal.

SIGTERM, SIGINT and SIGHUP stop it within a few seconds and leave live runs to the next start.
"""

from __future__ import annotations

import asyncio
import os
import time

from aiohttp import web

from datastore.kinds import RUNS
from datastore.layout import Layout
from datastore.lock import RepositoryLock
from swamp import __version__
from swamp.open_files import raise_limit
from swamp.serve.access import token_needed
from swamp.serve.api import Api
from swamp.serve.arrivals import Arrivals
from swamp.serve.callers import Callers
from swamp.serve.connections import Connections, strangers_within
from swamp.serve.first_words import FirstWords
from swamp.serve.gateway import Gateway
from swamp.serve.hosts import of_this_machine
from swamp.serve.listening import application, bound_to_port, on_socket, refuse_open_address
from swamp.serve.no_room import OpeningOnceThereIsRoom
from swamp.serve.orchestrator import Orchestrator, Report
from swamp.serve.reception import WAITING_MOST, Door, Reception
from swamp.serve.serve_options import ServeOptions
from swamp.serve.served import Served
from swamp.serve.sessions import Sessions
from swamp.serve.turns import Turns
from swamp.stop_signals import stop_signals
from swamp.tls import server_context

__all__ = ["ServeOptions", "run_serve"]

OPEN_FILES = 65_536
"""Files and connections that the server may have open, where the machine allows that many."""


def run_serve(options: ServeOptions, report: Report) -> int:
    """Serve until a signal; the exit code. SwampError for what a person can mend."""
    tls = None if options.tls is None else server_context(*options.tls)
    if not options.insecure:
        refuse_open_address(options.host, tls=tls is not None, auth=options.auth)
    lock = RepositoryLock(Layout(options.root))
    with lock, bound_to_port(options.host, options.port) as listener:
        asyncio.run(_serve(options, lock, Door(listener, tls), report))
    report({"status": "stopped"})
    return 0


async def _serve(options: ServeOptions, lock: RepositoryLock, door: Door, report: Report) -> None:
    limit = raise_limit(OPEN_FILES)
    stop = asyncio.Event()
    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def front(served: Served, api: Api, sessions: Sessions) -> None:
        store = served.store
        turns = Turns(time.thread_time, lambda: store.live_count(RUNS) > 0)
        who = Callers(store).who
        # What shows nothing may not take the open files of what does, and neither may take ours.
        connections = Connections.within(limit)
        arrivals = Arrivals(who, connections)
        gateway = Gateway(sessions, arrivals, received=served.received, turns=turns)

        async def root(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                return await gateway.serve(request)
            return await api.health(request)

        first_words = FirstWords(connections, time.monotonic)
        checks = [token_needed(store, served.clock)] if options.auth else []
        if not (options.auth or options.insecure):
            checks.append(of_this_machine(options.host))
        first = [first_words.middleware()]
        public = application(api, root, admin=False, first=first, checks=checks)
        await public.setup()
        assert public.server is not None
        try:
            reception = Reception(
                door,
                public.server,
                turns,
                who,
                first_words,
                waiting_most=min(WAITING_MOST, strangers_within(limit)),
            )
            admin = application(api, root, admin=True)
            async with on_socket(lock.layout, admin, served.own_socket), reception.open():
                report(_listening(options, door.listener.getsockname()[1]))
                await stop.wait()
                report({"status": "stopping"})
                # From here on nothing is decided: what happens because we stop is not the
                # workers' fault.
                served.manager.stop()
                served.events.end_readers()
                sessions.close_all("the orchestrator stops")
                served.manager.enrollment.all_gone()
        finally:
            await public.cleanup()

    opening = OpeningOnceThereIsRoom(lock, options.keep, door, stop)
    await Orchestrator(options, lock, report, front, opening, stop.set).run()


def _listening(options: ServeOptions, port: int) -> dict[str, object]:
    host = options.host
    shown = f"[{host}]" if ":" in host else host
    return {
        "status": "listening",
        "host": host,
        "port": port,
        "url": f"{'http' if options.tls is None else 'https'}://{shown}:{port}",
        "schedulingEnabled": options.schedule,
        "version": __version__,
        "pid": os.getpid(),
    }
