"""Forgetting a worker: one that is away, with nothing of it under way."""

from __future__ import annotations

from datastore.errors import NotFound, SwampError
from datastore.kinds import LEASES, TOKENS, WORKERS, Worker
from datastore.store import Store


class StillThere(SwampError):
    """The worker cannot be forgotten yet."""


def no_such_worker(name: str) -> NotFound:
    """What is said where a worker has no record: it never enrolled, or was forgotten."""
    return NotFound(f"no worker '{name}' is known here; see `swamp worker list --all`")


def forget_worker(store: Store, name: str) -> Worker:
    """Remove the record of a worker that is away, and free its place in the token's allowance.

    NotFound without it; SwampError while it is connected or a step of it may still come back.
    """
    worker = store.find(WORKERS, name)
    if worker is None or worker.status is None:
        raise no_such_worker(name)
    if worker.live:
        raise StillThere(f"worker '{name}' is connected: drain it first, `swamp worker drain`")
    held = store.names_by(LEASES, "worker", name)
    if held:
        raise StillThere(f"worker '{name}' may still come back with {len(held)} of its steps")
    token = store.find(TOKENS, worker.status.token)
    puts = []
    if token is not None and token.status is not None and token.live:
        left = max(0, token.status.enrollments - 1)
        state = "enrolled" if left else "unused"
        changed = token.status.model_copy(update={"state": state, "enrollments": left})
        puts.append(token.with_status(changed))
    store.commit(puts, removals=[(WORKERS, name)])
    return worker
