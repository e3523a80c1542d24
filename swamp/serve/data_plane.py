"""Where steps put their outputs: `PUT /api/v1/data/<name>` with the credential of their dispatch.

While it lives, a dispatch may read back what it has put, and nothing else, by a `GET` there.

Makes true: the lease says that it wrote, durably, before the first byte is stored (promise 2); an
output is whole and durable before it is acknowledged; a broken upload leaves nothing, nor does one
with a secret in it that its dispatch knows. A body is never in memory as a whole, and every touch
of the disk is in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from controllers.lease import LeaseController
from datastore.clock import Clock, stamp
from datastore.kinds import LEASES, PENDING, STEPS, Call, is_given_up
from datastore.outputs import DEFAULT_TYPE, Origin, StoredOutput, Upload
from datastore.record import Kind
from datastore.regular_file import NO_FILE_MORE
from datastore.store import Store
from swamp.dialling import fits_header
from swamp.execute.redaction import SecretScan
from swamp.protocol import DATA_PATH
from swamp.serve import peers_fault
from swamp.serve.answers import (
    ApiError,
    durable,
    errors_as_json,
    refuse_if_degraded,
    unreadable,
    with_expectations,
)
from swamp.serve.credentials import Credentials
from swamp.serve.step_data import OutputsOfSteps

OUTPUT_MAX_BYTES = 1 << 30
PIECE_BYTES = 256 << 10
STALLED_S = 60.0
"""How long an upload may stand still."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A dispatch that may write now. `worker` None: the orchestrator runs the step itself."""

    origin: Origin
    declared: tuple[str, ...]
    worker: str | None


