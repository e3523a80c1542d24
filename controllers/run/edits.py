"""What people ask of runs, waiting dispatches and leases by their files, taken into the specs.

Each function is a plain `def` that answers the record as it stands afterwards. Ends are final: a
cancel that was taken over stays, whatever the file says later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controllers.asked import asked, shown_file
from datastore.desired import DesiredFile
from datastore.kinds import LEASES, PENDING, RUNS, Lease, Pending, PendingSpec, Run
from datastore.store import Store

BY_HAND = "edit"
"""The layer of a limit that somebody set in the dispatch's desired file."""


def run_as_asked(store: Store, run: Run) -> Run:
    """A live run with what its desired file asks."""
    status = run.status
    news = None if status is None else asked(store.desired(RUNS, run.name), status.desired)
    if status is None or news is None:
        return run
    changed = run.with_status(status.model_copy(update={"desired": news.note}))
    if news.spec and news.spec.get("cancel") and not run.spec.cancel:
        reason = news.spec.get("cancel_reason") or f"cancelled by {shown_file(RUNS, run.name)}"
        changed = changed.with_spec(cancel=True, cancel_reason=reason)
    store.commit([changed])
    return store.get(RUNS, run.name)


def pending_as_asked(store: Store, pending: Pending) -> Pending:
    """A live dispatch with what its desired file asks."""
    spec = spec_as_asked(pending.spec, store.desired(PENDING, pending.name))
    if spec is pending.spec:
        return pending
    store.commit([replace(pending, spec=spec)])
    return store.get(PENDING, pending.name)


def spec_as_asked(spec: PendingSpec, file: DesiredFile | None) -> PendingSpec:
    """The spec with what the file asks; the very same one where nothing is new."""
    news = asked(file, spec.desired)
    if news is None:
        return spec
    changes: dict[str, Any] = {"desired": news.note}
    given = news.spec or {}
    if given.get("cancel"):
        changes["cancel"] = True
    if "priority" in given:
        changes["priority"] = given["priority"]
    if "queue_timeout" in given:
        changes["wait_limit_s"] = given["queue_timeout"] or None
        changes["limit_from"] = BY_HAND
    return spec.model_copy(update=changes)


def lease_as_asked(store: Store, lease: Lease) -> Lease:
    """A live lease with what its desired file asks."""
    news = asked(store.desired(LEASES, lease.name), lease.spec.desired)
    if news is None:
        return lease
    changes: dict[str, Any] = {"desired": news.note}
    if news.spec and news.spec.get("cancel"):
        changes["cancel"] = True
    store.commit([lease.with_spec(**changes)])
    return store.get(LEASES, lease.name)
