"""`swamp serve`: the orchestrator that listens for everybody, until a signal.

SIGTERM and SIGINT stop it within a few seconds and leave live runs to the next start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket

from aiohttp import web

from datastore.layout import Layout
from datastore.lock import RepositoryLock
from swamp import __version__
from swamp.serve.api import Api
from swamp.serve.gateway import Gateway
from swamp.serve.listening import application, bound_to_port, on_socket, refuse_open_address
from swamp.serve.orchestrator import Orchestrator, Report, ServeOptions
from swamp.serve.served import Served
from swamp.serve.sessions import Sessions

__all__ = ["ServeOptions", "run_serve"]


def run_serve(options: ServeOptions, report: Report) -> int:
    """Serve until a signal; the exit code. SwampError for what a person can mend."""
    if not options.insecure:
        refuse_open_address(options.host)
    lock = RepositoryLock(Layout(options.root))
    with lock, bound_to_port(options.host, options.port) as listener:
        asyncio.run(_serve(options, lock, listener, report))
    report({"status": "stopped"})
    return 0


async def _serve(
    options: ServeOptions, lock: RepositoryLock, listener: socket.socket, report: Report
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def front(served: Served, api: Api, sessions: Sessions) -> None:
        gateway = Gateway(sessions)

        async def root(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                return await gateway.serve(request)
            return await api.health(request)

        public = application(api, root, admin=False)
        await public.setup()
        try:
            await web.SockSite(public, listener, backlog=4096).start()
            async with on_socket(lock.layout, application(api, root, admin=True)):
                report(_listening(options, listener.getsockname()[1]))
                await stop.wait()
                report({"status": "stopping"})
                sessions.close_all("the orchestrator stops")
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
        "url": f"http://{shown}:{port}",
        "schedulingEnabled": options.schedule,
        "version": __version__,
        "pid": os.getpid(),
    }
