"""Where an orchestrator listens: the TCP address, and the repository's own socket.

Makes true: an address that is refused or taken is told before anything is touched, and the socket
file is there exactly while somebody answers on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Middleware

from datastore.errors import SwampError
from datastore.layout import Layout, make_folder
from datastore.room import NO_ROOM
from datastore.trouble import Trouble
from swamp import __version__
from swamp.dialling import VERSION_HEADER
from swamp.serve import peers_fault
from swamp.serve.accepting import Accepting
from swamp.serve.answers import ADMIN, Handler, errors_as_json, with_expectations
from swamp.serve.api import BODY_MAX_BYTES, Api

IDLE_S = 75.0
"""How long a connection may be kept between two requests; clients give theirs up much earlier."""

CLOSE_WITHIN_S = 2.0
"""How long requests that are under way get at the stop, seconds."""


LOOK_S = 0.5
"""How often the socket's file is looked at."""

_NOWHERE = -1
"""The inode of no file at all."""

log = logging.getLogger(__name__)


class ListenError(SwampError):
    """The address cannot be listened on."""


class OpenAddress(ListenError):
    """An address that only guards may be given, without them: wrong usage."""

    exit_code = 2


def refuse_open_address(host: str, *, tls: bool, auth: bool) -> None:
    """OpenAddress for an address that other machines can reach, unless TLS and tokens guard it."""
    if host == "localhost" or (tls and auth):
        return
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    lack = [] if tls else ["--tls-cert and --tls-key"]
    lack += [] if auth else ["--auth token"]
    raise OpenAddress(
        f"--host {host} can be reached from other machines, and anybody there could"
        f" {'listen in' if auth else 'start runs'}: add {' and '.join(lack)}, keep 127.0.0.1,"
        " or say --insecure"
    )


def bound_to_port(host: str, port: int) -> socket.socket:
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


def application(
    api: Api,
    root: Handler,
    *,
    admin: bool,
    first: Sequence[Middleware] = (),
    checks: Sequence[Middleware] = (),
) -> web.AppRunner:
    """The API, with `root` at `/`; `admin` also serves what only the repository's owner may do.

    `checks` come before every handler, `first` before all else: it sees every answer.
    """
    middlewares: list[Middleware] = [*first, errors_as_json, *checks]
    app = web.Application(middlewares=middlewares, client_max_size=BODY_MAX_BYTES)
    app[ADMIN] = admin
    app.add_routes(with_expectations([web.get("/", root), *api.routes()]))
    return runner_of(app)


def runner_of(app: web.Application) -> web.AppRunner:
    """What runs an application here: quiet, patient with nobody, and deaf to signals."""
    app.on_response_prepare.append(_sign)
    return web.AppRunner(
        app,
        access_log=None,
        logger=peers_fault.log,
        handle_signals=False,
        keepalive_timeout=IDLE_S,
        shutdown_timeout=CLOSE_WITHIN_S,
    )


async def _sign(_: web.Request, answer: web.StreamResponse) -> None:
    answer.headers[VERSION_HEADER] = __version__


@contextlib.asynccontextmanager
async def on_socket(layout: Layout, runner: web.AppRunner, refused: Trouble) -> AsyncIterator[None]:
    """Answer on the repository's socket meanwhile. Only with the repository's lock held.

    `refused` is told while the file is gone and cannot be made again.
    """
    await runner.setup()
    try:
        async with asyncio.TaskGroup() as group:
            with contextlib.ExitStack() as listening:
                own = _OwnSocket(layout, runner, group, listening)
                await own.listen_if_there_is_room(refused)
                keeper = group.create_task(own.keep(refused))
                yield
            keeper.cancel()
    finally:
        # Nobody may answer there any more, whatever becomes of its file.
        await runner.cleanup()
        with contextlib.suppress(OSError):
            await asyncio.to_thread(_remove, layout)


class _OwnSocket:
    """The repository's socket, whose connections `runner` answers."""

    def __init__(
        self,
        layout: Layout,
        runner: web.AppRunner,
        group: asyncio.TaskGroup,
        listening: contextlib.ExitStack,
    ) -> None:
        self._layout, self._path, self._runner = layout, layout.socket, runner
        self._group, self._listening = group, listening
        self._file: int | None = _NOWHERE

    async def listen_if_there_is_room(self, refused: Trouble) -> None:
        """Listen there; on a full disk `refused` is told, and it is for `keep` to try again."""
        try:
            await self.listen()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            refused.found(error)

    async def listen(self) -> None:
        """Listen there, whatever is there."""
        bound, self._file = await asyncio.to_thread(_bound_anew, self._layout)
        # Nobody finds the one before any more.
        self._listening.close()
        self._listening.enter_context(bound)
        self._listening.enter_context(Accepting(bound, self._take).open())

    async def keep(self, refused: Trouble) -> None:
        """Listen again when the file was removed, say by `git clean -fdx`."""
        while True:
            await asyncio.sleep(LOOK_S)
            with refused.caught():
                if not await asyncio.to_thread(self._layout.root_is_here):
                    continue
                if await asyncio.to_thread(_inode, self._path) != self._file:
                    await self.listen()
                    log.warning("%s was removed: listening there again", self._path.name)

    def _take(self, connection: socket.socket) -> None:
        self._group.create_task(self._hand_over(connection))

    async def _hand_over(self, connection: socket.socket) -> None:
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._runner.server, connection)
        except OSError as error:
            log.debug("a connection came to nothing: %s", error)
            connection.close()


def _inode(path: Path) -> int | None:
    return path.stat().st_ino if path.exists() else None


def _remove(layout: Layout) -> None:
    """Not that of somebody else, who has the repository's place by now."""
    layout.expect_root()
    layout.socket.unlink(missing_ok=True)


def _bound_anew(layout: Layout) -> tuple[socket.socket, int]:
    """A socket at its place that only its owner may open, and the inode of its file."""
    path = layout.socket
    make_folder(layout, path.parent, 0o700)
    path.unlink(missing_ok=True)
    bound = _bound(path)
    path.chmod(0o600)
    return bound, path.stat().st_ino


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
