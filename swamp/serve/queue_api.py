"""What waits, why, and what it asks of the fleet: the queue as the scheduler sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator

from aiohttp import web

from controllers.demand import Answer, Seen, answer, demand_of, waiting_in
from controllers.placement import Reason, Verdict
from controllers.reasons import reason_key
from controllers.requirement import describe
from datastore.courtesy import Pause, each, in_order, let_go, no_pause
from datastore.kinds import PENDING, Pending
from swamp import views
from swamp.serve.answers import ApiError
from swamp.serve.requests import no_parameters
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
            web.get("/api/v1/queue", no_parameters(self.queue)),
            web.get("/api/v1/queue/{id}/explain", no_parameters(self.explain)),
            web.get("/api/v1/demand", no_parameters(self.demand)),
        ]

    async def queue(self, request: web.Request) -> web.StreamResponse:
        pendings, now = self._store.live(PENDING), self._served.clock.now()
        size, aside = len(pendings), self._served.aside
        # Ten thousand dispatches of one requirement have one reason, which only the loop can tell.
        specs = await aside.worked(
            request,
            size,
            lambda pause: {
                reason_key(one.spec): one.spec
                for one in each(pendings, pause)
                if one.state == "waiting"
            },
        )
        reasons: dict[Hashable, Reason] = {}

        def look() -> Iterator[None]:
            for key, spec in specs.items():
                reasons[key] = self._reasons.of_dispatch(spec)
                yield

        await aside.sliced(request, look())

        def make(pause: Pause) -> list[views.View]:
            listed = views.queue_list(pendings, now, lambda spec: reasons[reason_key(spec)], pause)
            let_go(specs, pause)
            let_go(reasons, pause)
            return listed

        return await aside.told(request, size, make)

    async def explain(self, request: web.Request) -> web.StreamResponse:
        pending = await self._chosen(request)
        placement, aside = pending.spec.placement, self._served.aside
        reason = self._reasons.of_dispatch(pending.spec, fresh=True)
        verdicts = await aside.sliced(request, self._reasons.verdicts(pending.spec))
        body = {
            "queueId": pending.name,
            "state": pending.state or "not looked at yet",
            "requirement": describe(placement),
            "reason": reason.text,
            "reasonCode": reason.code,
        }

        def make(pause: Pause) -> views.View:
            return {**body, "workers": [_verdict(one) for one in each(verdicts, pause)]}

        return await aside.told(request, len(verdicts), make)

    async def demand(self, request: web.Request) -> web.StreamResponse:
        seen, now, aside = Seen.now(self._store), self._served.clock.now(), self._served.aside
        size = len(seen)
        waiting = await aside.worked(request, size, lambda pause: waiting_in(seen, now, pause))
        answers: dict[str, Answer] = {}
        await aside.sliced(request, answer(waiting, self._reasons, answers))
        soon: Counter[str] = Counter()
        for counts in await aside.sliced(request, self._served.manager.runs.upcoming()):
            soon.update(counts)

        def make(pause: Pause) -> list[views.View]:
            found = demand_of(seen, waiting, answers, soon, pause)
            for one in waiting.values():
                let_go(one.models, pause)
            return views.demand_list(found)

        return await aside.told(request, size, make)

    async def _chosen(self, request: web.Request) -> Pending:
        """The dispatch that is meant; see `chosen`."""
        wanted = request.match_info["id"]
        named = self._store.find(PENDING, wanted)
        if named is not None and named.live:
            return named
        pendings = self._store.live(PENDING)
        return await self._served.aside.worked(
            request, len(pendings), lambda pause: chosen(pendings, wanted, pause)
        )


def chosen(pendings: Iterable[Pending], wanted: str, pause: Pause = no_pause) -> Pending:
    """The dispatch that is meant: by its id, by `workflow/job/step` or the end of that, or by a
    part of its id that no other has. ApiError names the candidates where there are several.
    """
    by_path, by_part = [], []
    for one in each(pendings, pause):
        if one.name == wanted:
            return one
        if wanted in _paths(one):
            by_path.append(one)
        elif wanted in one.name:
            by_part.append(one)
    near = by_path or by_part
    if len(near) == 1:
        return near[0]
    if not near:
        none = f"nothing that waits is named '{wanted}'; see `swamp worker queue`"
        raise ApiError(404, "dispatch_not_found", none)
    named = in_order((f"{_paths(one)[0]} ({one.name})" for one in near), str, pause)
    candidates = ", ".join(named[:CANDIDATES_MOST])
    more = f" and {len(near) - CANDIDATES_MOST} more" if len(near) > CANDIDATES_MOST else ""
    raise ApiError(
        409,
        "dispatch_ambiguous",
        f"{len(near)} waiting dispatches fit '{wanted}': {candidates}{more}; give the id of one",
    )


def _verdict(one: Verdict) -> views.View:
    return views.known({"worker": one.worker, "verdict": one.state, "detail": one.detail or None})


def _paths(pending: Pending) -> tuple[str, str, str]:
    """How people write the step of a dispatch, the longest first."""
    spec = pending.spec
    return (f"{spec.workflow}/{spec.job}/{spec.step}", f"{spec.job}/{spec.step}", spec.step)
