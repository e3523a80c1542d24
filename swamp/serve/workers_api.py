"""Workers over HTTP: listed by everybody, forgotten by admins."""

from __future__ import annotations

from datetime import timedelta

from aiohttp import web

from controllers.enrollment import StillThere, forget_worker
from datastore.clock import stamp
from datastore.kinds import LEASES, WORKERS
from swamp import views
from swamp.serve.answers import ApiError, admin, done, refuse_if_degraded, told
from swamp.serve.served import Served


class WorkersApi:
    """Routes under `/api/v1/workers`."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._store = served.store

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/v1/workers", self.workers),
            web.post("/api/v1/workers/{name}/forget", admin(self.forget)),
        ]

    async def workers(self, request: web.Request) -> web.Response:
        show_all = request.query.get("all") in ("1", "true")
        workers = self._store.list(WORKERS)
        listed = views.worker_list(workers, self._store.live(LEASES), show_all)
        now = self._served.clock.now()
        for worker in listed["workers"]:
            silent_s = self._served.silent_s(worker["name"])
            if silent_s is not None:
                worker["lastSeenAt"] = stamp(now - timedelta(seconds=silent_s))
        return await told(self._store, listed)

    async def forget(self, request: web.Request) -> web.Response:
        refuse_if_degraded(self._store)
        try:
            worker = forget_worker(self._store, request.match_info["name"])
        except StillThere as error:
            raise ApiError(409, "worker_in_use", str(error)) from None
        assert worker.status is not None
        return await done(self._store, {"name": worker.name, "token": worker.status.token})
