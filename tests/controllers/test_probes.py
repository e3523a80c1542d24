"""Probes: who is probed, what a verdict does, and that nothing of a probe stays."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from demand_rig import demand

from controllers.boot_sweep import BootSweep
from controllers.enrollment import Made, create_token
from controllers.manager import Manager, Settings
from controllers.probes import Verification, judge
from controllers.run.context import RunContext
from datastore.clock import SystemClock
from datastore.desired import DesiredFile
from datastore.errors import NotFound
from datastore.journal import Op
from datastore.kinds import (
    KINDS,
    LEASES,
    PAUSES,
    PENDING,
    WORKERS,
    Call,
    Outcome,
    PendingSpec,
    Placement,
    TokenSpec,
    WorkerStatus,
)
from datastore.kinds.probe import MARKER, PROBE_OUTPUT
from datastore.record import Record
from datastore.store import Store
from swamp.protocol import (
    PROTOCOL_VERSION,
    Accepted,
    Dispatch,
    Enroll,
    FromWorker,
    Output,
    Refused,
    ResultFrame,
    ToWorker,
    to_worker,
)
from swamp.serve.session import Session
from swamp.serve.sessions import Rules, Sessions

AT = "2026-11-29T12:00:00.000Z"


class Disk:
    """A journal whose disk is as fast as memory."""

    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Any = None) -> None:
        if on_durable is not None:
            on_durable()


class Outside:
    """Events, local steps, and what probes print."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.forgotten: list[str] = []

    def output(self, run: str, dispatch: str, number: int, event: Any, written: Any) -> None:
        self.texts[dispatch] = self.texts.get(dispatch, "") + event["text"]
        written()

    def output_count(self, run: str, dispatch: str) -> int:
        return 0

    def heard(self, dispatch: str) -> str:
        return self.texts.get(dispatch, "")

    def forget(self, dispatch: str) -> None:
        self.forgotten.append(dispatch)

    def emit(self, *_: Any, **__: Any) -> None: ...

    def running(self, step: str) -> bool:
        return False

    def start(self, *_: Any) -> None: ...

    def stop(self, step: str) -> None: ...


class Wire:
    """What was sent to a worker."""

    def __init__(self) -> None:
        self.sent: list[ToWorker] = []

    def send(self, text: str) -> None:
        self.sent.append(to_worker(text))

    def abort(self, reason: str) -> None: ...

    def dispatches(self) -> list[Dispatch]:
        return [frame for frame in self.sent if isinstance(frame, Dispatch)]


class Fleet:
    """One worker at a server whose controllers run."""

    def __init__(self, *, verify: bool) -> None:
        self.store = Store(KINDS.values(), Disk())
        self.outside = Outside()
        self.sessions = Sessions(self.store, self.outside, Rules(60.0, {}, self._fresh_token))
        self._uids = 0
        context = RunContext(
            clock=SystemClock(),
            events=self.outside,
            executor=self.outside,
            new_uid=self._new_uid,
            offload=asyncio.to_thread,
            find_model=self._no_model,
            check_call=lambda call: None,
        )
        settings = Settings(verification=Verification(verify, self.outside))
        self.manager = Manager(self.store, self.sessions, context, settings, random.Random(1))
        self.sessions.bind(
            self.manager.leases, self.manager.enrollment, self.manager.session_changed
        )
        spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z")
        create_token(self.store, "box", spec, "secret", Made("t", SystemClock().now()))
        self.wire = Wire()
        self.session: Session

    async def _fresh_token(self, name: str) -> None: ...

    def _new_uid(self) -> str:
        self._uids += 1
        return f"uid{self._uids}"

    def _no_model(self, name: str) -> Any:
        raise NotFound(name)

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    async def enroll(self, instance: str = "i", **more: Any) -> None:
        hello = Enroll(
            protocol=PROTOCOL_VERSION, version="1", token="box.secret", instance=instance,
            machine="m", platform="linux", arch="x", labels={"pool": "a"}, capacity=1, **more,
        )  # fmt: skip
        self.wire = Wire()
        self.session = await self.sessions.enroll(hello, self.wire)
        await self.settle()

    async def leave(self) -> None:
        self.sessions.closed(self.session)
        await self.settle()

    async def says(self, *frames: FromWorker) -> None:
        for frame in frames:
            self.sessions.handle(self.session, frame)
        await self.settle()

    async def ask(self, name: str = "r.j.s.1") -> None:
        """A step waits for a worker like this one."""
        run, job, step, _ = name.split(".")
        spec = PendingSpec(
            run=run, workflow="w", job=job, step=step, episode=1,
            call=Call(model_type="command/shell", model="m", method="execute"),
            placement=Placement(labels={"pool": "a"}),
        )  # fmt: skip
        self.store.commit([Record(kind=PENDING, name=name, uid="u", created_at=AT, spec=spec)])
        await self.settle()

    async def answer(self, frame: Dispatch, *, data_plane: bool = True) -> None:
        """Carry a probe out, as its runner does."""
        assert frame.call.arguments["outputs"] == [PROBE_OUTPUT]
        await self.says(Accepted(dispatch=frame.dispatch))
        report = {MARKER: frame.call.arguments[MARKER], "platform": "linux", "arch": "x"}
        if data_plane:
            self.manager.leases.first_write("box", frame.dispatch)
        line = json.dumps({**report, "dataPlaneOk": data_plane}) + "\n"
        outcome = Outcome(
            ok=data_plane, reason="completed" if data_plane else "failed", stdout=line
        )
        await self.says(
            Output(dispatch=frame.dispatch, seq=1, stream="stdout", text=line),
            ResultFrame(dispatch=frame.dispatch, outcome=outcome),
        )

    @property
    def status(self) -> WorkerStatus:
        status = self.store.get(WORKERS, "box").status
        assert status is not None
        return status

    @property
    def state(self) -> str:
        return self.status.state

    def probe(self, number: int = 1) -> Dispatch:
        """The probe that was sent as that one on this socket."""
        probes = [one for one in self.wire.dispatches() if one.dispatch.startswith("probe.")]
        assert len(probes) == number, f"{len(probes)} probes were sent"
        return probes[-1]

    def left(self) -> list[str]:
        """What is there of probes."""
        kinds = (PENDING, LEASES)
        return [name for kind in kinds for name in self.store.names_by(kind, "run", "probe")]


