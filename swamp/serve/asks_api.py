"""What operators ask by desired files: looked at when a command says so, and listed.

A command has written the person's file; the answer comes once that file is in force and durable, so
that whoever reads the records next sees it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from datastore.errors import printable
from datastore.kinds import ACCESS, KINDS, PAUSES, TOKENS, WORKERS
from datastore.record import Kind, is_record_name
from swamp import views
from swamp.serve.answers import ApiError, admin, done, told
from swamp.serve.requests import no_parameters
from swamp.serve.served import Served

IN_FORCE_WITHIN_S = 5.0

_OF_SERVERS = (WORKERS, TOKENS, ACCESS, PAUSES)
"""What is asked of these, only a server takes over."""


class AsksApi:
    """Routes under `/api/v1/desired` and `/api/v1/pauses`."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._store = served.store

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/v1/pauses", no_parameters(self.pauses)),
            web.post("/api/v1/desired/{kind}/{name}/look", admin(self.look)),
        ]

    async def pauses(self, request: web.Request) -> web.Response:
        store = self._store
        asked = {}
        if self._served.only_run is not None:
            files = {name: store.desired(PAUSES, name) for name in store.desired_names(PAUSES)}
            asked = {name: file for name, file in files.items() if file is not None}
        return await told(store, views.pause_list(list(store.list(PAUSES)), asked))

    async def look(self, request: web.Request) -> web.Response:
        kind, name = KINDS.get(request.match_info["kind"]), request.match_info["name"]
        if kind is None:
            raise ApiError(404, "not_found", f"no kind '{request.match_info['kind']}'")
        if not is_record_name(name):
            raise ApiError(404, "not_found", f"nothing can be called '{printable(name[:80])}'")
        await self._served.look_at_desired(kind, name)
        if self._served.only_run is not None and kind in _OF_SERVERS:
            # The process of one run leaves these to the next server.
            return await done(self._store, {"kind": kind.folder, "name": name, "inForce": None})
        file = self._store.desired(kind, name)
        in_force = file is not None and await self._is_noted(kind, name, file.digest)
        answer = {"kind": kind.folder, "name": name, "inForce": in_force}
        return await done(self._store, answer)

    async def _is_noted(self, kind: Kind[Any, Any], name: str, digest: str) -> bool:
        """Wait until the record notes that file; False if there is no such record for long."""
        changed = asyncio.Event()
        unwatch = self._store.watch(kind, lambda _: changed.set())
        try:
            async with asyncio.timeout(IN_FORCE_WITHIN_S if self._known(kind, name) else 1.0):
                while self._noted(kind, name) != digest:
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return False
        finally:
            unwatch()
        return True

    def _known(self, kind: Kind[Any, Any], name: str) -> bool:
        return kind is PAUSES or self._store.find(kind, name) is not None

    def _noted(self, kind: Kind[Any, Any], name: str) -> str | None:
        record = self._store.find(kind, name)
        if record is None:
            return None
        for part in (record.status, record.spec):
            noted = getattr(part, "desired", None)
            if noted is not None:
                return str(noted)
        return None
