"""What waits, why, and what it asks of the fleet: the queue as the scheduler sees it."""

from __future__ import annotations

from aiohttp import web

from controllers.demand import demand
from controllers.requirement import describe
from datastore.kinds import PENDING, Pending
from swamp import views
from swamp.serve.answers import ApiError, told
from swamp.serve.served import Served


class QueueApi:
    """Routes under `/api/v1/queue` and `/api/v1/demand`."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._store = served.store
        self._reasons = served.manager.scheduler.reasons

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/v1/queue", self.queue),
            web.get("/api/v1/queue/{id}/explain", self.explain),
            web.get("/api/v1/demand", self.demand),
        ]

    async def queue(self, request: web.Request) -> web.Response:
        pendings = self._store.live(PENDING)
        listed = views.queue_list(pendings, self._served.clock.now())
        by_name = {pending.name: pending for pending in pendings}
        for entry in listed:
            reason = self._reasons.of_dispatch(by_name[entry["queueId"]].spec)
            entry["reason"], entry["reasonCode"] = reason.text, reason.code
        return await told(self._store, listed)

    async def explain(self, request: web.Request) -> web.Response:
        pending = self._find(request.match_info["id"])
        placement = pending.spec.placement
        reason = self._reasons.of_dispatch(pending.spec, fresh=True)
        workers = [
            views.known({"worker": one.worker, "verdict": one.state, "detail": one.detail or None})
            for one in self._reasons.verdicts(placement)
        ]
        body = {
            "queueId": pending.name,
            "state": pending.state or "not looked at yet",
            "requirement": describe(placement),
            "reason": reason.text,
            "reasonCode": reason.code,
            "workers": workers,
        }
        return await told(self._store, body)

    async def demand(self, request: web.Request) -> web.Response:
        manager = self._served.manager
        soon = manager.runs.upcoming()
        found = demand(self._store, self._reasons, soon, self._served.clock.now())
        return await told(self._store, views.demand_list(found))

    def _find(self, wanted: str) -> Pending:
        """A live dispatch by its id, by a unique part of it, or by the name of its step."""
        pendings = self._store.live(PENDING)
        exact = [one for one in pendings if one.name == wanted]
        near = exact or [one for one in pendings if one.spec.step == wanted or wanted in one.name]
        if len(near) == 1:
            return near[0]
        what = f"{len(near)} waiting dispatches fit '{wanted}': give more of the id"
        none = f"nothing that waits is named '{wanted}'; see `swamp worker queue`"
        raise ApiError(404, "dispatch_not_found", what if near else none)