@asynccontextmanager
async def running(*, verify: bool = True) -> AsyncIterator[Fleet]:
    fleet = Fleet(verify=verify)
    async with asyncio.TaskGroup() as group:
        group.create_task(fleet.manager.run())
        try:
            yield fleet
        finally:
            fleet.manager.stop()


async def test_no_step_goes_to_a_worker_before_its_probe_has_passed_and_one_does_at_once() -> None:
    async with running() as fleet:
        await fleet.ask()
        await fleet.enroll()
        assert fleet.state == "unverified"
        assert fleet.store.get(PENDING, "r.j.s.1").state == "waiting"
        assert len(fleet.store.live(LEASES)) == 1, "the probe has its slot, and nothing else"
        await fleet.answer(fleet.probe())
        assert fleet.state == "connected"
        assert fleet.status.verified_at is not None
        assert [one.dispatch for one in fleet.wire.dispatches()][1:] == ["r.j.s.1"]
        assert fleet.left() == []
        assert len(fleet.outside.forgotten) == 1


async def test_a_failed_probe_keeps_the_worker_out_with_the_reason_until_another_passes() -> None:
    async with running() as fleet:
        await fleet.ask()
        await fleet.enroll()
        await fleet.answer(fleet.probe(), data_plane=False)
        assert fleet.state == "unverified"
        assert fleet.status.verify_failure == "the data plane: no write"
        placement = Placement(labels={"pool": "a"})
        reason = fleet.manager.scheduler.reasons.of(placement, fresh=True)
        assert reason.code == "unverified"
        assert reason.text == "0 of 1 workers fit: 1 unverified (the data plane: no write)"
        fleet.manager.enrollment.queue.add("workers/box")
        await fleet.settle()
        assert fleet.left() == [], "it is not tried again by itself"
        assert fleet.store.get(PENDING, "r.j.s.1").state == "waiting"

        verdict = fleet.manager.enrollment.probes.start(fleet.store.get(WORKERS, "box"))
        await fleet.settle()
        await fleet.answer(fleet.probe(2))
        assert (await verdict).status == "pass"
        assert fleet.state == "connected"
        assert fleet.status.verify_failure is None
        assert fleet.store.get(PENDING, "r.j.s.1").state == "dispatched"


async def test_an_enrollment_tries_again_what_had_failed() -> None:
    async with running() as fleet:
        await fleet.enroll()
        await fleet.answer(fleet.probe(), data_plane=False)
        await fleet.leave()
        await fleet.enroll()
        assert (fleet.state, fleet.status.verify_failure) == ("unverified", None)
        await fleet.answer(fleet.probe())
        assert fleet.state == "connected"


