"""`swamp serve`: the orchestrator that listens for everybody, until a signal.

SIGTERM and SIGINT stop it within a few seconds and leave live runs to the next start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from dataclasses import dataclass

from aiohttp import web

from datastore.layout import Layout
from datastore.lock import RepositoryLock
from swamp import __version__
from swamp.serve.access import token_needed
from swamp.serve.api import Api
from swamp.serve.gateway import Gateway
from swamp.serve.listening import application, bound_to_port, on_socket, refuse_open_address
from swamp.serve.orchestrator import Orchestrator, Report, ServeOptions
from swamp.serve.served import Served
from swamp.serve.sessions import Sessions
from swamp.tls import server_context

__all__ = ["ServeOptions", "run_serve"]

ACCEPTED_AT_ONCE = 1
"""Connections taken in before others get their turn."""

BACKLOG = 4096
"""Connections that may wait in the kernel."""


@dataclass(frozen=True, slots=True)
class Door:
    """Where the network comes in. `tls` None: plain HTTP."""

    listener: socket.socket
    tls: ssl.SSLContext | None


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
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def front(served: Served, api: Api, sessions: Sessions) -> None:
        gateway = Gateway(sessions, received=served.received)

        async def root(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                return await gateway.serve(request)
            return await api.health(request)

        checks = [token_needed(served.store, served.clock)] if options.auth else []
        public = application(api, root, admin=False, checks=checks)
        await public.setup()
        try:
            # A crowd waits in the kernel: the loop takes in a few at a time, between other work.
            site = web.SockSite(
                public, door.listener, backlog=ACCEPTED_AT_ONCE, ssl_context=door.tls
            )
            await site.start()
            door.listener.listen(BACKLOG)
            async with on_socket(lock.layout, application(api, root, admin=True)):
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

    await Orchestrator(options, lock, report, front).run()


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
