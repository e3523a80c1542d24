"""Workers over HTTP: listed by everybody, verified and forgotten by admins."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import datetime, timedelta

from aiohttp import web

from controllers.forgetting import StillThere, no_such_worker
from controllers.placement import takes_probes
from controllers.probes import WAIT_S, Verdict
from datastore.clock import stamp
from datastore.kinds import LEASES, WORKERS, Worker, WorkerSpec, WorkerStatus
from datastore.listing import Listing
from datastore.sqlite_file import to_json
from swamp import views
from swamp.serve.answers import (
    ApiError,
    admin,
    done,
    refuse_if_degraded,
    refuse_if_held,
    told,
    unless_degraded,
)
from swamp.serve.requests import Parameters
from swamp.serve.served import Served
from swamp.worker_files import forget

VERIFY_WITHIN_S = 120.0


class WorkersApi:
    """Routes under `/api/v1/workers`."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._store = served.store

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/v1/workers", self.workers),
            web.post("/api/v1/workers/{name}/forget", admin(self.forget)),
            web.post("/api/v1/workers/{name}/verify", admin(self.verify)),
        ]

    async def workers(self, request: web.Request) -> web.StreamResponse:
        asked = Parameters(request, ("all", "name"))
        show_all, named, store = asked.flag("all"), asked.texts("name"), self._store
        workers: Collection[Worker] | Listing[WorkerSpec, WorkerStatus]
        if named:
            leases = tuple(one for name in named for one in store.by(LEASES, "worker", name))
            workers, left_out, connected = store.list(WORKERS, named), 0, iter(named)
        else:
            live, leases = store.live(WORKERS), store.live(LEASES)
            # Tens of thousands may have gone away: they are counted, and read if asked for.
            workers = store.list(WORKERS) if show_all else live
            left_out = 0 if show_all else store.count(WORKERS) - len(live)
            connected = (worker.name for worker in live)
        seen = await self._served.aside.sliced(request, map(self._seen_at, connected))
        seen_at = {name: at for name, at in seen if at is not None}

        def keep(view: views.View) -> bytes:
            # Thousands of views that are kept would be looked through by collections of memory.
            if view["name"] in seen_at:
                view["lastSeenAt"] = stamp(seen_at[view["name"]])
            return to_json(view)

        return await self._served.aside.told(
            request,
            len(workers) + len(leases),
            lambda pause: views.worker_list(workers, leases, show_all, left_out, pause, keep),
        )

    def _seen_at(self, worker: str) -> tuple[str, datetime | None]:
        """When something came from the worker last; None if it is not connected."""
        silent_s = self._served.silent_s(worker)
        if silent_s is None:
            return worker, None
        return worker, self._served.clock.now() - timedelta(seconds=silent_s)

    async def verify(self, request: web.Request) -> web.Response:
        """Probe the worker, or join the probe that is under way, and wait for the verdict."""
        refuse_if_held(self._store)
        name = request.match_info["name"]
        worker = self._store.find(WORKERS, name)
        if worker is None:
            raise no_such_worker(name)
        if not takes_probes(worker):
            state = "draining" if worker.live else "disconnected"
            raise ApiError(409, "worker_unavailable", f"worker '{name}' is {state}")
        coming = self._served.manager.enrollment.probes.start(worker, WAIT_S)
        try:
            async with asyncio.timeout(VERIFY_WITHIN_S):
                verdict = await asyncio.shield(coming)
        except TimeoutError:
            verdict = Verdict("error", error=f"no verdict within {VERIFY_WITHIN_S:g}s")
        return await told(self._store, _told_verdict(name, verdict))

    async def forget(self, request: web.Request) -> web.Response:
        refuse_if_degraded(self._store)
        name = request.match_info["name"]
        try:
            forgetting = forget(self._store, self._served.layout, name)
            answer = await unless_degraded(self._store, forgetting)
        except StillThere as error:
            raise ApiError(409, "worker_in_use", str(error)) from None
        # Whoever enrolls next must not find what was asked of the one before.
        await self._served.look_at_desired(WORKERS, name)
        return await done(self._store, answer)


def _told_verdict(worker: str, verdict: Verdict) -> views.View:
    """How the probe of a worker went."""
    return views.known(
        {
            "name": worker,
            "status": verdict.status,
            "platform": verdict.platform,
            "arch": verdict.arch,
            "probeMarkerOk": verdict.marker_ok,
            "outputOk": verdict.output_ok,
            "dataPlaneOk": verdict.data_plane_ok,
            "failures": list(verdict.failures) or None,
            "error": verdict.error,
        }
    )
