"""Who may ask over the network: a token in `Authorization: Bearer`, checked before any handler.

Without a token these are served: health (`/health`, `GET /`), the workers' upgrade, and what brings
a credential of its own. The repository's own socket asks for none. Who reads on and on is cut off
when the token ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from aiohttp.typedefs import Middleware

from controllers.access import AccessRefused, let_in
from datastore.clock import Clock
from datastore.kinds import ACCESS, Role
from datastore.store import Store
from swamp.protocol import DATA_PATH, DEATH_PATH
from swamp.serve.answers import ADMIN_ROLE, ApiError, Handler

RANKS: dict[Role, int] = {"read": 0, "run": 1, "admin": 2}
OPEN = frozenset({"/", "/health", f"{DATA_PATH}/{{name}}", DEATH_PATH})
"""Routes for everybody; outputs of steps and reports of guards bring credentials of their own."""

_BEARER = "bearer "


def token_needed(store: Store, clock: Clock) -> Middleware:
    """A middleware that lets nobody in without a token of the role that the request needs."""

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        if is_open(request):
            return await handler(request)
        try:
            access = let_in(store, _bearer(request), clock.now())
        except AccessRefused as error:
            raise ApiError(401, "unauthorized", str(error)) from None
        role = access.spec.role
        needed: Role = "read" if request.method in ("GET", "HEAD") else "run"
        if RANKS[role] < RANKS[needed]:
            raise ApiError(
                403,
                "forbidden",
                f"access token '{access.name}' has the role '{role}'; this needs '{needed}'",
            )
        request[ADMIN_ROLE] = role == "admin"
        if needed != "read":
            return await handler(request)
        with _cut_at_end(store, access.name, request):
            return await handler(request)

    return checked


def is_open(request: web.Request) -> bool:
    """Whether it is served to everybody, or asks for a credential of its own."""
    resource = request.match_info.route.resource
    return resource is not None and resource.canonical in OPEN


@contextmanager
def _cut_at_end(store: Store, access: str, request: web.Request) -> Iterator[None]:
    """Close the connection if the access token ends meanwhile: what is read may go on for long."""

    def look(name: str) -> None:
        if name == access and store.is_finished(ACCESS, name) and request.transport is not None:
            request.transport.abort()

    unwatch = store.watch(ACCESS, look)
    try:
        yield
    finally:
        unwatch()


def _bearer(request: web.Request) -> str:
    given = request.headers.get("Authorization", "")
    if given[: len(_BEARER)].lower() != _BEARER:
        raise AccessRefused(
            "this server asks for an access token: --token or SWAMP_SERVER_TOKEN, from"
            " `swamp access token create`"
        )
    return given[len(_BEARER) :].strip()
