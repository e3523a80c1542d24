"""Runs as people and machines are shown them; see `swamp.views`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from controllers.asked import desired_file
from datastore.clock import parse_stamp
from datastore.courtesy import Pause, each, in_order, no_pause
from datastore.kinds import Lease, Pending, Run, Step
from swamp.views import View, known, milliseconds


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


def run_view(
    run: Run,
    steps: Iterable[Step],
    pendings: Iterable[Pending],
    leases: Iterable[Lease],
    pause: Pause = no_pause,
) -> View:
    """The whole run, jobs and steps in the order of its workflow definition.

    Copies that `forEach` made follow their template, which is itself shown only while there is no
    copy of it or when it has an end of its own. It pauses after each record and step.
    """
    jobs = _facts(each(steps, pause), each(pendings, pause), each(leases, pause))
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
                "steps": _job_steps(job, jobs[job["name"]], pause),
            }
            for job in run.spec.definition.get("jobs", [])
        ],
        "failureReason": status.failure,
        "desiredFile": desired_file(status.desired),
    }
    return known(view)


@dataclass(slots=True)
class _Facts:
    """What is shown of one step: of its record, its live lease and its live pending dispatch."""

    template: str | None = None
    step: View | None = None
    lease: View | None = None
    pending: View | None = None


def _facts(
    steps: Iterable[Step], pendings: Iterable[Pending], leases: Iterable[Lease]
) -> dict[str, dict[str, _Facts]]:
    """By job, then step. No record is kept: to let go of thousands at once takes its time."""
    jobs: dict[str, dict[str, _Facts]] = defaultdict(lambda: defaultdict(_Facts))
    for step in steps:
        facts = jobs[step.spec.job][step.spec.step]
        facts.template, facts.step = step.spec.template, _step_record(step)
    for lease in leases:
        if lease.live:
            jobs[lease.spec.job][lease.spec.step].lease = _leased(lease)
    for pending in pendings:
        if pending.live:
            facts = jobs[pending.spec.job][pending.spec.step]
            facts.template, facts.pending = pending.spec.template, _waiting(pending)
    return jobs


def _job_steps(job: View, found: dict[str, _Facts], pause: Pause) -> list[View]:
    written: list[View] = job.get("steps", [])
    names = {step["name"] for step in written}
    copies: dict[str, list[str]] = defaultdict(list)
    unknown = ((_natural(name), name) for name in found if name not in names)
    for _, name in in_order(each(unknown, pause), lambda one: one[0], pause):
        copies[_template(name, found[name], written)].append(name)
    views = []
    for template in [step["name"] for step in written]:
        made = copies.pop(template, [])
        if template in found or not made:
            views.append(_step(template, found.pop(template, _Facts()), None))
        views += [_step(name, found.pop(name), template) for name in each(made, pause)]
    unwritten = [name for names_left in copies.values() for name in names_left]
    return views + [_step(name, found.pop(name), None) for name in each(unwritten, pause)]


def _template(name: str, facts: _Facts, written: list[View]) -> str:
    """The written step that this copy comes from.

    Its record says so, and what waits for it. While there is neither, the copy goes to the
    `forEach` step whose name it begins with.
    """
    if facts.template is not None:
        return facts.template
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
        view |= facts.step
    if view["status"] in ("pending", "waiting") and facts.pending is not None:
        view |= facts.pending
    if view["status"] in ("pending", "waiting") and facts.lease is not None:
        view |= facts.lease
    elif view["status"] == "running" and facts.lease is not None:
        view["reason"] = facts.lease["reason"]
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
        "reason": _delay(lease),
        "worker": lease.spec.worker,
        "startedAt": None if status is None else status.bound_at,
        "model": lease.spec.model,
        "methodName": lease.spec.method,
    }


def _delay(lease: Lease) -> str | None:
    """What keeps a step that runs from its end, as far as the server knows."""
    if lease.spec.cancel:
        return "to be cancelled: its end is not known yet"
    if lease.state != "recovering" or lease.status is None:
        return None
    return f"its worker is away since {lease.status.recovering_at}"


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
