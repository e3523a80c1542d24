"""The HTTP API, the same on TCP and on the repository's own socket.

Every answer waits for the store's barrier, also when it only tells what was read. Administration of
tokens is served on the repository's socket alone: whoever may open that may edit the files anyway.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from controllers.manager import Manager
from datastore.clock import Clock, stamp
from datastore.definitions.catalog import Catalog
from datastore.definitions.inputs import InputError
from datastore.definitions.workflow import resolve_inputs
from datastore.errors import AlreadyExists, Degraded, InvalidFile, NotFound, SwampError
from datastore.events import EventLog
from datastore.kinds import LEASES, PENDING, RUNS, STEPS, TOKENS, WORKERS, Counts, Run, RunSpec
from datastore.layout import Layout
from datastore.store import Store
from swamp import __version__, tokens, views
from swamp.protocol import PROTOCOL_VERSION

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BARRIER_WITHIN_S = 10.0
BODY_MAX_BYTES = 4 << 20
RUNS_MOST = 1_000

ADMIN = web.AppKey("admin", bool)
"""Whether the application is served on the repository's own socket."""

_STATUS: tuple[tuple[type[SwampError], int, str], ...] = (
    (NotFound, 404, "not_found"),
    (AlreadyExists, 409, "exists"),
    (InputError, 422, "input_invalid"),
    (InvalidFile, 422, "invalid_file"),
    (Degraded, 503, "degraded"),
    (SwampError, 400, "bad_request"),
)


