"""Records as people and machines are shown them: the JSON shapes of the API and of `--json`.

Pure functions. The server and the commands that read the datastore themselves use the same ones,
so both always show the same. Keys whose value is unknown are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controllers.asked import desired_file
from controllers.demand import Demand
from controllers.placement import drains
from controllers.requirement import requirement
from datastore.clock import parse_stamp
from datastore.kinds import Lease, Pause, Pending, Run, Step, Token, Worker

View = dict[str, Any]


def known(view: View) -> View:
    """The view without the keys whose value is None."""
    return {key: value for key, value in view.items() if value is not None}


def worker_list(
    workers: Iterable[Worker], live_leases: Iterable[Lease], show_all: bool = False
) -> View:
    """`{workers, count, filteredDisconnectedCount?}` by name; disconnected ones with `show_all`."""
    active: dict[str, list[str]] = defaultdict(list)
    for lease in live_leases:
        active[lease.spec.worker].append(lease.name)
    views = [_worker(worker, sorted(active[worker.name])) for worker in workers if worker.status]
    views.sort(key=lambda view: view["name"])
    shown = [view for view in views if show_all or view["status"] != "disconnected"]
    hidden = len(views) - len(shown)
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


def queue_list(pendings: Iterable[Pending], now: datetime) -> list[View]:
    """The waiting dispatches, oldest first."""
    waiting = [pending for pending in pendings if pending.state == "waiting"]
    views = [_queued(pending, now) for pending in waiting]
    return sorted(views, key=lambda view: (view["queuedAt"], view["queueId"]))


def _queued(pending: Pending, now: datetime) -> View:
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
            "ageMs": max(0, milliseconds(status.queued_at, now)),
            "reason": status.reason or "",
            "limitS": spec.wait_limit_s,
            "limitFrom": spec.limit_from,
            "desiredFile": desired_file(spec.desired),
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


def pause_list(pauses: Iterable[Pause]) -> list[View]:
    """Pauses of the queue by name, ended ones included."""
    return [
        known(
            {
                "name": pause.name,
                "state": pause.state,
                "labels": dict(pause.spec.labels),
                "note": pause.spec.note,
                "since": pause.status.since if pause.status is not None else None,
            }
        )
        for pause in sorted(pauses, key=lambda one: one.name)
    ]


def token_list(tokens: Iterable[Token], workers: Iterable[Worker], now: datetime) -> list[View]:
    """The enrollment tokens by name, each with the machines it has bound."""
    bound: dict[str, list[Worker]] = defaultdict(list)
    for worker in workers:
        if worker.status is not None:
            bound[worker.status.token].append(worker)
    views = [_token(token, bound[token.name], now) for token in tokens if token.status]
    return sorted(views, key=lambda view: view["name"])


def _token(token: Token, workers: list[Worker], now: datetime) -> View:
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
            "bindings": [_binding(worker) for worker in sorted(workers, key=lambda w: w.name)],
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


def run_list(
    runs: Iterable[Run],
    *,
    workflow: str | None = None,
    status: str | None = None,
    limit: int = 50,
) -> View:
    """`{runs: […]}`, newest first; of one workflow or in one status where given."""
    chosen = [
        run
        for run in runs
        if run.status is not None
        and workflow in (None, run.spec.workflow)
        and status in (None, run.status.state)
    ]
    chosen.sort(key=lambda run: (run.created_at, run.name), reverse=True)
    return {"runs": [run_item(run) for run in chosen[:limit]]}


def run_item(run: Run) -> View:
    """One run as a list shows it."""
    status = run.status
    assert status is not None
    return known(
        {
            "runId": run.name,
            "workflowName": run.spec.workflow,
            "workflowId": run.spec.workflow_id,
            "status": status.state,
            "startedAt": status.started_at,
            "completedAt": status.ended_at,
            "durationMs": status.duration_ms,
            "counts": status.counts.document(),
            "failureReason": status.failure,
        }
    )


def milliseconds(start: str, end: datetime) -> int:
    """From a record's time to a moment, milliseconds."""
    return round((end - parse_stamp(start)).total_seconds() * 1000)


def run_view(
    run: Run, steps: Iterable[Step], pendings: Iterable[Pending], leases: Iterable[Lease]
) -> View:
    """The whole run, jobs and steps in the order of its workflow definition.

    Copies that `forEach` made follow their template, which is itself shown only while there is no
    copy of it or when it has an end of its own.
    """
    jobs = _facts(steps, pendings, leases)
    status = run.status
    assert status is not None
    view = {
        "id": run.name,
        "workflowId": run.spec.workflow_id,
        "workflowName": run.spec.workflow,
        "inputs": run.spec.inputs,
        "status": status.state,
        "startedAt": status.started_at,
        "completedAt": status.ended_at,
        "durationMs": status.duration_ms,
        "counts": status.counts.document(),
        "jobs": [
            {
                "name": job["name"],
                "status": status.jobs.get(job["name"], "pending"),
                "steps": _job_steps(job, jobs[job["name"]]),
            }
            for job in run.spec.definition.get("jobs", [])
        ],
        "failureReason": status.failure,
        "desiredFile": desired_file(status.desired),
    }
    return known(view)


