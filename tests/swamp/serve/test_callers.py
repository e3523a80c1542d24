"""Who dials is known by what it shows, and by nothing that a stranger could say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controllers.enrollment import Made, create_token, revoke_token
from datastore.clock import SystemClock
from datastore.journal import Op
from datastore.kinds import KINDS, WORKERS, TokenSpec, WorkerSpec, WorkerStatus
from datastore.kinds.machine_name import machine_name
from datastore.kinds.secret_hash import proof_of, secret_hash
from datastore.record import Record
from datastore.store import Store
from swamp.protocol import PROOF_HEADER, WORKER_HEADER, calling_card
from swamp.serve.callers import STRANGER, Caller, Callers, Standing

AT = "2026-11-29T12:00:00.000Z"
HOLDER = Caller(Standing.HOLDER)


class AtOnce:
    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            on_durable()


@pytest.fixture
def store() -> Store:
    """Tokens `box` and `fleet`, whose machine `m` has enrolled with each."""
    made = Store(KINDS.values(), AtOnce())
    for name, most in (("box", 1), ("fleet", 5)):
        spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z", max_enrollments=most)
        create_token(made, name, spec, f"secret of {name}", Made(name, SystemClock().now()))
    for name, token in (("box", "box"), (machine_name("fleet", "m"), "fleet")):
        status = WorkerStatus(
            state="disconnected", token=token, machine="m", instance="i", labels={},
            platform="linux", arch="x86_64", version="1", capacity=1, enrolled_at=AT,
            last_seen_at=AT,
        )  # fmt: skip
        made.commit([Record(WORKERS, name, name, AT, WorkerSpec(), status)])
    return made


def who(store: Store, token: str, machine: str = "m", **said: str) -> Caller:
    card = calling_card(token, machine)
    return Callers(store).who(
        said.get("names", card[WORKER_HEADER]), said.get("proof", card[PROOF_HEADER])
    )


def test_the_secret_of_a_token_shows_who_dials(store: Store) -> None:
    assert who(store, "box.secret of box") == Caller(Standing.KNOWN, "box")
    machine = machine_name("fleet", "m")
    assert who(store, "fleet.secret of fleet") == Caller(Standing.KNOWN, machine)
    assert who(store, "fleet.secret of fleet", "another") == HOLDER
    assert "secret" not in str(calling_card("box.secret", "m").values())


def test_a_stranger_can_show_nothing(store: Store) -> None:
    assert who(store, "box.guessed") == STRANGER
    assert who(store, "nobody.secret") == STRANGER
    assert who(store, "box.secret of box", proof="") == STRANGER
    assert who(store, "box.secret of box", proof="\u00e9\ud800") == STRANGER
    assert Callers(store).who("", "") == STRANGER
    # The proof is of these names: seen on the way, it is of no use for another machine.
    other = calling_card("fleet.secret of fleet", "other")[PROOF_HEADER]
    assert who(store, "fleet.secret of fleet", proof=other) == STRANGER
    revoke_token(store, "box", SystemClock().now())
    assert who(store, "box.secret of box") == STRANGER


def test_a_token_shows_no_worker_of_another(store: Store) -> None:
    names = "fleet, box"
    proof = proof_of(secret_hash("secret of fleet"), names)
    assert who(store, "", names=names, proof=proof) == HOLDER
