"""A dispatch that asks for secrets leaves when they have been read, if it still may."""

from __future__ import annotations

import asyncio
import errno
import os
import threading

import pytest
from test_sessions_result import AT, DISPATCH, Connected, Wire

from datastore.errors import NotFound, SwampError
from datastore.kinds import LEASES, PENDING, Call, PendingSpec, PendingStatus, Placement
from datastore.record import Record
from swamp.protocol import Dispatch
from swamp.serve import dispatch_secrets
from swamp.serve.credentials import Credentials
from swamp.serve.dispatch_secrets import DispatchSecrets

ASK = "${{ vault.get('main', 'KEY') }}"


class Asking(Connected):
    """The running dispatch asks for a secret, which is read when the test lets it."""

    def __init__(self, env: str = ASK, known: bool = True) -> None:
        super().__init__()
        self.may_read = threading.Event()
        self.reads: list[str] = []
        self.refusals: list[Exception] = []
        self.known = known
        self.sessions._secrets = DispatchSecrets(Credentials(b"k" * 32), self._read)
        call = Call(
            model_type="command/shell", model="m", method="execute",
            arguments={"run": "true", "env": {"K": env}},
        )  # fmt: skip
        spec = PendingSpec(
            run="r", workflow="w", job="j", step="s", episode=1, call=call, placement=Placement()
        )
        status = PendingStatus(state="dispatched", queued_at=AT)
        self.store.commit([Record(PENDING, DISPATCH, "p", AT, spec, status)])

    def _read(self, vault: str, key: str) -> str:
        self.may_read.wait(5)
        if self.refusals:
            raise self.refusals.pop()
        self.reads.append(key)
        if not self.known:
            raise NotFound("vault 'main' has no secret 'KEY'")
        return "the value"

    def offer(self) -> None:
        self.sessions.dispatch(self.store.get(LEASES, DISPATCH), self.store.get(PENDING, DISPATCH))

    async def read(self) -> None:
        """Let the secret be read, and what follows happen."""
        self.may_read.set()
        while not self.reads:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)

    def dispatches(self) -> list[Dispatch]:
        return [frame for frame in self.wire.sent if isinstance(frame, Dispatch)]


async def test_the_frame_holds_the_secret_and_the_record_does_not() -> None:
    world = Asking()
    await world.enroll(world.wire)
    world.offer()
    assert world.dispatches() == []
    await world.read()
    [frame] = world.dispatches()
    assert frame.call.arguments["env"] == {"K": "the value"}
    assert frame.secrets == ["the value"]
    assert frame.credential.startswith(f"{DISPATCH}.")
    assert "the value" not in repr(frame).partition("arguments")[0]
    assert world.store.get(PENDING, DISPATCH).spec.call.arguments["env"] == {"K": ASK}


async def test_without_secrets_it_leaves_at_once() -> None:
    world = Asking(env="plain")
    await world.enroll(world.wire)
    world.offer()
    assert [frame.secrets for frame in world.dispatches()] == [[]]


async def test_cancelled_while_secrets_are_read_it_never_leaves() -> None:
    world = Asking()
    await world.enroll(world.wire)
    world.offer()
    lease = world.store.get(LEASES, DISPATCH)
    world.store.commit([lease.with_spec(cancel=True)])
    await world.read()
    assert world.dispatches() == []
    status = world.store.get(LEASES, DISPATCH).status
    assert status is not None and status.outcome is not None
    assert (status.state, status.outcome.reason) == ("failed", "cancelled")


async def test_it_never_leaves_on_a_socket_that_came_later() -> None:
    """The next socket gets an offer of its own."""
    world = Asking()
    session = await world.enroll(world.wire)
    world.offer()
    world.sessions.closed(session)
    second = Wire()
    await world.enroll(second)
    await world.read()
    assert not any(isinstance(frame, Dispatch) for frame in (*world.wire.sent, *second.sent))
    assert world.state == "active"


async def test_a_secret_that_is_not_there_fails_the_dispatch() -> None:
    world = Asking(known=False)
    await world.enroll(world.wire)
    world.offer()
    await world.read()
    assert world.dispatches() == []
    status = world.store.get(LEASES, DISPATCH).status
    assert status is not None and status.outcome is not None
    assert status.outcome.error == "vault 'main' has no secret 'KEY'"


NO_FILE_MORE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_secrets, "_TRIES_S", (0.001, 0.001))


async def test_a_secret_that_cannot_be_read_just_now_is_read_a_moment_later() -> None:
    world = Asking()
    await world.enroll(world.wire)
    world.refusals = [NO_FILE_MORE] * 2
    world.offer()
    await world.read()
    assert len(world.dispatches()) == 1


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (
            ArithmeticError("unforeseen"),
            "its secrets cannot be read: ArithmeticError('unforeseen')",
        ),
        (
            ValueError("its value"),
            "secret 'KEY' of vault 'main': its vault is damaged (ValueError)",
        ),
    ],
)
async def test_a_fault_of_the_vault_fails_the_dispatch(fault: Exception, told: str) -> None:
    """Regression: nobody ever heard of it again; it kept its slot, and its model."""
    world = Asking()
    await world.enroll(world.wire)
    world.refusals = [fault]
    world.offer()
    world.may_read.set()
    async with asyncio.timeout(5):
        while world.state == "active":  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    status = world.store.get(LEASES, DISPATCH).status
    assert status is not None and status.outcome is not None
    assert status.outcome.reason == "start_failed"
    assert status.outcome.error == told


def test_before_a_step_has_started_it_waits_for_such_a_secret() -> None:
    """Regression: it failed for good, where one that reads an output waits."""
    refusals: list[OSError] = [NO_FILE_MORE]

    def read(vault: str, key: str) -> str:
        if refusals:
            raise refusals[-1]
        return "the value"

    secrets = DispatchSecrets(None, read)
    call = Call(model_type="command/shell", model="m", method="execute", arguments={"run": ASK})
    with pytest.raises(OSError, match="open files"):
        secrets.check(call)
    with pytest.raises(SwampError, match="secret 'KEY' of vault 'main': Too many open files"):
        secrets.open(DISPATCH, call)
    refusals[:] = [PermissionError(errno.EACCES, os.strerror(errno.EACCES))]
    with pytest.raises(SwampError, match="secret 'KEY' of vault 'main': Permission denied"):
        secrets.check(call)
    refusals.clear()
    assert secrets.open(DISPATCH, call).secrets == ("the value",)


async def test_a_call_that_cannot_be_sent_fails_the_dispatch() -> None:
    """Regression: it raised at each look, kept its slot, and the worker lost its socket for it."""
    world = Asking(env="caf\udce9")
    await world.enroll(world.wire)
    world.offer()
    assert world.dispatches() == []
    status = world.store.get(LEASES, DISPATCH).status
    assert status is not None and status.outcome is not None
    assert status.outcome.reason == "start_failed"
    assert status.outcome.error == (
        "call.arguments.env.K holds a character that is no Unicode (a lone surrogate)"
    )
