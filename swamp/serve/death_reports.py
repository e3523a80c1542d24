"""What a worker's guard tells after its worker: `POST /api/v1/workers/{name}/death`.

Makes true: the leases of a process that is proven dead end at once. The proof is the credential
that this process alone got when it enrolled; its guard tells after it has killed every runner.
"""

from __future__ import annotations

import logging

from aiohttp import web

from datastore.store import Store
from swamp.protocol import DEATH_PATH
from swamp.serve.answers import ApiError, done
from swamp.serve.credentials import Credentials
from swamp.serve.requests import body_of
from swamp.serve.sessions import Sessions

log = logging.getLogger(__name__)


class DeathReports:
    """Takes the reports."""

    def __init__(self, store: Store, credentials: Credentials, sessions: Sessions) -> None:
        self._store = store
        self._credentials = credentials
        self._sessions = sessions

    def routes(self) -> list[web.RouteDef]:
        """The route; it asks for the credential of the dead process and for no other."""
        return [web.post(DEATH_PATH, self.report)]

    async def report(self, request: web.Request) -> web.Response:
        """End the leases of the process, unless that has happened already."""
        worker = request.match_info["name"]
        body = await body_of(request, {"instance": str, "credential": str})
        instance = body["instance"]
        if not self._credentials.proves_death(body["credential"], worker, instance):
            raise ApiError(401, "unauthorized", "this credential is of no process of that worker")
        ended = self._sessions.died(worker, instance)
        log.info("worker %s: its process died, %d leases ended", worker, ended)
        return await done(self._store, {"worker": worker, "endedLeases": ended})
