"""How the API answers: after the store's barrier, errors as one line and a code.

While the disk refuses the journal, a question is answered all the same: the header `Swamp-Degraded`
says that the answer may show more than is on disk. A change is answered 503.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from aiohttp import HttpVersion11, web

from controllers.retention import Keep
from datastore.definitions.inputs import InputError
from datastore.errors import (
    AlreadyExists,
    Degraded,
    InvalidFile,
    NotDurableYet,
    NotFound,
    SwampError,
    alone,
)
from datastore.sqlite_file import to_json
from datastore.store import Store
from datastore.trouble import shown
from swamp import __version__
from swamp.dialling import DEGRADED_HEADER
from swamp.protocol import PROTOCOL_VERSION

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BARRIER_WITHIN_S = 10.0
NOTED = "noted, and in force once the disk takes writes again"
LOOK_EVERY_S = 0.1
"""How often an answer that waits looks whether the disk is in trouble, or the client has left."""

MESSAGE_MOST = 4_000
MESSAGE_SHORT = 1_000
"""Characters of an error: it never has more, and nothing in it is cut while it has fewer."""

_QUOTED = re.compile("'([^']{0,200})([^']*)'")

JSON_TYPE = "application/json; charset=utf-8"

ADMIN = web.AppKey("admin", bool)
"""Whether the application is served on the repository's own socket."""

ADMIN_ROLE = "swamp.admin"
"""Set in a request over the network: whether its access token has the role `admin`."""

_STATUS: tuple[tuple[type[SwampError], int, str], ...] = (
    (NotFound, 404, "not_found"),
    (AlreadyExists, 409, "exists"),
    (InputError, 422, "input_invalid"),
    (InvalidFile, 422, "invalid_file"),
    (NotDurableYet, 503, "not_durable_yet"),
    (Degraded, 503, "degraded"),
    (SwampError, 400, "bad_request"),
)


_OF_THE_DISK = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES))


class ApiError(SwampError):
    """An error with its HTTP status and code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def health(degraded: str | None, takes_work: bool, problems: int, keep: Keep) -> dict[str, Any]:
    """How a server is; `degraded` is why not all is well."""
    return {
        "status": "ok" if degraded is None else "degraded",
        "version": __version__,
        "protocol": PROTOCOL_VERSION,
        "degraded": degraded,
        "takesWork": takes_work,
        "problems": problems,
        "retention": {"keepRuns": keep.runs, "keepForS": keep.for_s},
    }


async def told(store: Store, body: Any) -> web.Response:
    """The answer to a question: marked, not held up, while the disk refuses writes."""
    headers = await told_headers(store)
    return web.Response(body=to_json(body), headers=headers)


async def told_headers(store: Store) -> dict[str, str]:
    """The headers of an answer to a question, once they are known; its body must be made before."""
    trouble = await trouble_before_barrier(store)
    marked = {} if trouble is None else {DEGRADED_HEADER: in_a_header(trouble)}
    return {"Content-Type": JSON_TYPE, **marked}


def in_a_header(text: str) -> str:
    """The text in one line, and nothing that no header may have: it can name a path."""
    return "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))


async def done(store: Store, body: Any, *, status: int = 200) -> web.Response:
    """The answer to a change, once that is on disk; Degraded while it is not."""
    await durable(store)
    return web.Response(body=to_json(body), headers={"Content-Type": JSON_TYPE}, status=status)


async def durable(store: Store) -> None:
    """Return once all that memory shows is on disk; NotDurableYet while it is not."""
    trouble = await trouble_before_barrier(store)
    if trouble is not None:
        raise NotDurableYet(f"{NOTED}: {trouble}")


async def unless_degraded(store: Store, change: Coroutine[Any, Any, Answer]) -> Answer:
    """What a change that waits for the disk itself answers; NotDurableYet once the disk refuses."""

    def look() -> None:
        if store.trouble is not None:
            raise NotDurableYet(f"{NOTED}: {store.trouble}")

    return await _unless(look, change)


async def unless_left(request: web.Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """What the work answers; once the client has left, that ends, and is a ConnectionError."""
    return await _unless(lambda: refuse_if_left(request), work)


def refuse_if_left(request: web.Request) -> None:
    """A ConnectionError if nobody is there to be answered."""
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the client has left")


async def _unless(look: Callable[[], None], work: Coroutine[Any, Any, Answer]) -> Answer:
    """What the work answers, unless a look in the meantime raises: that ends it."""
    try:
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work)
            while not (await asyncio.wait((working,), timeout=LOOK_EVERY_S))[0]:
                look()
    except BaseExceptionGroup as group_error:
        raise alone(group_error) from None
    return working.result()


def refuse_if_degraded(store: Store) -> None:
    """Degraded while the disk refuses the journal: nothing new is taken on then."""
    if store.trouble is not None:
        raise Degraded(f"nothing new is taken on: {store.trouble}")


def refuse_if_held(store: Store) -> None:
    """Degraded while nothing new may be begun: also where only results cannot be taken."""
    if store.hold is not None:
        raise Degraded(f"nothing new is taken on: {store.hold}")


async def trouble_before_barrier(store: Store) -> str | None:
    """None once everything that memory shows is on disk, else why it is not.

    Unlike a barrier, a disk that refuses never holds it up.
    """
    durable = asyncio.Event()
    store.after_barrier(durable.set)
    waited_s = 0.0
    while not durable.is_set():
        if store.trouble is not None:
            return store.trouble
        if waited_s >= BARRIER_WITHIN_S:
            return "the disk did not answer in time"
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                await durable.wait()
        except TimeoutError:
            waited_s += LOOK_EVERY_S
    return None


def admin(handler: Handler) -> Handler:
    """Serve the handler on the repository's own socket, and to access tokens of that role."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        if not (request.app.get(ADMIN, False) or request.get(ADMIN_ROLE, False)):
            raise ApiError(
                403,
                "forbidden",
                "this is for admins: run it in the repository, or give an access token of the role"
                " admin to a server with --auth token",
            )
        return await handler(request)

    return guarded


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """One line and a code for whatever went wrong; a page of another site gets nothing.

    That a peer has gone while it was answered is nothing that went wrong here.
    """
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("Host"):
        return _error(403, "forbidden", f"requests of pages from {as_text(origin)} are not served")
    try:
        return await handler(request)
    except ApiError as error:
        return _error(error.status, error.code, str(error))
    except SwampError as error:
        status, code = next((s, c) for kind, s, c in _STATUS if isinstance(error, kind))
        return _error(status, code, str(error))
    except web.HTTPRequestEntityTooLarge as error:
        return _error(error.status, "too_large", f"{request.method} {request.path}: {error.text}")
    except web.HTTPException as error:
        answer = _error(error.status, "http", f"{request.method} {request.path}: {error.reason}")
        if isinstance(error, web.HTTPMethodNotAllowed):
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except web.RequestPayloadError as error:
        return _error(400, "bad_request", f"the body cannot be read: {unreadable(error)}")
    except ConnectionError as error:
        if request.transport is not None and not request.transport.is_closing():
            raise
        log.debug("%s %s: the peer has gone (%s)", request.method, request.path, error)
        # It reaches nobody; without an answer aiohttp would take this for an error of ours.
        return web.Response(status=400)
    except OSError as error:
        if error.filename is None and error.errno not in _OF_THE_DISK:
            raise
        return _error(503, "degraded", f"the server's disk refuses: {shown(error)}")


