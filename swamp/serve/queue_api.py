"""What waits, why, and what it asks of the fleet: the queue as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from controllers.demand import demand
from controllers.requirement import describe
from datastore.kinds import PENDING, Pending
from swamp import views
from swamp.serve.answers import ApiError, told
from swamp.serve.served import Served

CANDIDATES_MOST = 6
"""Dispatches listed where a name means several."""


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
        pending = chosen(self._store.live(PENDING), request.match_info["id"])
        placement = pending.spec.placement
        reason = self._reasons.of_dispatch(pending.spec, fresh=True)
        workers = [
            views.known({"worker": one.worker, "verdict": one.state, "detail": one.detail or None})
            for one in self._reasons.verdicts(pending.spec)
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


def chosen(pendings: Iterable[Pending], wanted: str) -> Pending:
    """The dispatch that is meant: by its id, by `workflow/job/step` or the end of that, or by a
    part of its id that no other has. ApiError names the candidates where there are several.
    """
    known = list(pendings)
    near = (
        [one for one in known if one.name == wanted]
        or [one for one in known if wanted in _paths(one)]
        or [one for one in known if wanted in one.name]
    )
    if len(near) == 1:
        return near[0]
    if not near:
        none = f"nothing that waits is named '{wanted}'; see `swamp worker queue`"
        raise ApiError(404, "dispatch_not_found", none)
    named = ", ".join(sorted(f"{_paths(one)[0]} ({one.name})" for one in near)[:CANDIDATES_MOST])
    more = f" and {len(near) - CANDIDATES_MOST} more" if len(near) > CANDIDATES_MOST else ""
    raise ApiError(
        409,
        "dispatch_ambiguous",
        f"{len(near)} waiting dispatches fit '{wanted}': {named}{more}; give the id of one",
    )


def _paths(pending: Pending) -> tuple[str, str, str]:
    """How people write the step of a dispatch, the longest first."""
    spec = pending.spec
    return (f"{spec.workflow}/{spec.job}/{spec.step}", f"{spec.job}/{spec.step}", spec.step)
