"""A full disk: what is cancelled is stopped at once, and who knocks may go on with what it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_sessions_result import AT, DISPATCH, Connected, Wire

from controllers.enrollment import EnrollmentRefused
from datastore.kinds import LEASES, PENDING, Call, Outcome, PendingSpec, PendingStatus, Placement
from datastore.record import Record
from full_disk import FULL, Disk
from swamp.protocol import PROTOCOL_VERSION, Ack, Cancel, Dispatch, Enroll, ResultFrame
from swamp.serve.refusals import refusal
from swamp.serve.sessions import GRACE_MARGIN

CANCELLED = Outcome(ok=False, reason="cancelled", error="cancelled")


class World(Connected):
    """A worker is connected; its dispatch is bound, and not offered yet."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = self.store._journal = Disk()
        call = Call(model_type="command/shell", model="m", method="execute")
        spec = PendingSpec(
            run="r", workflow="w", job="j", step="s", episode=1, call=call, placement=Placement()
        )
        status = PendingStatus(state="dispatched", queued_at=AT)
        self.store.commit([Record(PENDING, DISPATCH, "p", AT, spec, status)])
        self.leases = self.sessions._leases

    async def look(self) -> None:
        await self.leases.reconcile(DISPATCH)

    async def connect(self, *, running: bool) -> None:
        lease = self.store.get(LEASES, DISPATCH)
        if not running:
            self.store.commit([], [(LEASES, DISPATCH)])
        self.session = await self.enroll(self.wire)
        if not running:
            self.store.commit([replace(lease, revision=0)])

    def ask_to_cancel(self) -> None:
        lease = self.store.get(LEASES, DISPATCH)
        self.store.commit([lease.with_spec(cancel=True)])

    def sent(self) -> list[str]:
        return [one.type for one in self.wire.sent[1:]]


async def test_what_runs_is_stopped_at_once() -> None:
    """Regression: what filled the disk could not be stopped; its worker was cut, and blamed."""
    world = World()
    await world.connect(running=True)
    world.disk.trouble = FULL
    world.ask_to_cancel()
    await world.look()
    assert world.wire.sent[1:] == [Cancel(dispatch=DISPATCH)]
    world.sessions.handle(world.session, ResultFrame(dispatch=DISPATCH, outcome=CANCELLED))
    assert world.state == "failed"
    assert world.sent() == ["cancel"], "what is not on disk is not acknowledged"
    world.disk.recover()
    assert world.wire.sent[2:] == [Ack(dispatch=DISPATCH)]


async def test_what_has_not_left_never_does() -> None:
    world = World()
    await world.connect(running=False)
    world.disk.trouble = FULL
    world.store.commit([world.store.get(LEASES, DISPATCH)])
    await world.look()
    assert world.sessions.holds_up(DISPATCH)
    world.ask_to_cancel()
    await world.look()
    assert world.state == "failed"
    world.disk.recover()
    assert world.sent() == []
    assert not world.sessions.holds_up(DISPATCH)


async def test_what_has_left_is_followed_by_its_cancel() -> None:
    world = World()
    await world.connect(running=False)
    await world.look()
    assert not world.sessions.holds_up(DISPATCH)
    world.disk.trouble = FULL
    world.ask_to_cancel()
    await world.look()
    assert isinstance(world.wire.sent[1], Dispatch)
    assert world.sent() == ["dispatch", "cancel"]


def knock(running: list[str], secret: str = "secret") -> Enroll:
    return Enroll(
        protocol=PROTOCOL_VERSION, version="1", token=f"box.{secret}", instance="i",
        machine="machine", platform="linux", arch="x86_64", capacity=1, running=running,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("frame", "goes_on"),
    [
        (knock([DISPATCH]), True),
        (knock([DISPATCH, "r.j.other.1"]), False),
        (knock([DISPATCH], "wrong"), False),
    ],
)
async def test_who_knocks_is_told_for_how_long_it_may_go_on(frame: Enroll, goes_on: bool) -> None:
    world = World()
    await world.connect(running=True)
    world.sessions.closed(world.session)
    world.disk.trouble = FULL
    with pytest.raises(EnrollmentRefused) as refused:
        await world.sessions.enroll(frame, Wire())
    told = refusal(refused.value)
    assert (told.code, told.permanent) == ("degraded", False)
    assert told.grace_s == (60.0 * GRACE_MARGIN if goes_on else 0.0)
    assert told.cancel == []


@pytest.mark.parametrize(
    ("frame", "cancel"),
    [
        (knock([DISPATCH]), [DISPATCH]),
        (knock([DISPATCH, "r.j.other.1"]), [DISPATCH]),
        (knock([DISPATCH]).model_copy(update={"instance": "another"}), []),
        (knock([DISPATCH], "wrong"), []),
    ],
)
async def test_who_knocks_is_told_what_to_stop(frame: Enroll, cancel: list[str]) -> None:
    """Regression: while it ran a step that nobody waited for, all else it ran lost its time."""
    world = World()
    await world.connect(running=True)
    world.sessions.closed(world.session)
    world.disk.trouble = FULL
    world.ask_to_cancel()
    with pytest.raises(EnrollmentRefused) as refused:
        await world.sessions.enroll(frame, Wire())
    told = refusal(refused.value)
    assert (told.cancel, told.grace_s) == (cancel, 0.0)
    if cancel:
        with pytest.raises(EnrollmentRefused) as refused:
            await world.sessions.enroll(knock([]), Wire())
        assert refusal(refused.value).grace_s > 0, "once it is stopped, the rest may go on"