def with_expectations(routes: Iterable[web.RouteDef]) -> list[web.RouteDef]:
    """The routes, with `Expect` answered here: aiohttp quotes it, which may hold what is no text.

    It is looked at before any middleware, and also where there is no route.
    """
    own = {"expect_handler": _expectation}
    return [
        web.RouteDef(one.method, one.path, one.handler, {**one.kwargs, **own})
        for one in (*routes, web.route("*", "/{_:(?s:.*)}", _no_route))
    ]


async def _no_route(request: web.Request) -> web.StreamResponse:
    """404, or 405 where another method is served, as aiohttp does."""
    served: set[str] = set()
    for resource in request.app.router.resources():
        served |= (await resource.resolve(request))[1]
    served.discard("*")
    raise web.HTTPMethodNotAllowed(request.method, served) if served else web.HTTPNotFound()


async def _expectation(request: web.Request) -> web.StreamResponse | None:
    expected = request.headers.get("Expect", "")
    if request.version != HttpVersion11:
        return None
    if expected.lower() != "100-continue":
        return _error(417, "http", f"Expect '{as_text(expected)}': only 100-continue is known")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # Nothing of the answer has been sent.
    request.writer.output_size = 0
    return None


def unreadable(body: web.RequestPayloadError) -> str:
    """What is wrong with a body, in one line: its `Content-Encoding`, say, is not what it is."""
    return " ".join(str(body).split()).removeprefix("400, message: ")


def as_text(header: str) -> str:
    """A header as it can be shown: bytes that are no text are no Unicode in it."""
    return header.encode("utf-8", "replace").decode()


def _briefly(message: str) -> str:
    """The message, with what is quoted in it no longer than it helps: callers may send megabytes.

    One of some lines is left as it is, whatever it quotes.
    """
    if len(message) > MESSAGE_MOST:
        message = f"{message[: MESSAGE_MOST // 2]}…{message[-MESSAGE_MOST // 2 :]}"
    if len(message) <= MESSAGE_SHORT:
        return message
    return _QUOTED.sub(lambda found: f"'{found[1]}{'…' * bool(found[2])}'", message)


def _error(status: int, code: str, message: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    told = {"error": _briefly(message), "code": code}
    answer = web.json_response(told, status=status, headers=headers)
    if status == 408:
        # The rest of its body may never come.
        answer.force_close()
    return answer
