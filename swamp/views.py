"""Records as people and machines are shown them: the JSON shapes of the API and of `--json`.

Pure functions. The server and the commands that read the datastore themselves use the same ones,
so both always show the same. Keys whose value is unknown are left out. What may have to show many
records takes a `pause` after each of them, for the server's event loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from controllers.asked import desired_file
from controllers.placement import drains
from controllers.requirement import requirement
from datastore import courtesy
from datastore.clock import parse_stamp
from datastore.courtesy import each, in_order, no_pause
from datastore.kinds import (
    Lease,
    Pause,
    PauseSpec,
    PauseStatus,
    Pending,
    PendingSpec,
    Token,
    Worker,
)

if TYPE_CHECKING:
    # Only the server needs these; commands that list start faster without them.
    from controllers.demand import Demand
    from controllers.placement import Reason
    from datastore.desired import DesiredFile

View = dict[str, Any]


def known(view: View) -> View:
    """The view without the keys whose value is None."""
    return {key: value for key, value in view.items() if value is not None}


def worker_list(
    workers: Iterable[Worker],
    live_leases: Iterable[Lease],
    show_all: bool = False,
    left_out: int = 0,
    pause: courtesy.Pause = no_pause,
    keep: Callable[[View], Any] = lambda view: view,
) -> View:
    """`{workers, count, filteredDisconnectedCount?}` by name; disconnected ones with `show_all`.

    `left_out`: disconnected ones beside the given. `keep`: what to put in the place of each view.
    """
    active: dict[str, list[str]] = defaultdict(list)
    for lease in each(live_leases, pause):
        active[lease.spec.worker].append(lease.name)
    kept, hidden = [], left_out
    for worker in each(workers, pause):
        if worker.status is None:
            continue
        view = _worker(worker, sorted(active.get(worker.name, ())))
        if show_all or view["status"] != "disconnected":
            kept.append((worker.name, keep(view)))
        else:
            hidden += 1
    shown = [view for _, view in each(in_order(kept, lambda one: one[0], pause), pause)]
    return known(
        {"workers": shown, "count": len(shown), "filteredDisconnectedCount": hidden or None}
    )


def _worker(worker: Worker, active: list[str]) -> View:
    status = worker.status
    assert status is not None
    return known(
        {
            "name": worker.name,
            "status": worker_state(worker, bool(active)),
            "labels": dict(status.labels),
            "platform": status.platform,
            "arch": status.arch,
            "instanceUuid": status.instance,
            "enrolledAt": status.enrolled_at,
            "lastSeenAt": status.last_seen_at,
            "capacity": status.capacity,
            "activeDispatchIds": active,
            "version": status.version,
            "token": status.token,
            "note": worker.spec.note,
            "verifiedAt": status.verified_at,
            "verifyFailureReason": status.verify_failure,
            "desiredFile": desired_file(status.desired),
        }
    )


def worker_state(worker: Worker, busy: bool) -> str:
    """What keeps it from new work comes first; whether it works is also seen in its slots."""
    status = worker.status
    if status is None or status.state == "disconnected":
        return "disconnected"
    if drains(worker):
        return "draining"
    if status.state == "unverified":
        return "unverified"
    if not worker.spec.schedulable:
        return "cordoned"
    return "busy" if busy else "idle"


def queue_list(
    pendings: Iterable[Pending],
    now: datetime,
    reason_of: Callable[[PendingSpec], Reason] | None = None,
    pause: courtesy.Pause = no_pause,
) -> list[View]:
    """The waiting dispatches, in the order in which they first asked.

    `reason_of`: why each waits, where that is known better than from its record.
    """
    waiting = (one for one in each(pendings, pause) if one.state == "waiting")
    views = [
        _queued(one, now, None if reason_of is None else reason_of(one.spec)) for one in waiting
    ]
    return in_order(
        views, lambda view: (view.get("askedAt", view["queuedAt"]), view["queueId"]), pause
    )


def _queued(pending: Pending, now: datetime, reason: Reason | None) -> View:
    spec, status = pending.spec, pending.status
    assert status is not None
    return known(
        {
            "queueId": pending.name,
            "requirement": requirement(spec.placement),
            "workflowName": spec.workflow,
            "runId": spec.run,
            "jobName": spec.job,
            "stepName": spec.step,
            "model": spec.call.model,
            "modelType": spec.call.model_type,
            "methodName": spec.call.method,
            "priority": spec.priority,
            "queuedAt": status.queued_at,
            "askedAt": spec.asked_at,
            "ageMs": max(0, milliseconds(status.queued_at, now)),
            "reason": (status.reason or "") if reason is None else reason.text,
            "limitS": spec.wait_limit_s,
            "limitFrom": spec.limit_from,
            "desiredFile": desired_file(spec.desired),
            "reasonCode": None if reason is None else reason.code,
        }
    )


def demand_list(found: Iterable[Demand]) -> list[View]:
    """Demand by requirement, in the order given."""
    return [
        known(
            {
                "requirement": one.requirement,
                "waiting": one.waiting,
                "blocked": one.blocked,
                "unsatisfiable": one.unsatisfiable,
                "running": one.running,
                "freeSlots": one.free_slots,
                "oldestAgeMs": round(one.oldest_s * 1000),
                "soon": one.soon,
                "reason": one.reason,
                "reasonCode": one.reason_code,
            }
        )
        for one in found
    ]


def pause_list(
    pauses: Collection[Pause], asked: Mapping[str, DesiredFile] | None = None
) -> list[View]:
    """Pauses of the queue by name, ended ones included.

    `asked`: files in `desired/pauses/` that only the next server takes over, where none runs.
    """
    found = {pause.name: _pause(pause.name, pause.spec, pause.status) for pause in pauses}
    specs = {pause.name: pause.spec for pause in pauses}
    for name, file in (asked or {}).items():
        base = specs.get(name)
        coming = (base or PauseSpec()).model_copy(update=file.spec)
        # A file without a good version has no digest, and changes nothing.
        if file.digest and coming != base:
            found[name] = {**_pause(name, coming, None), "atNextStart": True}
    return [found[name] for name in sorted(found)]


def _pause(name: str, spec: PauseSpec, status: PauseStatus | None) -> View:
    return known(
        {
            "name": name,
            "state": "paused" if spec.paused else "resumed",
            "labels": dict(spec.labels),
            "note": spec.note,
            "since": status.since if status is not None else None,
        }
    )


def token_list(
    tokens: Iterable[Token],
    workers: Iterable[Worker],
    now: datetime,
    pause: courtesy.Pause = no_pause,
) -> list[View]:
    """The enrollment tokens by name, each with the machines it has bound."""
    bound: dict[str, list[View]] = defaultdict(list)
    for worker in each(workers, pause):
        if worker.status is not None:
            bound[worker.status.token].append(_binding(worker))
    views = []
    for token in each(tokens, pause):
        if token.status is not None:
            bindings = in_order(bound.pop(token.name, ()), lambda one: one["worker"], pause)
            views.append(_token(token, bindings, now))
    return in_order(views, lambda view: view["name"], pause)


def _token(token: Token, bindings: list[View], now: datetime) -> View:
    status = token.status
    assert status is not None
    expired = token.live and parse_stamp(token.spec.expires_at) <= now
    return known(
        {
            "name": token.name,
            "state": status.state,
            "effectiveState": "expired" if expired else status.state,
            "createdAt": token.created_at,
            "expiresAt": token.spec.expires_at,
            "maxEnrollments": token.spec.max_enrollments,
            "bindingCount": status.enrollments,
            "bindings": bindings,
            "revokedAt": status.ended_at if status.state == "revoked" else None,
            "note": token.spec.note,
            "desiredFile": desired_file(status.desired),
        }
    )


def _binding(worker: Worker) -> View:
    status = worker.status
    assert status is not None
    return {
        "worker": worker.name,
        "machineId": status.machine,
        "enrolledAt": status.enrolled_at,
    }


def milliseconds(start: str, end: datetime) -> int:
    """From a record's time to a moment, milliseconds; 0 where the clock was set back meanwhile."""
    return max(0, round((end - parse_stamp(start)).total_seconds() * 1000))
