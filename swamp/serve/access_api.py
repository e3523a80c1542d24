"""Access tokens over HTTP: made, listed and revoked, by admins alone."""

from __future__ import annotations

from typing import get_args

from aiohttp import web

from datastore.courtesy import each
from datastore.kinds import ACCESS, Role
from swamp import access_tokens
from swamp.serve.answers import (
    ApiError,
    admin,
    done,
    refuse_if_degraded,
    unless_degraded,
)
from swamp.serve.requests import body_of, no_parameters, seconds_of
from swamp.serve.served import Served


class AccessApi:
    """Routes under `/api/v1/access`."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._store = served.store

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/v1/access", admin(no_parameters(self.tokens))),
            web.post("/api/v1/access", admin(self.create)),
            web.post("/api/v1/access/{name}/revoke", admin(self.revoke)),
        ]

    async def tokens(self, request: web.Request) -> web.StreamResponse:
        found, now = self._store.list(ACCESS), self._served.clock.now()
        return await self._served.aside.told(
            request, len(found), lambda pause: access_tokens.access_list(each(found, pause), now)
        )

    async def create(self, request: web.Request) -> web.Response:
        refuse_if_degraded(self._store)
        needed = {"name": str, "role": str, "durationS": (int, float)}
        body = await body_of(request, needed, {"note": str})
        role, note = body["role"], body.get("note")
        if role not in get_args(Role):
            raise ApiError(400, "bad_request", f"role must be one of {', '.join(get_args(Role))}")
        served = self._served
        wanted = access_tokens.AccessRequest(
            body["name"], role, seconds_of(body, "durationS"), note
        )
        made = await access_tokens.create(self._store, served.layout, wanted, served.clock.now())
        return await done(self._store, made, status=201)

    async def revoke(self, request: web.Request) -> web.Response:
        served, name = self._served, request.match_info["name"]
        revoking = access_tokens.revoke(self._store, served.layout, name, served.clock.now())
        answer = await unless_degraded(self._store, revoking)
        # So that a save that takes the file back at once is seen as a change of it.
        await served.look_at_desired(ACCESS, name)
        return await done(self._store, answer)
