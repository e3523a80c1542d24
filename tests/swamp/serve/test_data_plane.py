"""Uploads over HTTP against a store whose disk the test holds."""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from controllers.lease import LeaseController
from datastore.clock import SystemClock
from datastore.journal import Op
from datastore.kinds import (
    KINDS,
    LEASES,
    PENDING,
    STEPS,
    Call,
    LeaseSpec,
    LeaseStatus,
    Outcome,
    PendingSpec,
    PendingStatus,
    Placement,
    StepSpec,
    StepStatus,
)
from datastore.layout import Layout
from datastore.outputs import OutputFiles
from datastore.record import Record
from datastore.store import Store
from swamp.serve.credentials import Credentials
from swamp.serve.data_plane import DataPlane
from swamp.serve.dispatch_secrets import DispatchSecrets
from swamp.serve.step_data import OutputsOfSteps

AT = "2026-11-29T16:41:31.123Z"
MOST = 1 << 20
SECRET = 'pass"word-94121'
CALL = Call(
    model_type="command/shell",
    model="probe",
    method="execute",
    arguments={"run": "true", "outputs": ["x", "y"]},
)


class HeldJournal:
    """Commits become durable at once, or when the test lets go."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self.held = False
        self._waiting: list[Callable[[], None]] = []

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            self._waiting.append(on_durable)
        asyncio.get_running_loop().call_soon(self._sync)

    def let_go(self) -> None:
        self.held = False
        self._sync()

    def _sync(self) -> None:
        while self._waiting and not self.held:
            self._waiting.pop(0)()


class NoLink:
    """No worker is connected."""

    def session(self, worker: str) -> None:
        return None


@dataclass
class Plane:
    """A data plane that serves, and what is behind it."""

    root: Path
    journal: HeldJournal
    store: Store
    leases: LeaseController
    outputs: OutputsOfSteps
    credentials: Credentials
    secrets: DispatchSecrets
    url: str = ""
    http: aiohttp.ClientSession = field(init=False)

    async def put(
        self, name: str = "x", data: Any = b"data", dispatch: str = "r.job.step.1", **headers: str
    ) -> tuple[int, Any]:
        """Status and answer of an upload."""
        given = {"Authorization": f"Bearer {self.credentials.of(dispatch)}", **headers}
        async with self.http.put(f"{self.url}/{name}", data=data, headers=given) as answer:
            return answer.status, await answer.json()

    async def get(self, name: str = "x", dispatch: str = "r.job.step.1") -> tuple[int, bytes]:
        """Status and body of what a dispatch reads back."""
        given = {"Authorization": f"Bearer {self.credentials.of(dispatch)}"}
        async with self.http.get(f"{self.url}/{name}", headers=given) as answer:
            return answer.status, await answer.read()

    def lease(self, name: str = "r.job.step.1") -> LeaseStatus:
        status = self.store.get(LEASES, name).status
        assert status is not None
        return status

    def stored(self) -> list[Path]:
        """Every file in `.swamp/data`."""
        found = (self.root / ".swamp/data").rglob("*")
        return [path for path in found if path.is_file()]


def leased(store: Store, name: str = "r.job.step.1", call: Call = CALL) -> None:
    run, job, step, episode = name.split(".")
    spec = PendingSpec(
        run=run, workflow="w", job=job, step=step, episode=int(episode), call=call,
        placement=Placement(),
    )  # fmt: skip
    status = PendingStatus(state="dispatched", queued_at=AT, worker="w1")
    lease = LeaseSpec(
        run=run, workflow="w", job=job, step=step, worker="w1", instance="i", model=call.model,
        method=call.method,
    )  # fmt: skip
    bound = LeaseStatus(state="bound", bound_at=AT)
    store.commit([Record(PENDING, name, f"p-{name}", AT, spec, status)])
    store.commit([Record(LEASES, name, f"l-{name}", AT, lease, bound)])


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    journal = HeldJournal()
    store = Store(KINDS.values(), journal)
    clock = SystemClock()
    leases = LeaseController(store, NoLink(), clock, grace_s=60.0)  # type: ignore[arg-type]
    outputs = OutputsOfSteps(OutputFiles(Layout(tmp_path)), lambda call: None)
    outputs.load(store)
    credentials = Credentials(b"k" * 32)
    secrets = DispatchSecrets(credentials, lambda vault, key: SECRET)
    served = DataPlane(store, outputs, credentials, clock, MOST)
    served.bind(leases, secrets.scan)
    made = Plane(tmp_path, journal, store, leases, outputs, credentials, secrets)
    leased(store)
    async with aiohttp.ClientSession() as made.http, served.on_loopback() as made.url:
        yield made


async def test_an_output_is_stored_and_answered(plane: Plane) -> None:
    data = os.urandom(700_000)
    status, answer = await plane.put(data=data, **{"Content-Type": "image/png"})
    digest = hashlib.sha256(data).hexdigest()
    assert (status, answer) == (
        201,
        {"name": "x", "version": 1, "size": 700_000, "sha256": digest},
    )
    stored = plane.outputs.files.read("probe", "x")
    assert (stored.content_type, stored.origin.dispatch) == ("image/png", "r.job.step.1")
    assert plane.outputs.files.raw(stored).read_bytes() == data
    written = plane.outputs.written_by("r.job.step.1")
    assert [(one.name, one.version, one.size) for one in written] == [("x", 1, 700_000)]


async def test_no_byte_is_stored_before_the_mark_is_durable(plane: Plane) -> None:
    """Promise 2, also for the second of two uploads, which finds the mark in memory."""
    plane.journal.held = True
    async with asyncio.TaskGroup() as group:
        first = group.create_task(plane.put("x"))
        second = group.create_task(plane.put("y"))
        while plane.lease().wrote_at is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        done, _ = await asyncio.wait((first, second), timeout=0.3)
        assert not done
        assert plane.stored() == []
        plane.journal.let_go()
    assert (first.result()[0], second.result()[0]) == (201, 201)


async def test_a_refused_upload_is_no_write(plane: Plane) -> None:
    status, answer = await plane.put("z")
    assert (status, answer["code"]) == (400, "undeclared_output")
    assert answer["error"] == "step 'step' declares no output 'z'; it declares: x, y"
    status, answer = await plane.put(data=b"x" * (MOST + 1))
    assert (status, answer["code"]) == (413, "too_large")
    assert answer["error"] == "output 'x' is too large: at most 1,048,576 bytes"
    plane.journal.trouble = "the disk is full"
    status, answer = await plane.put()
    assert (status, answer["code"]) == (503, "degraded")
    assert plane.lease().wrote_at is None
    assert plane.stored() == []


async def test_a_media_type_that_is_no_text_is_refused_before_anything_is_written(
    plane: Plane,
) -> None:
    """Regression: it was answered 500, with a traceback in the log."""
    address = URL(plane.url)
    assert address.host is not None
    reader, writer = await asyncio.open_connection(address.host, address.port)
    for given, shown in ((b"caf\xff", r"'caf\\udcff'"), (b"caf\xc3\xa9", r"'caf\\xe9'")):
        writer.write(
            b"PUT %s/x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Type: %s\r\n"
            b"Authorization: Bearer %s\r\n\r\nx"
            % (address.path.encode(), given, plane.credentials.of("r.job.step.1").encode())
        )
        async with asyncio.timeout(5):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"Content-Length: (\d+)", head)
            assert length is not None
            body = (await reader.readexactly(int(length[1]))).decode()
        assert head.startswith("HTTP/1.1 400 ")
        assert shown in body
    writer.close()
    assert plane.lease().wrote_at is None
    assert plane.stored() == []


async def test_a_body_of_unknown_length_is_cut_off_at_the_limit(plane: Plane) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(MOST // 65_536 + 2):
            yield b"x" * 65_536

    status, answer = await plane.put(data=endless())
    assert (status, answer["code"]) == (413, "too_large")
    assert plane.stored() == []


async def test_a_step_without_declared_outputs_is_told_how(plane: Plane) -> None:
    leased(plane.store, "r.job.bare.1", CALL.model_copy(update={"arguments": {"run": "true"}}))
    status, answer = await plane.put(dispatch="r.job.bare.1")
    assert status == 400
    assert answer["error"].endswith("it declares none: add `outputs: [NAME]` to it")


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer x", "Basic {token}", "Bearer {token}0"])
async def test_without_the_credential_nothing_is_taken(plane: Plane, given: str) -> None:
    token = plane.credentials.of("r.job.step.1")
    status, answer = await plane.put(Authorization=given.format(token=token))
    assert (status, answer["code"]) == (401, "unauthorized")
    assert plane.lease().wrote_at is None


async def test_a_credential_of_another_key_is_none(plane: Plane) -> None:
    theirs = Credentials(b"o" * 32).of("r.job.step.1")
    assert (await plane.put(Authorization=f"Bearer {theirs}"))[0] == 401


async def test_a_credential_is_useless_after_its_lease(plane: Plane) -> None:
    assert (await plane.put())[0] == 201
    plane.leases.settle("w1", "r.job.step.1", Outcome(ok=True, reason="completed"))
    status, answer = await plane.put()
    assert (status, answer["code"]) == (409, "dispatch_over")
    assert (await plane.put(dispatch="r.job.nosuch.1"))[0] == 409
    assert plane.outputs.files.versions("probe", "x") == [1]


async def test_an_upload_under_way_ends_with_its_lease(plane: Plane) -> None:
    under_way, go_on = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"a" * 100_000
        under_way.set()
        await go_on.wait()
        yield b"b"

    async with asyncio.TaskGroup() as group:
        putting = group.create_task(plane.put(data=body()))
        await under_way.wait()
        while not plane.stored():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        plane.leases.settle("w1", "r.job.step.1", Outcome(ok=False, reason="failed"))
        go_on.set()
    assert putting.result()[1]["code"] == "dispatch_over"
    assert plane.stored() == []
    assert plane.outputs.written_by("r.job.step.1") == []


async def test_a_dispatch_reads_back_what_it_put_last_and_nothing_of_others(plane: Plane) -> None:
    leased(plane.store, "r.job.other.1")
    await plane.put(data=b"one")
    await plane.put(data=b"two")
    await plane.put(data=b"other", dispatch="r.job.other.1")
    assert await plane.get() == (200, b"two")
    assert await plane.get(dispatch="r.job.other.1") == (200, b"other")
    assert (await plane.get("y"))[0] == 404
    assert (await plane.get(dispatch="r.job.nobody.1"))[0] == 409
    outcome = Outcome(ok=True, reason="completed")
    assert plane.leases.settle("w1", "r.job.step.1", outcome)
    assert (await plane.get())[0] == 409


async def test_an_upload_under_way_ends_with_a_probe_whose_records_are_gone(plane: Plane) -> None:
    leased(plane.store, "probe.x.y.1")
    go_on = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"a" * 100_000
        await go_on.wait()
        yield b"b"

    async with asyncio.TaskGroup() as group:
        putting = group.create_task(plane.put(data=body(), dispatch="probe.x.y.1"))
        while not plane.stored():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        plane.store.commit(removals=[(PENDING, "probe.x.y.1")])
        plane.store.commit(removals=[(LEASES, "probe.x.y.1")])
        go_on.set()
    assert putting.result()[1]["code"] == "dispatch_over"
    assert plane.stored() == []


async def test_an_upload_that_breaks_leaves_nothing(plane: Plane) -> None:
    host, port = plane.url.removeprefix("http://").partition("/")[0].split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    token = plane.credentials.of("r.job.step.1")
    head = f"PUT /api/v1/data/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n"
    writer.write(f"{head}Content-Length: 900000\r\n\r\n".encode() + b"x" * 300_000)
    await writer.drain()
    while not plane.stored():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    writer.transport.abort()
    while plane.stored():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert (await plane.put())[1]["version"] == 1


@pytest.mark.parametrize("data", [b"no gzip", b"no gzip" * 100_000])
async def test_an_upload_that_is_not_encoded_as_it_says_leaves_nothing(
    plane: Plane, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """Regression: it was answered 500, and logged as an error of ours."""
    host, port = plane.url.removeprefix("http://").partition("/")[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    token = plane.credentials.of("r.job.step.1")
    head = f"PUT /api/v1/data/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n"
    head += f"Content-Encoding: gzip\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + data)
    async with asyncio.timeout(10):
        told = await reader.read()
    writer.transport.abort()
    assert told.startswith(b"HTTP/1.1 400 ")
    said = (
        "the upload of 'x' cannot be read: nothing is kept (Can not decode content-encoding: gzip)"
    )
    assert json.loads(told.partition(b"\r\n\r\n")[2]) == {"error": said, "code": "broken_upload"}
    assert plane.stored() == []
    assert not [one for one in caplog.records if one.levelno > logging.DEBUG]


async def test_a_step_of_the_orchestrator_itself_writes_while_it_runs(plane: Plane) -> None:
    spec = StepSpec(run="r", workflow="w", job="job", step="own", call=CALL)
    running = StepStatus(state="running", started_at=AT)
    plane.store.commit([Record(STEPS, "r.job.own", "u", AT, spec, running)])
    assert (await plane.put(dispatch="r.job.own"))[0] == 201
    record = plane.store.get(STEPS, "r.job.own")
    plane.store.commit([record.with_status(StepStatus(state="succeeded", started_at=AT))])
    assert (await plane.put(dispatch="r.job.own"))[1]["code"] == "dispatch_over"


async def test_what_a_live_dispatch_wrote_is_known_after_a_restart(plane: Plane) -> None:
    from datastore.kinds import RUNS, RunSpec, RunStatus

    await plane.put()
    run = RunSpec(workflow="w", workflow_id="i", definition={})
    status = RunStatus(state="running", started_at=AT)
    plane.store.commit([Record(RUNS, "r", "u", AT, run, status)])
    again = OutputsOfSteps(OutputFiles(Layout(plane.root)), lambda call: None)
    again.load(plane.store)
    assert again.written_by("r.job.step.1") == plane.outputs.written_by("r.job.step.1") != []


def test_the_credential_tells_nothing_but_the_dispatch() -> None:
    one, other = Credentials(b"k" * 32), Credentials(b"o" * 32)
    token = one.of("r.a.b.1")
    assert one.dispatch_of(token) == "r.a.b.1"
    assert other.dispatch_of(token) is None
    assert one.dispatch_of(one.of("r.a.b.2").replace("b.2", "b.1")) is None
    assert all(one.dispatch_of(bad) is None for bad in ("", ".", "é.ü", "r.a.b.1", json.dumps({})))


ASKING = CALL.model_copy(
    update={"arguments": {**CALL.arguments, "env": {"PW": "${{ vault.get('main', 'PW') }}"}}}
)
REFUSED = {
    "error": "output 'x' holds the secret 'PW' of vault 'main'; outputs are not for secrets",
    "code": "secret_in_output",
}


def shown(form: str) -> bytes:
    """The secret in one of the forms in which it leaks."""
    if form == "base64":
        return base64.b64encode(SECRET.encode())
    return json.dumps({"password": SECRET}).encode() if form == "json" else SECRET.encode()


@pytest.mark.parametrize("form", ["plain", "json", "base64"])
async def test_an_output_with_a_secret_of_its_dispatch_is_refused(plane: Plane, form: str) -> None:
    plane.secrets.open("r.job.step.1", ASKING)
    assert await plane.put(data=b"a" * 300_000 + shown(form) + b"b" * 300_000) == (422, REFUSED)
    assert plane.stored() == []
    assert plane.outputs.written_by("r.job.step.1") == []
    status, _ = await plane.put(data=SECRET[::-1].encode())
    assert status == 201


async def test_a_secret_split_over_two_pieces_is_known(plane: Plane) -> None:
    """As it is after a restart of the server, which reads the secrets again."""
    plane.secrets.reopen({"r.job.step.1": ASKING})

    async def pieces() -> AsyncIterator[bytes]:
        for byte in f"password: {SECRET}".encode():
            yield bytes([byte])
            await asyncio.sleep(0.001)

    assert await plane.put(data=pieces()) == (422, REFUSED)
    assert plane.stored() == []


async def test_neither_type_nor_credential_are_a_way_out_for_secrets(plane: Plane) -> None:
    plane.secrets.open("r.job.step.1", ASKING)
    assert await plane.put(**{"Content-Type": f"text/{SECRET}"}) == (422, REFUSED)
    status, answer = await plane.put(data=plane.credentials.of("r.job.step.1").encode())
    assert status == 422
    assert answer["error"].startswith("output 'x' holds the credential of its dispatch;")
    leased(plane.store, "r.job.other.1", CALL.model_copy(update={"model": "other"}))
    status, _ = await plane.put(data=SECRET.encode(), dispatch="r.job.other.1")
    assert status == 201


@pytest.mark.parametrize("part", ["begin", "keep"])
async def test_what_cannot_be_opened_just_now_may_be_sent_again(
    plane: Plane, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it was answered 507, which is final for whoever puts it."""

    def refuse(*_: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "upload-1")

    with monkeypatch.context() as full:
        full.setattr(plane.outputs.files, part, refuse)
        status, answer = await plane.put()
    error = "output 'x' cannot be stored just now: Too many open files"
    assert (status, answer) == (503, {"error": error, "code": "not_now"})
    assert plane.stored() == []
    assert (await plane.put())[0] == 201
