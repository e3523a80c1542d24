"""A waiting step reaches the worker that enrolls for it within two disk syncs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from controllers.enrollment import Made, create_token
from controllers.manager import Manager, Settings
from controllers.run.context import RunContext
from datastore.clock import SystemClock
from datastore.errors import NotFound
from datastore.journal import Op
from datastore.kinds import KINDS, PENDING, Call, PendingSpec, Placement, TokenSpec
from datastore.record import Record
from datastore.store import Store
from swamp.protocol import PROTOCOL_VERSION, Dispatch, Enroll, Enrolled, ToWorker, to_worker
from swamp.serve.sessions import Rules, Sessions

AT = "2026-11-29T12:00:00.000Z"


class ManualDisk:
    """A journal whose syncs happen when the test says so: each takes all that waits."""

    trouble = None

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.syncs = 0

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            self.waiting.append(on_durable)

    def sync(self) -> None:
        self.syncs += 1
        batch, self.waiting = self.waiting, []
        for tell in batch:
            tell()


class Quiet:
    """Events, output and local steps: nobody looks at them here."""

    def emit(self, *_: Any, **__: Any) -> None: ...

    def output(self, *_: Any) -> None: ...

    def output_count(self, *_: Any) -> int:
        return 0

    def running(self, step: str) -> bool:
        return False

    def start(self, *_: Any) -> None: ...

    def stop(self, step: str) -> None: ...


class Wire:
    """What was sent to the worker."""

    def __init__(self) -> None:
        self.sent: list[ToWorker] = []

    def send(self, text: str) -> None:
        self.sent.append(to_worker(text))

    def abort(self, reason: str) -> None: ...


async def _nothing(*_: Any) -> None: ...


def _no_model(name: str) -> Any:
    raise NotFound(name)


async def _settled() -> None:
    """Let everything that is due run."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
def disk() -> ManualDisk:
    return ManualDisk()


async def test_two_syncs_from_the_enroll_frame_to_the_dispatch_frame(disk: ManualDisk) -> None:
    store, quiet, clock = Store(KINDS.values(), disk), Quiet(), SystemClock()
    sessions = Sessions(store, quiet, Rules(60.0, {}, _nothing))
    context = RunContext(
        clock=clock,
        events=quiet,
        executor=quiet,
        new_uid=lambda: "uid",
        offload=asyncio.to_thread,
        find_model=_no_model,
        check_call=lambda call: None,
    )
    manager = Manager(store, sessions, context, Settings(), random.Random(1))
    sessions.bind(manager.leases, manager.enrollment, manager.session_changed)
    spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z")
    create_token(store, "box", spec, "secret", Made("t", clock.now()))
    waiting = PendingSpec(
        run="r", workflow="w", job="j", step="s", episode=1,
        call=Call(model_type="command/shell", model="m", method="execute"),
        placement=Placement(labels={"pool": "a"}),
    )  # fmt: skip
    store.commit([Record(kind=PENDING, name="r.j.s.1", uid="u", created_at=AT, spec=waiting)])
    wire = Wire()
    async with asyncio.TaskGroup() as group:
        group.create_task(manager.run())
        await _settled()
        while disk.waiting:
            disk.sync()
            await _settled()
        assert store.get(PENDING, "r.j.s.1").state == "waiting"
        before = disk.syncs
        hello = Enroll(
            protocol=PROTOCOL_VERSION, version="1", token="box.secret", instance="i",
            machine="m", platform="linux", arch="x", labels={"pool": "a"}, capacity=1,
        )  # fmt: skip
        await sessions.enroll(hello, wire)
        await _settled()
        assert wire.sent == [], "nothing is told before it is durable"
        while not any(isinstance(frame, Dispatch) for frame in wire.sent):
            assert disk.waiting, "nothing left that could bring the dispatch"
            disk.sync()
            await _settled()
        manager.stop()
    assert isinstance(wire.sent[0], Enrolled)
    assert disk.syncs - before <= 2