class ApiError(SwampError):
    """An error with its HTTP status and code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True)
class Served:
    """What the API tells about and acts on."""

    layout: Layout
    store: Store
    clock: Clock
    manager: Manager
    events: EventLog
    catalog: Catalog
    new_run: Callable[[], str]
    problems: Callable[[], list[InvalidFile]]


class Api:
    """Handlers of all routes but the workers' socket."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._store = served.store

    def routes(self) -> list[web.RouteDef]:
        """Every route, for both applications."""
        return [
            web.get("/health", self.health),
            web.get("/api/v1/problems", self.problems),
            web.get("/api/v1/workers", self.workers),
            web.get("/api/v1/queue", self.queue),
            web.get("/api/v1/tokens", _admin(self.tokens)),
            web.post("/api/v1/tokens", _admin(self.create_token)),
            web.post("/api/v1/tokens/{name}/revoke", _admin(self.revoke_token)),
            web.get("/api/v1/runs", self.runs),
            web.post("/api/v1/runs", self.start_run),
            web.get("/api/v1/runs/{id}", self.run),
            web.post("/api/v1/runs/{id}/cancel", self.cancel_run),
            web.get("/api/v1/runs/{id}/events", self.run_events),
        ]

    # -- how things are --------------------------------------------------------------------------

    async def health(self, request: web.Request) -> web.Response:
        trouble = self._store.trouble
        body = {
            "status": "ok" if trouble is None else "degraded",
            "version": __version__,
            "protocol": PROTOCOL_VERSION,
            "degraded": trouble,
            "problems": len(self._served.problems()),
        }
        return web.json_response(body)

    async def problems(self, request: web.Request) -> web.Response:
        found = [
            {
                "path": problem.path,
                "line": problem.position.line if problem.position else None,
                "column": problem.position.column if problem.position else None,
                "problem": problem.problem,
            }
            for problem in self._served.problems()
        ]
        return await self._answer(found)

    async def workers(self, request: web.Request) -> web.Response:
        show_all = request.query.get("all") in ("1", "true")
        workers = self._store.list(WORKERS)
        return await self._answer(views.worker_list(workers, self._store.live(LEASES), show_all))

    async def queue(self, request: web.Request) -> web.Response:
        pendings = self._store.live(PENDING)
        listed = views.queue_list(pendings, self._served.clock.now())
        reasons = self._served.manager.scheduler.reasons
        by_name = {pending.name: pending for pending in pendings}
        for entry in listed:
            placement = by_name[entry["queueId"]].spec.placement
            reason = reasons.of(placement)
            entry["reason"], entry["reasonCode"] = reason.text, reason.code
        return await self._answer(listed)

    # -- tokens ----------------------------------------------------------------------------------

    async def tokens(self, request: web.Request) -> web.Response:
        store, now = self._store, self._served.clock.now()
        return await self._answer(views.token_list(store.list(TOKENS), store.list(WORKERS), now))

    async def create_token(self, request: web.Request) -> web.Response:
        self._refuse_if_degraded()
        body = await _body(request, {"name": str, "durationS": (int, float)})
        most = body.get("maxEnrollments", 1)
        if most != "unlimited" and (not isinstance(most, int) or isinstance(most, bool)):
            raise ApiError(400, "bad_request", "maxEnrollments must be a number or 'unlimited'")
        wanted = tokens.TokenRequest(body["name"], body["durationS"], most)
        served = self._served
        made = await tokens.create(self._store, served.layout, wanted, served.clock.now())
        return await self._answer(made, status=201)

    async def revoke_token(self, request: web.Request) -> web.Response:
        served = self._served
        name = request.match_info["name"]
        told = await tokens.revoke(self._store, served.layout, name, served.clock.now())
        return await self._answer(told)

    # -- runs ------------------------------------------------------------------------------------

    async def runs(self, request: web.Request) -> web.Response:
        limit = request.query.get("limit", "50")
        if not limit.isdecimal() or not 0 < int(limit) <= RUNS_MOST:
            raise ApiError(400, "bad_request", f"limit must be a number from 1 to {RUNS_MOST}")
        found: list[Run] = []
        workflow, status = request.query.get("workflow"), request.query.get("status")
        for name in sorted(self._store.names(RUNS), reverse=True):
            run = self._exact(self._store.get(RUNS, name))
            if workflow not in (None, run.spec.workflow, run.spec.workflow_id):
                continue
            if status not in (None, run.state):
                continue
            found.append(run)
            if len(found) == int(limit):
                break
        return await self._answer(views.run_list(found))

    async def start_run(self, request: web.Request) -> web.Response:
        self._refuse_if_degraded()
        body = await _body(request, {"workflow": str})
        given = body.get("inputs", {})
        priority = body.get("priority")
        if not isinstance(given, dict):
            raise ApiError(400, "bad_request", "inputs must be an object")
        if priority is not None and priority not in (1, 2, 3, 4, 5):
            raise ApiError(400, "bad_request", "priority must be a number from 1 to 5")
        run = await self._create_run(body["workflow"], given, priority)
        told = {"id": run.name, "workflow": run.spec.workflow, "status": "running"}
        return await self._answer(told, status=201)

    async def _create_run(self, name: str, given: dict[str, Any], priority: int | None) -> Run:
        served = self._served
        try:
            workflow = await asyncio.to_thread(served.catalog.fresh, "workflow", name)
        except NotFound as error:
            raise ApiError(404, "workflow_not_found", str(error)) from None
        except InvalidFile as error:
            raise ApiError(422, "workflow_invalid", str(error)) from None
        inputs = resolve_inputs(workflow, given)
        try:
            models = await asyncio.to_thread(served.manager.runs.models_of, workflow)
        except NotFound as error:
            raise ApiError(404, "model_not_found", str(error)) from None
        spec = RunSpec(
            workflow=workflow.name,
            workflow_id=str(workflow.id),
            inputs=inputs,
            priority=priority,
            definition=workflow.source,
            models=models,
        )
        return served.manager.runs.create(workflow, spec, served.new_run())

    async def run(self, request: web.Request) -> web.Response:
        run = self._exact(self._find_run(request))
        store = self._store
        steps = store.by(STEPS, "run", run.name)
        pendings = store.by(PENDING, "run", run.name)
        leases = store.by(LEASES, "run", run.name)
        return await self._answer(views.run_view(run, steps, pendings, leases))

    async def cancel_run(self, request: web.Request) -> web.Response:
        run = self._find_run(request)
        body = await _body(request, {})
        reason = str(body.get("reason") or f"cancelled at {stamp(self._served.clock.now())}")
        before = run.state
        self._served.manager.runs.cancel(run.name, reason)
        told = {
            "runId": run.name,
            "workflowName": run.spec.workflow,
            "previousStatus": before,
            "status": "cancelling" if run.live else before,
            "reason": reason if run.live else None,
        }
        return await self._answer(told)

    async def run_events(self, request: web.Request) -> web.StreamResponse:
        run = self._find_run(request)
        after = request.query.get("after", "0")
        if not after.isdecimal():
            raise ApiError(400, "bad_request", "after must be a number")
        follow = request.query.get("follow") in ("1", "true")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        async for lot in self._served.events.read(run.name, int(after), follow=follow):
            await response.write(b"".join(lot) if lot else b"\n")
        await response.write_eof()
        return response

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

    def _exact(self, run: Run) -> Run:
        """A live run with the counts of this instant; its record has them a second late."""
        totals = self._served.manager.runs.totals(run.name)
        if totals is None or run.status is None:
            return run
        return run.with_status(run.status.model_copy(update={"counts": Counts(**totals)}))

    def _refuse_if_degraded(self) -> None:
        if self._store.trouble is not None:
            raise Degraded(f"nothing new is taken on: {self._store.trouble}")

    async def _answer(self, body: Any, *, status: int = 200) -> web.Response:
        try:
            async with asyncio.timeout(BARRIER_WITHIN_S):
                await self._store.barrier()
        except TimeoutError:
            raise Degraded(self._store.trouble or "the disk did not answer in time") from None
        return web.json_response(body, status=status)


def _admin(handler: Handler) -> Handler:
    async def guarded(request: web.Request) -> web.StreamResponse:
        if not request.app.get(ADMIN, False):
            raise ApiError(
                403, "forbidden", "tokens are administered in the repository: run it there"
            )
        return await handler(request)

    return guarded


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """One line and a code for whatever went wrong; a page of another site gets nothing."""
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("Host"):
        return _error(403, "forbidden", f"requests of pages from {origin} are not served")
    try:
        return await handler(request)
    except ApiError as error:
        return _error(error.status, error.code, str(error))
    except SwampError as error:
        status, code = next((s, c) for kind, s, c in _STATUS if isinstance(error, kind))
        return _error(status, code, str(error))
    except web.HTTPException as error:
        return _error(error.status, "http", f"{request.method} {request.path}: {error.reason}")


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": message, "code": code}, status=status)


async def _body(request: web.Request, fields: dict[str, Any]) -> dict[str, Any]:
    try:
        body = json.loads(await request.read() or b"{}")
    except ValueError:
        raise ApiError(400, "bad_request", "the body must be a JSON object") from None
    if not isinstance(body, dict):
        raise ApiError(400, "bad_request", "the body must be a JSON object")
    for field, kind in fields.items():
        if not isinstance(body.get(field), kind) or isinstance(body.get(field), bool):
            raise ApiError(400, "bad_request", f"the body needs '{field}'")
    return body