class DataPlane:
    """Serves uploads, on the public address and on a local one for the orchestrator's own steps."""

    def __init__(
        self,
        store: Store,
        outputs: OutputsOfSteps,
        credentials: Credentials,
        clock: Clock,
        most_bytes: int = OUTPUT_MAX_BYTES,
    ) -> None:
        self._store = store
        self._outputs = outputs
        self._credentials = credentials
        self._clock = clock
        self._most_bytes = most_bytes
        self._leases: LeaseController
        self._scan: Callable[[str], SecretScan]

    def bind(self, leases: LeaseController, scan: Callable[[str], SecretScan]) -> None:
        """Tie it to the controller that marks leases, and to what knows a dispatch's secrets."""
        self._leases = leases
        self._scan = scan

    def routes(self) -> list[web.RouteDef]:
        """The routes; they ask for a dispatch's credential and for no other."""
        path = f"{DATA_PATH}/{{name}}"
        return [web.put(path, self.put), web.get(path, self.get, allow_head=False)]

    @contextlib.asynccontextmanager
    async def on_loopback(self) -> AsyncIterator[str]:
        """Serve on a free port of this machine meanwhile; the URL for `SWAMP_DATA_URL`."""
        app = web.Application(middlewares=[errors_as_json])
        app.add_routes(with_expectations(self.routes()))
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=peers_fault.log,
            handle_signals=False,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}{DATA_PATH}"
        finally:
            await runner.cleanup()

    async def put(self, request: web.Request) -> web.Response:
        """Store the body as the next version of an output."""
        dispatch = self._authenticated(request)
        writer = self._writer(dispatch)
        name = request.match_info["name"]
        _refuse_undeclared(name, writer)
        media_type = _media_type(request)
        if request.content_length is not None and request.content_length > self._most_bytes:
            raise self._too_large(name)
        refuse_if_degraded(self._store)
        if writer.worker is not None and not self._leases.first_write(writer.worker, dispatch):
            raise _over(dispatch)
        # Whoever set the mark: it may not be on disk yet.
        await durable(self._store)
        stored = await self._receive(request, writer, name, media_type)
        answer = {
            "name": stored.name,
            "version": stored.version,
            "size": stored.size,
            "sha256": stored.sha256,
        }
        return web.json_response(answer, status=201)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """The output as this dispatch has put it last."""
        dispatch, name = self._authenticated(request), request.match_info["name"]
        model = self._writer(dispatch).origin.model
        version = self._outputs.latest_of(dispatch, name)
        if version is None:
            raise ApiError(404, "not_found", f"this dispatch has put no output '{name[:80]}'")
        files = self._outputs.files
        stored = await asyncio.to_thread(files.read, model, name, version)
        headers = {"Content-Type": "application/octet-stream"}
        return web.FileResponse(files.raw(stored), headers=headers)

    # -- who asks --------------------------------------------------------------------------------

    def _authenticated(self, request: web.Request) -> str:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        dispatch = self._credentials.dispatch_of(given.strip())
        if scheme.lower() != "bearer" or dispatch is None:
            raise ApiError(
                401,
                "unauthorized",
                "outputs are put by steps: send 'Authorization: Bearer $SWAMP_DATA_TOKEN'",
            )
        return dispatch

    def _writer(self, dispatch: str) -> Writer:
        """ApiError when the dispatch has ended."""
        lease = self._store.find(LEASES, dispatch)
        pending = self._store.find(PENDING, dispatch)
        lives = lease is not None and lease.live and not is_given_up(lease)
        if lease is not None and lives and pending is not None:
            spec, call = pending.spec, pending.spec.call
            origin = Origin(call.model, spec.run, spec.job, spec.step, dispatch)
            return Writer(origin, _declared(call), lease.spec.worker)
        step = self._store.find(STEPS, dispatch) if lease is None else None
        if step is None or step.state != "running" or step.spec.call is None:
            raise _over(dispatch)
        own = step.spec
        origin = Origin(step.spec.call.model, own.run, own.job, own.step, dispatch)
        return Writer(origin, _declared(step.spec.call), None)

    def _lives(self, dispatch: str) -> bool:
        """Whether a dispatch that was a writer still is one; nothing parsed."""
        kinds: tuple[Kind[Any, Any], ...] = (LEASES, STEPS)
        if any(self._store.is_finished(kind, dispatch) for kind in kinds):
            return False
        if self._store.is_finished(STEPS, dispatch.rpartition(".")[0]):
            return False
        # The records of a probe go with its end.
        return any(self._store.find(kind, dispatch) is not None for kind in kinds)

    # -- the body --------------------------------------------------------------------------------

    async def _receive(
        self, request: web.Request, writer: Writer, name: str, media_type: str
    ) -> StoredOutput:
        files, origin = self._outputs.files, writer.origin
        try:
            upload = await asyncio.to_thread(files.begin)
            try:
                _refuse_secret(self._scan(origin.dispatch).feed(media_type.encode()), name)
                await self._take(request, upload, writer, name)
                at = stamp(self._clock.now())
                stored = await asyncio.to_thread(files.keep, upload, origin, name, media_type, at)
            except BaseException:
                await asyncio.shield(asyncio.to_thread(upload.discard))
                raise
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in NO_FILE_MORE:
                raise ApiError(
                    503, "not_now", f"output '{name}' cannot be stored just now: {reason}"
                ) from None
            raise ApiError(
                507, "not_stored", f"output '{name}' cannot be stored: {reason}"
            ) from None
        if not self._lives(origin.dispatch):
            # Nobody was told of it, and the step's record is final without it.
            await asyncio.to_thread(files.remove, stored)
            raise _over(origin.dispatch)
        self._outputs.note(stored)
        return stored

    async def _take(self, request: web.Request, upload: Upload, writer: Writer, name: str) -> None:
        scan = self._scan(writer.origin.dispatch)
        while data := await self._piece(request, name):
            if not self._lives(writer.origin.dispatch):
                raise _over(writer.origin.dispatch)
            if upload.size + len(data) > self._most_bytes:
                raise self._too_large(name)
            _refuse_secret(await asyncio.to_thread(scan.feed, data), name)
            await asyncio.to_thread(upload.write, data)

    @staticmethod
    async def _piece(request: web.Request, name: str) -> bytes:
        try:
            async with asyncio.timeout(STALLED_S):
                return await request.content.read(PIECE_BYTES)
        except TimeoutError:
            message = f"the upload of '{name}' stood still for {STALLED_S:g}s: nothing is kept"
            raise ApiError(408, "stalled", message) from None
        except web.RequestPayloadError as error:
            message = (
                f"the upload of '{name}' cannot be read: nothing is kept ({unreadable(error)})"
            )
            raise ApiError(400, "broken_upload", message) from None
        except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, ConnectionError) as error:
            message = f"the upload of '{name}' broke: nothing is kept ({error})"
            raise ApiError(400, "broken_upload", message) from None

    def _too_large(self, name: str) -> ApiError:
        most = f"{self._most_bytes:,} bytes"
        return ApiError(413, "too_large", f"output '{name}' is too large: at most {most}")


def _declared(call: Call) -> tuple[str, ...]:
    return tuple(call.arguments.get("outputs") or ())


def _refuse_undeclared(name: str, writer: Writer) -> None:
    if name in writer.declared:
        return
    listed = ", ".join(writer.declared)
    declares = f"declares: {listed}" if listed else "declares none: add `outputs: [NAME]` to it"
    message = f"step '{writer.origin.step}' declares no output '{name[:80]}'; it {declares}"
    raise ApiError(400, "undeclared_output", message)


def _media_type(request: web.Request) -> str:
    """What the body is, by its own word. A header may hold bytes that are no text."""
    given = request.headers.get("Content-Type", DEFAULT_TYPE)[:200]
    if not fits_header(given):
        message = f"Content-Type {given!a} can be no media type: give one of printable ASCII"
        raise ApiError(400, "bad_request", message)
    return given


def _refuse_secret(found: str | None, name: str) -> None:
    if found is not None:
        message = f"output '{name}' holds {found}; outputs are not for secrets"
        raise ApiError(422, "secret_in_output", message)


def _over(dispatch: str) -> ApiError:
    return ApiError(409, "dispatch_over", f"dispatch {dispatch} is over: it takes no more outputs")
