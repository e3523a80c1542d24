"""Access tokens: who is let in, and which ends are final."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from controllers.access import (
    AccessController,
    AccessRefused,
    create_access,
    let_in,
    revoke_access,
)
from datastore.clock import stamp
from datastore.desired import DesiredFile
from datastore.errors import AlreadyExists, NotFound
from datastore.journal import Op
from datastore.kinds import ACCESS, KINDS, AccessSpec
from datastore.store import Store

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
SECRET = "s" * 64


class AtOnce:
    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            on_durable()


class Clock:
    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> datetime:
        return self.at


class World:
    def __init__(self) -> None:
        self.store, self.clock = Store(KINDS.values(), AtOnce()), Clock()
        self.controller = AccessController(self.store, self.clock)
        spec = AccessSpec(role="run", expires_at=stamp(NOW + timedelta(hours=1)))
        create_access(self.store, "ci", spec, SECRET, ("u", NOW))

    def enters(self, text: str = f"ci.{SECRET}") -> str:
        return let_in(self.store, text, self.clock.now()).name

    def asks(self, digest: str, **spec: object) -> None:
        self.store.set_desired(ACCESS, "ci", DesiredFile(spec, digest))


@pytest.fixture
def world() -> World:
    return World()


def test_the_right_secret_is_let_in_and_stored_nowhere(world: World) -> None:
    assert world.enters() == "ci"
    assert SECRET not in str(world.store.get(ACCESS, "ci").document())
    spec = world.store.get(ACCESS, "ci").spec
    with pytest.raises(AlreadyExists):
        create_access(world.store, "ci", spec, "other", ("u2", NOW))


@pytest.mark.parametrize("text", ["", "ci", "ci.", f"CI.{SECRET}", f"ci.{SECRET}x", f".{SECRET}"])
def test_anything_else_is_refused_in_the_same_words(world: World, text: str) -> None:
    revoke_access(world.store, "ci", NOW)
    with pytest.raises(AccessRefused, match="no such access token"):
        world.enters(text)


def test_a_revoked_one_is_refused_for_good(world: World) -> None:
    _, is_new = revoke_access(world.store, "ci", NOW)
    assert is_new
    with pytest.raises(AccessRefused, match="'ci' has been revoked"):
        world.enters()
    assert not revoke_access(world.store, "ci", NOW)[1]
    with pytest.raises(NotFound, match="no access token 'cd'; there are: ci"):
        revoke_access(world.store, "cd", NOW)


def test_the_clock_ends_one_before_its_record_says_so(world: World) -> None:
    world.clock.at = NOW + timedelta(hours=1)
    with pytest.raises(AccessRefused, match="'ci' has expired"):
        world.enters()


async def test_expiry_is_final_whatever_the_file_says_later(world: World) -> None:
    wait = await world.controller.reconcile("ci")
    assert wait is not None and wait.seconds == 3600
    world.clock.at = NOW + timedelta(hours=2)
    await world.controller.reconcile("ci")
    assert world.store.get(ACCESS, "ci").state == "expired"
    world.asks("later", expires_at=stamp(NOW + timedelta(days=9)))
    await world.controller.reconcile("ci")
    with pytest.raises(AccessRefused, match="expired"):
        world.enters()


async def test_a_file_revokes_at_once_and_the_record_follows(world: World) -> None:
    world.asks("gone", revoked=True)
    with pytest.raises(AccessRefused, match="revoked"):
        world.enters()
    await world.controller.reconcile("ci")
    status = world.store.get(ACCESS, "ci").status
    assert status is not None and (status.state, status.desired) == ("revoked", "gone")
    world.asks("back", revoked=False)
    await world.controller.reconcile("ci")
    with pytest.raises(AccessRefused, match="revoked"):
        world.enters()


async def test_a_file_changes_the_role(world: World) -> None:
    world.asks("less", role="read")
    await world.controller.reconcile("ci")
    assert let_in(world.store, f"ci.{SECRET}", NOW).spec.role == "read"
