"""A change that the disk refuses is answered 503, whichever part of the disk it was."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from datastore.errors import Degraded
from datastore.journal import Op
from datastore.kinds import KINDS, WORKERS, WorkerSpec
from datastore.record import Record
from datastore.store import Store
from swamp.serve.answers import done, errors_as_json, refuse_if_degraded, unless_degraded


class Full:
    """A journal that takes nothing."""

    trouble = "the journal cannot be written: database or disk is full"

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        """It waits for ever."""


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.ENOENT])
async def test_a_file_that_cannot_be_written_is_no_error_of_ours(number: int) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        raise OSError(number, os.strerror(number), "desired/tokens/w1.yaml")

    answer = await errors_as_json(make_mocked_request("POST", "/"), handler)
    assert isinstance(answer, web.Response)
    assert answer.status == 503
    assert answer.text is not None
    said = json.loads(answer.text)
    assert said["code"] == "degraded"
    assert f"desired/tokens/w1.yaml: {os.strerror(number)}" in said["error"]


async def test_a_change_that_waits_for_a_full_disk_is_answered() -> None:
    store = Store(KINDS.values(), Full())
    store.commit([Record(WORKERS, "w", "w", "2026-11-29T12:00:00.000Z", WorkerSpec())])
    with pytest.raises(Degraded, match="in force once the disk takes writes again"):
        await unless_degraded(store, store.barrier())


async def test_a_change_that_is_made_says_so_and_one_that_is_refused_too() -> None:
    """Who tries again after `degraded` makes nothing twice."""
    store = Store(KINDS.values(), Full())
    store.commit([Record(WORKERS, "w", "w", "2026-11-29T12:00:00.000Z", WorkerSpec())])

    async def made(request: web.Request) -> web.StreamResponse:
        return await done(store, {})

    async def refused(request: web.Request) -> web.StreamResponse:
        refuse_if_degraded(store)
        return web.Response()

    codes = []
    for handler in (made, refused):
        answer = await errors_as_json(make_mocked_request("POST", "/"), handler)
        assert isinstance(answer, web.Response)
        assert answer.text is not None
        codes.append((answer.status, json.loads(answer.text)["code"]))
    assert codes == [(503, "not_durable_yet"), (503, "degraded")]


async def test_what_a_change_refuses_is_told_as_it_is() -> None:
    async def refuses() -> None:
        raise ValueError("no such token")

    with pytest.raises(ValueError, match="no such token"):
        await unless_degraded(Store(KINDS.values(), Full()), refuses())
