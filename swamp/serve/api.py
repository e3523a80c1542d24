"""The HTTP API, the same on TCP and on the repository's own socket.

Every answer waits for the store's barrier, also when it only tells what was read (`answers` says
what happens while the disk refuses writes). Tokens are administered, and runs are pruned, on the
repository's socket alone: whoever may open that may edit the files anyway.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from itertools import islice
from typing import Any, get_args

from aiohttp import web

from controllers.retention import Keep, all_set
from controllers.run.telling import last_event
from datastore.clock import stamp
from datastore.courtesy import Pause, each, in_order
from datastore.errors import InvalidFile
from datastore.kinds import LEASES, PENDING, RUNS, STEPS, TOKENS, WORKERS, Counts, Run, RunStatus
from swamp import run_views, tokens, views
from swamp.limits import RUNS_MOST
from swamp.serve.access_api import AccessApi
from swamp.serve.answers import (
    ApiError,
    admin,
    done,
    health,
    refuse_if_degraded,
    refuse_if_held,
    told,
    unless_degraded,
)
from swamp.serve.asks_api import AsksApi
from swamp.serve.metrics import Metrics
from swamp.serve.queue_api import QueueApi
from swamp.serve.requests import Parameters, body_of, no_parameters, seconds_of
from swamp.serve.served import Served
from swamp.serve.starting import refused_of, start_run
from swamp.serve.workers_api import WorkersApi

BODY_MAX_BYTES = 4 << 20
EVENTS_MOST = 1 << 53
RUN_STATES: tuple[str, ...] = get_args(RunStatus.model_fields["state"].annotation)


class Api:
    """Handlers of all routes but the workers' socket."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._store = served.store
        self._aside = served.aside

    def routes(self) -> list[web.RouteDef]:
        """Every route, for both applications."""
        return [
            web.get("/health", self.health),
            web.get("/api/v1/problems", no_parameters(self.problems)),
            web.get("/api/v1/tokens", admin(no_parameters(self.tokens))),
            web.post("/api/v1/tokens", admin(self.create_token)),
            web.post("/api/v1/tokens/{name}/revoke", admin(self.revoke_token)),
            web.get("/api/v1/runs", self.runs),
            web.post("/api/v1/runs", self.start_run),
            web.post("/api/v1/runs/prune", admin(self.prune_runs)),
            web.get("/api/v1/runs/{id}", no_parameters(self.run)),
            web.post("/api/v1/runs/{id}/cancel", self.cancel_run),
            web.get("/api/v1/runs/{id}/events", self.run_events),
            *self._served.data.routes(),
            *self._served.deaths.routes(),
            *QueueApi(self._served).routes(),
            *AsksApi(self._served).routes(),
            *AccessApi(self._served).routes(),
            *WorkersApi(self._served).routes(),
            *Metrics(self._served).routes(),
        ]

    # -- how things are --------------------------------------------------------------------------

    async def health(self, request: web.Request) -> web.Response:
        served = self._served
        takes_work = self._store.hold is None and served.only_run is None
        problems, keep = len(served.problems()), served.manager.retention.keep
        return web.json_response(health(served.degraded, takes_work, problems, keep))

    async def problems(self, request: web.Request) -> web.StreamResponse:
        found = self._served.problems()

        def make(pause: Pause) -> list[views.View]:
            return [_problem(one) for one in each(found, pause)]

        return await self._aside.told(request, len(found), make)

    # -- tokens ----------------------------------------------------------------------------------

    async def tokens(self, request: web.Request) -> web.StreamResponse:
        store, now = self._store, self._served.clock.now()
        known, workers = store.list(TOKENS), store.list(WORKERS)
        return await self._aside.told(
            request,
            len(known) + len(workers),
            lambda pause: views.token_list(known, workers, now, pause),
        )

    async def create_token(self, request: web.Request) -> web.Response:
        refuse_if_degraded(self._store)
        needed = {"name": str, "durationS": (int, float)}
        body = await body_of(request, needed, {"maxEnrollments": object})
        most = body.get("maxEnrollments", 1)
        if most != "unlimited" and (not isinstance(most, int) or isinstance(most, bool)):
            raise ApiError(400, "bad_request", "maxEnrollments must be a number or 'unlimited'")
        wanted = tokens.TokenRequest(body["name"], seconds_of(body, "durationS"), most)
        served = self._served
        made = await tokens.create(self._store, served.layout, wanted, served.clock.now())
        return await done(self._store, made, status=201)

    async def revoke_token(self, request: web.Request) -> web.Response:
        served = self._served
        name = request.match_info["name"]
        revoking = tokens.revoke(self._store, served.layout, name, served.clock.now())
        answer = await unless_degraded(self._store, revoking)
        # So that a save that takes the file back at once is seen as a change of it, and told.
        await served.look_at_desired(TOKENS, name)
        return await done(self._store, answer)

    # -- runs ------------------------------------------------------------------------------------

    async def runs(self, request: web.Request) -> web.StreamResponse:
        asked = Parameters(request, ("limit", "workflow", "status"))
        limit = asked.number("limit", 50, 1, RUNS_MOST)
        workflow, status = asked.text("workflow"), asked.one_of("status", RUN_STATES)
        runs = self._store.list(RUNS)

        def choose(pause: Pause) -> list[Run]:
            names = in_order(runs.names, str, pause)
            newest_first = each(map(runs.get, reversed(names)), pause)
            return list(
                islice((run for run in newest_first if _fits(run, workflow, status)), limit)
            )

        found = await self._aside.worked(request, len(runs), choose)
        exact = [self._exact(run) for run in found]
        return await self._aside.told(
            request,
            len(exact),
            lambda pause: run_views.run_list(each(exact, pause), limit=len(exact)),
        )

    async def start_run(self, request: web.Request) -> web.Response:
        refuse_if_held(self._store)
        # What these two must be is said where they are used.
        optional = {"inputs": object, "priority": object}
        body = await body_of(request, {"workflow": str}, optional, passed_over=("initiatedBy",))
        only = self._served.only_run
        if only is not None:
            held_by = self._store.get(RUNS, only)
            raise ApiError(
                409,
                "one_run_only",
                f"run {only} of workflow '{held_by.spec.workflow}' holds this repository until it"
                " ends (`swamp workflow run` without a server): try again then, or use"
                " `swamp serve`, which has many",
            )
        run = await start_run(self._served, body, self._served.new_run())
        started = {"id": run.name, "workflow": run.spec.workflow, "status": "running"}
        warnings = refused_of(self._served.catalog, run)
        answer = {**started, "warnings": warnings} if warnings else started
        return await done(self._store, answer, status=201)

    async def run(self, request: web.Request) -> web.StreamResponse:
        run = self._exact(self._find_run(request))
        store = self._store
        steps = store.list(STEPS, store.names_by(STEPS, "run", run.name))
        pendings = store.list(PENDING, store.names_by(PENDING, "run", run.name))
        leases = store.list(LEASES, store.names_by(LEASES, "run", run.name))
        return await self._aside.told(
            request,
            len(steps) + len(pendings) + len(leases),
            lambda pause: run_views.run_view(run, steps, pendings, leases, pause),
        )

    async def cancel_run(self, request: web.Request) -> web.Response:
        run = self._find_run(request)
        body = await body_of(request, {}, {"reason": str})
        reason = str(body.get("reason") or f"cancelled at {stamp(self._served.clock.now())}")
        before = run.state
        self._served.manager.runs.cancel(run.name, reason)
        answer = {
            "runId": run.name,
            "workflowName": run.spec.workflow,
            "previousStatus": before,
            "status": "cancelling" if run.live else before,
            "reason": reason if run.live else None,
        }
        return await done(self._store, answer)

    async def run_events(self, request: web.Request) -> web.StreamResponse:
        run = self._find_run(request)
        asked = Parameters(request, ("after", "follow"))
        after, follow = asked.number("after", 0, 0, EVENTS_MOST), asked.flag("follow")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        # A client may leave at any time; it reads on from any number when it comes back.
        lots = self._served.events.read(
            run.name,
            after,
            follow=follow,
            last=lambda: self._last_event(run.name),
            lives=lambda: self._lives(run.name),
        )
        with suppress(ConnectionResetError):
            async with aclosing(lots):
                async for lot in lots:
                    await response.write(b"".join(lot) if lot else b"\n")
            await response.write_eof()
        return response

    async def prune_runs(self, request: web.Request) -> web.Response:
        optional = {"keepRuns": object, "keepForS": object, "dryRun": bool}
        body = await body_of(request, {}, optional)
        runs, for_s, dry = body.get("keepRuns"), body.get("keepForS"), body.get("dryRun", False)
        if not (runs is None or (type(runs) is int and runs >= 0)):
            raise ApiError(400, "bad_request", "keepRuns must be a number from 0")
        if for_s is not None:
            for_s = seconds_of(body, "keepForS", zero=True)
        if dry is None:
            raise ApiError(400, "bad_request", "dryRun must be true or false")
        if runs is None and for_s is None:
            raise ApiError(400, "bad_request", "say keepRuns, keepForS or both")
        retention = self._served.manager.retention
        due = await retention.due(Keep(runs, for_s))
        answer = {"pruned": due.going, "busy": due.busy, "dryRun": bool(dry)}
        if dry or not due.going:
            return await told(self._store, answer)
        refuse_if_degraded(self._store)
        # What the disk does not take yet goes on by itself, though nobody waits for that.
        gone = await retention.begin_to_remove(due.going)
        await unless_degraded(self._store, all_set(gone))
        return await done(self._store, answer)

    # -- helpers ---------------------------------------------------------------------------------

    def _find_run(self, request: web.Request) -> Run:
        wanted = request.match_info["id"]
        run = self._store.find(RUNS, wanted)
        if run is not None:
            return run
        near = [name for name in self._store.names(RUNS) if name.startswith(wanted)]
        if len(near) == 1:
            return self._store.get(RUNS, near[0])
        what = f"{len(near)} runs begin with '{wanted}': give more of the id" if near else None
        raise ApiError(404, "run_not_found", what or f"no run '{wanted}'; see `swamp run list`")

    def _last_event(self, name: str) -> dict[str, Any] | None:
        run = self._store.find(RUNS, name)
        return None if run is None else last_event(run)

    def _lives(self, name: str) -> bool:
        run = self._store.find(RUNS, name)
        return run is not None and run.live

    def _exact(self, run: Run) -> Run:
        """A live run with the counts of this instant; its record has them a second late."""
        totals = self._served.manager.runs.totals(run.name)
        if totals is None or run.status is None:
            return run
        return run.with_status(run.status.model_copy(update={"counts": Counts(**totals)}))


def _fits(run: Run, workflow: str | None, status: str | None) -> bool:
    """Whether the run is of the workflow, and in the status, that is asked for."""
    of_workflow = workflow in (None, run.spec.workflow, run.spec.workflow_id)
    return of_workflow and status in (None, run.state)


def _problem(found: InvalidFile) -> views.View:
    return {
        "path": found.path,
        "line": found.position.line if found.position else None,
        "column": found.position.column if found.position else None,
        "problem": found.problem,
    }