async def test_another_socket_of_a_process_that_passed_needs_no_probe_and_a_new_one_does() -> None:
    async with running() as fleet:
        await fleet.enroll()
        await fleet.answer(fleet.probe())
        await fleet.leave()
        assert fleet.state == "disconnected"
        await fleet.enroll()
        assert fleet.state == "connected"
        assert fleet.wire.dispatches() == []
        await fleet.leave()
        await fleet.enroll("another")
        assert fleet.state == "unverified"
        fleet.probe()


async def test_without_the_option_a_worker_gets_steps_at_once() -> None:
    async with running(verify=False) as fleet:
        await fleet.ask()
        await fleet.enroll()
        assert fleet.state == "connected"
        assert [one.dispatch for one in fleet.wire.dispatches()] == ["r.j.s.1"]


async def test_a_probe_takes_a_slot_and_waits_for_one_like_a_step() -> None:
    async with running(verify=False) as fleet:
        await fleet.enroll()
        verdict = fleet.manager.enrollment.probes.start(fleet.store.get(WORKERS, "box"))
        await fleet.settle()
        await fleet.ask()
        assert len(fleet.store.live(LEASES)) == 1
        assert "1 full" in str(fleet.store.get(PENDING, "r.j.s.1").status)
        await fleet.answer(fleet.probe())
        assert (await verdict).status == "pass"
        assert fleet.store.get(PENDING, "r.j.s.1").state == "dispatched", "the slot is free again"

        verdict = fleet.manager.enrollment.probes.start(fleet.store.get(WORKERS, "box"))
        await fleet.settle()
        assert len(fleet.store.live(LEASES)) == 1
        await fleet.says(
            Accepted(dispatch="r.j.s.1"),
            ResultFrame(dispatch="r.j.s.1", outcome=Outcome(ok=True, reason="completed")),
        )
        await fleet.answer(fleet.probe(2))
        assert (await verdict).status == "pass"


async def test_who_asks_for_a_probe_that_is_under_way_gets_its_verdict() -> None:
    async with running() as fleet:
        await fleet.enroll()
        verdict = fleet.manager.enrollment.probes.start(fleet.store.get(WORKERS, "box"))
        await fleet.settle()
        await fleet.answer(fleet.probe())
        assert (await verdict).status == "pass"


async def test_neither_a_cordon_nor_a_pause_holds_a_probe_back() -> None:
    async with running() as fleet:
        for kind, name, spec in (
            (WORKERS, "box", {"schedulable": False}),
            (PAUSES, "all", {"labels": {}, "paused": True}),
        ):
            fleet.store.set_desired(kind, name, DesiredFile(spec, "digest"))
        await fleet.settle()
        await fleet.ask()
        await fleet.enroll()
        await fleet.answer(fleet.probe())
        assert fleet.state == "connected"
        assert not fleet.store.get(WORKERS, "box").spec.schedulable
        assert fleet.store.get(PENDING, "r.j.s.1").state == "waiting"


async def test_a_worker_that_says_busy_is_asked_again() -> None:
    async with running() as fleet:
        await fleet.enroll()
        first = fleet.probe()
        await fleet.says(Refused(dispatch=first.dispatch, reason="worker_busy"))
        assert fleet.status.verify_failure is None
        await asyncio.sleep(1.05)
        await fleet.settle()
        second = fleet.probe(2)
        assert second.dispatch != first.dispatch
        await fleet.answer(second)
        assert fleet.state == "connected"
        assert fleet.left() == []


async def test_a_probe_lives_through_the_loss_of_a_socket() -> None:
    async with running() as fleet:
        await fleet.enroll()
        sent = fleet.probe()
        await fleet.says(Accepted(dispatch=sent.dispatch))
        await fleet.leave()
        await fleet.enroll(running=[sent.dispatch])
        assert fleet.state == "unverified"
        assert fleet.wire.dispatches() == [], "it is not probed twice"
        await fleet.answer(sent)
        assert fleet.state == "connected"


async def test_a_probe_that_was_lost_with_a_socket_shows_nothing_and_is_sent_again() -> None:
    async with running() as fleet:
        await fleet.enroll()
        lost = fleet.probe()
        await fleet.leave()
        await fleet.enroll()
        again = fleet.probe()
        assert again.dispatch != lost.dispatch
        await fleet.says(Accepted(dispatch=again.dispatch))
        fleet.manager.leases.first_write("box", again.dispatch)
        await fleet.leave()
        await fleet.enroll()
        assert fleet.status.verify_failure is None
        await fleet.answer(fleet.probe())
        assert fleet.state == "connected"
        assert fleet.left() == []