@dataclass(slots=True)
class _Facts:
    """What is recorded about one step: its record, its live lease, its live pending dispatch."""

    step: Step | None = None
    lease: Lease | None = None
    pending: Pending | None = None


def _facts(
    steps: Iterable[Step], pendings: Iterable[Pending], leases: Iterable[Lease]
) -> dict[str, dict[str, _Facts]]:
    """By job, then step."""
    jobs: dict[str, dict[str, _Facts]] = defaultdict(lambda: defaultdict(_Facts))
    for step in steps:
        jobs[step.spec.job][step.spec.step].step = step
    for lease in leases:
        if lease.live:
            jobs[lease.spec.job][lease.spec.step].lease = lease
    for pending in pendings:
        if pending.live:
            jobs[pending.spec.job][pending.spec.step].pending = pending
    return jobs


def _job_steps(job: View, found: dict[str, _Facts]) -> list[View]:
    written: list[View] = job.get("steps", [])
    names = {step["name"] for step in written}
    copies: dict[str, list[str]] = defaultdict(list)
    for name in sorted(found.keys() - names, key=_natural):
        copies[_template(name, found[name], written)].append(name)
    views = []
    for template in [step["name"] for step in written]:
        made = copies.pop(template, [])
        if template in found or not made:
            views.append(_step(template, found.get(template, _Facts()), None))
        views += [_step(name, found[name], template) for name in made]
    unwritten = [name for names_left in copies.values() for name in names_left]
    return views + [_step(name, found[name], None) for name in unwritten]


def _template(name: str, facts: _Facts, written: list[View]) -> str:
    """The written step that this copy comes from.

    Only a step's own record says so; before it exists the copy goes to the `forEach` step whose
    name it begins with.
    """
    if facts.step is not None and facts.step.spec.template is not None:
        return facts.step.spec.template
    loops = [step["name"] for step in written if "forEach" in step]
    fixed = {loop: loop.partition("${{")[0] for loop in loops}
    fitting = [loop for loop in loops if name.startswith(fixed[loop])] or loops
    return max(fitting, key=lambda loop: len(fixed[loop]), default=name)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that puts `probe-2` before `probe-10`."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def _step(name: str, facts: _Facts, template: str | None) -> View:
    view: View = {"name": name, "template": template, "status": "pending"}
    if facts.step is not None:
        view |= _step_record(facts.step)
    if view["status"] in ("pending", "waiting") and facts.pending is not None:
        view |= _waiting(facts.pending)
    if view["status"] in ("pending", "waiting") and facts.lease is not None:
        view |= _leased(facts.lease)
    return known(view)


def _waiting(pending: Pending) -> View:
    reason = None if pending.status is None else pending.status.reason
    return {
        "status": "waiting",
        "reason": reason,
        "episodes": pending.spec.episode,
        "waitedS": pending.spec.waited_before_s or None,
        "model": pending.spec.call.model,
        "methodName": pending.spec.call.method,
    }


def _leased(lease: Lease) -> View:
    status = lease.status
    return {
        "status": "running",
        "reason": None,
        "worker": lease.spec.worker,
        "startedAt": None if status is None else status.bound_at,
        "model": lease.spec.model,
        "methodName": lease.spec.method,
    }


def _step_record(step: Step) -> View:
    spec, status = step.spec, step.status
    if status is None:
        return {}
    view: View = {
        "status": status.state,
        "worker": status.worker,
        "startedAt": status.started_at,
        "completedAt": status.ended_at,
        "durationMs": None,
        "waitedS": status.waited_s or None,
        "episodes": status.episodes or None,
        "error": status.error,
        "allowedFailure": status.allowed_failure or None,
        "outputs": [one.document() for one in status.outputs or ()] or None,
    }
    if spec.call is not None:
        view |= {"model": spec.call.model, "methodName": spec.call.method}
    if status.started_at is not None and status.ended_at is not None:
        view["durationMs"] = milliseconds(status.started_at, parse_stamp(status.ended_at))
    outcome = status.outcome
    if outcome is not None:
        view |= {
            "reason": outcome.reason,
            "exitCode": outcome.exit_code,
            "signal": outcome.signal,
            "stdout": outcome.stdout or None,
            "stderr": outcome.stderr or None,
        }
    return view
