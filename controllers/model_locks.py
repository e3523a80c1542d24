"""Model locks: who executes a model now, read from the records that say so.

A model's holders are its live leases and the steps that the orchestrator runs itself; nothing else
is stored. So a lock ends with its lease or step, however that ends, and holds over a restart as
long as they do. Who decides by `full` commits in the same `def`: nobody else gets in between.
"""

from __future__ import annotations

from datastore.kinds import LEASES, STEPS, Call, Lease, is_given_up
from datastore.kinds.dispatch_name import run_of
from datastore.store import Store

SHOWN_MOST = 3
"""Holders named in one reason."""


class ModelLocks:
    """Reads leases and steps; remembers nothing."""

    def __init__(self, store: Store, only_run: str | None = None) -> None:
        """`only_run`: steps that other runs left here belong to a process that is gone."""
        self._store = store
        self._only_run = only_run

    def full(self, model: str, concurrency: int) -> bool:
        """Whether so many executions of the model (its key) are under way; 0 is never reached."""
        if concurrency == 0:
            return False
        leased = self._store.count_by(LEASES, "model", model)
        return leased >= concurrency or leased + len(self._local(model)) >= concurrency

    def held(self, call: Call) -> str:
        """`model 'x' is held by <workflow>/<step> on <worker>`, for a model that is held."""
        leases = self._store.by(LEASES, "model", call.model_key)
        holders = [_holder(lease) for lease in leases]
        for name in self._local(call.model_key):
            spec = self._store.get(STEPS, name).spec
            holders.append(f"{spec.workflow}/{spec.step} on the server")
        more = f" and {len(holders) - SHOWN_MOST} more" if len(holders) > SHOWN_MOST else ""
        shown = ", ".join(sorted(holders)[:SHOWN_MOST])
        stuck = " (only `swamp serve` can end that)" if self._only_run is not None else ""
        return f"model '{call.model}' is held by {shown}{more}{stuck if leases else ''}"

    def _local(self, model: str) -> tuple[str, ...]:
        names = self._store.names_by(STEPS, "local_model", model)
        if self._only_run is None:
            return names
        return tuple(name for name in names if run_of(name) == self._only_run)


def _holder(lease: Lease) -> str:
    spec = lease.spec
    away = " (cancelled while that is away)" if is_given_up(lease) else ""
    return f"{spec.workflow}/{spec.step} on {spec.worker}{away}"