async def test_a_new_process_is_probed_anew_and_takes_no_verdict_of_the_old_one() -> None:
    async with running() as fleet:
        await fleet.enroll()
        verdict = fleet.manager.enrollment.probes.start(fleet.store.get(WORKERS, "box"))
        await fleet.says(Accepted(dispatch=fleet.probe().dispatch))
        await fleet.leave()
        await fleet.enroll("another")
        assert "its process was restarted" in (await verdict).reason
        assert (fleet.state, fleet.status.verify_failure) == ("unverified", None)
        await fleet.answer(fleet.probe())
        assert fleet.state == "connected"
        assert fleet.left() == []


async def test_a_probe_that_waits_ends_when_its_worker_leaves() -> None:
    async with running(verify=False) as fleet:
        await fleet.ask()
        await fleet.enroll()
        verdict = fleet.manager.enrollment.probes.start(fleet.store.get(WORKERS, "box"))
        await fleet.settle()
        await fleet.leave()
        assert "nothing came of it: cancelled" in (await verdict).reason
        assert fleet.left() == []


async def test_a_restart_of_the_server_leaves_nothing_of_a_probe() -> None:
    async with running() as fleet:
        await fleet.enroll()
        await fleet.says(Accepted(dispatch=fleet.probe().dispatch))
        assert len(fleet.left()) == 2
    report = BootSweep(fleet.store, SystemClock(), lambda: "new").run()
    assert fleet.left() == []
    assert report.counts["expired"] == 1
    assert report.warnings == []
    assert (fleet.state, fleet.status.verified_at) == ("disconnected", None)


GOOD = {MARKER: "m", "platform": "linux", "arch": "x", "dataPlaneOk": True}


@pytest.mark.parametrize(
    ("report", "heard", "wrote", "failures"),
    [
        (GOOD, GOOD, True, ()),
        ({**GOOD, MARKER: "x"}, {**GOOD, MARKER: "x"}, True, ("the runner did not echo",)),
        (GOOD, {}, True, ("its output did not come back",)),
        (GOOD, GOOD, False, ("the data plane: no write",)),
    ],
)
def test_every_part_has_to_be_right(
    report: dict[str, Any], heard: dict[str, Any], wrote: bool, failures: tuple[str, ...]
) -> None:
    outcome = Outcome(ok=True, reason="completed", stdout=json.dumps(report))
    verdict = judge(outcome, "m", json.dumps(heard), wrote=wrote)
    assert verdict.status == ("fail" if failures else "pass")
    assert len(verdict.failures) == len(failures)
    assert all(one.startswith(told) for one, told in zip(verdict.failures, failures, strict=True))


def test_a_runner_that_could_not_begin_is_an_error_with_its_reason() -> None:
    error = "unknown model type 'swamp/fleet-probe'"
    outcome = Outcome(ok=False, reason="start_failed", error=error)
    verdict = judge(outcome, "m", "", wrote=False)
    assert (verdict.status, verdict.reason) == ("error", error)
    assert verdict.marker_ok is None


def test_a_runner_that_failed_tells_its_last_words() -> None:
    error, words = "Command exited with code 1", "Traceback\n\nNo module named swamp\n"
    outcome = Outcome(ok=False, reason="failed", error=error, stderr=words)
    assert judge(outcome, "m", "", wrote=False).reason == f"{error}: No module named swamp"


async def test_work_from_before_goes_on_on_a_worker_that_is_to_be_verified_now() -> None:
    async with running(verify=False) as fleet:
        await fleet.ask()
        await fleet.enroll()
        await fleet.says(Accepted(dispatch="r.j.s.1"))
        await fleet.leave()
        fleet.manager.enrollment._verify_on_enroll = True
        await fleet.enroll(running=["r.j.s.1"])
        assert fleet.state == "unverified"
        assert fleet.store.get(LEASES, "r.j.s.1").state == "active"
        (waiting,) = [one for one in fleet.store.live(PENDING) if one.name in fleet.left()]
        assert "the probe waits for a free slot of 'box'" in str(waiting.status)
        assert waiting.spec.wait_limit_s is None, "however long that takes"
        await fleet.says(
            ResultFrame(dispatch="r.j.s.1", outcome=Outcome(ok=True, reason="completed"))
        )
        await fleet.answer(fleet.probe())
        assert fleet.state == "connected"


async def test_a_probe_is_no_demand_for_workers() -> None:
    async with running() as fleet:
        await fleet.ask()
        await fleet.enroll()
        reasons, now = fleet.manager.scheduler.reasons, SystemClock().now()
        found = demand(fleet.store, reasons, now)
        assert [(one.requirement, one.waiting, one.running) for one in found] == [("pool=a", 1, 0)]
        assert found[0].free_slots == 0, "the slots of an unverified worker are no use to steps"
