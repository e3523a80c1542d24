"""The story of a finished run: one YAML file, written once, that says what happened and why.

`git log`, `git grep` and `git diff` over `history/` are meant to answer questions, so the order
is stable, everything unsaid is left out, and output is cut to the tail of what failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from datastore.clock import parse_stamp
from datastore.kinds import Lease, Outcome, Pending, Run, Step
from datastore.record import API_VERSION
from datastore.yaml_emitter import emit_readable

TAIL_LINES = 20
TAIL_BYTES = 2048


def build_story(
    run: Run, steps: Iterable[Step], pendings: Iterable[Pending], leases: Iterable[Lease]
) -> str:
    """The story of `run` as YAML. All records must be the run's own."""
    waits: dict[tuple[str, str], list[Pending]] = {}
    for pending in sorted(pendings, key=lambda found: found.spec.episode):
        waits.setdefault((pending.spec.job, pending.spec.step), []).append(pending)
    placed = {lease.name: lease for lease in leases}
    jobs: dict[str, list[dict[str, Any]]] = {}
    cancelled = 0
    for step in sorted(steps, key=_order):
        episodes = waits.get((step.spec.job, step.spec.step), [])
        jobs.setdefault(step.spec.job, []).append(_step(step, episodes, placed))
        cancelled += step.state == "cancelled"
    # A run must come to its end whatever its records hold.
    return emit_readable({**_head(run, cancelled), "jobs": _jobs(run, jobs)})


def _head(run: Run, cancelled: int) -> dict[str, Any]:
    """`cancelled`: steps in that state that are listed. Of the others there are no records."""
    shown: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "RunStory",
        "run": run.name,
        "workflow": run.spec.workflow,
        "state": run.state,
    }
    if run.status is not None:
        shown["startedAt"] = run.status.started_at
        shown["endedAt"] = run.status.ended_at
        shown["durationMs"] = run.status.duration_ms
        shown["failure"] = run.status.failure
        if run.state == "cancelled":
            shown["neverStarted"] = max(0, run.status.counts.cancelled - cancelled) or None
    return _said({**shown, "inputs": run.spec.inputs})


def _jobs(run: Run, steps: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Jobs as the run lists them, then those that only their steps know."""
    states = run.status.jobs if run.status is not None else {}
    names = dict.fromkeys((*states, *steps))
    return [
        _said({"name": name, "state": states.get(name), "steps": steps.get(name)}) for name in names
    ]


def _step(step: Step, episodes: list[Pending], leases: dict[str, Lease]) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": step.spec.step, "state": step.state}
    status = step.status
    if status is not None:
        outcome = status.outcome
        shown["worker"] = status.worker
        shown["startedAt"] = status.started_at
        shown["endedAt"] = status.ended_at
        shown["durationMs"] = (
            outcome.duration_ms if outcome else _between_ms(status.started_at, status.ended_at)
        )
        shown["waitedS"] = round(status.waited_s, 3) or None
        shown["allowedFailure"] = status.allowed_failure or None
        shown["error"] = status.error
        shown |= _outcome(outcome) if outcome else {}
        shown["outputs"] = [one.document() for one in status.outputs or ()]
    shown["episodes"] = [_episode(pending, leases.get(pending.name)) for pending in episodes]
    return _said(shown)


def _episode(pending: Pending, lease: Lease | None) -> dict[str, Any]:
    """One wait: why, how long, which worker took it, and how that ended."""
    shown: dict[str, Any] = {"state": pending.state}
    if pending.status is not None:
        shown["reason"] = pending.status.reason
        shown["waitedS"] = round(pending.status.waited_s or 0.0, 3) or None
        shown["worker"] = pending.status.worker
    if lease is not None:
        shown["worker"] = lease.spec.worker
        shown["lease"] = lease.state
        shown["leaseReason"] = lease.status.reason if lease.status is not None else None
    return _said(shown)


def _outcome(outcome: Outcome) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "exitCode": outcome.exit_code,
        "signal": outcome.signal,
        "reason": outcome.reason,
    }
    if not outcome.ok:
        shown |= {"stderr": tail(outcome.stderr), "stdout": tail(outcome.stdout)}
    if outcome.error:
        shown["error"] = outcome.error
    return shown


def tail(text: str) -> str:
    """The last TAIL_LINES lines of `text`, and of those the last TAIL_BYTES bytes."""
    lines = "".join(text.splitlines(keepends=True)[-TAIL_LINES:])
    # Cut inside a character, the rest of it would not be UTF-8.
    return lines.encode(errors="replace")[-TAIL_BYTES:].decode(errors="ignore")


def _said(shown: dict[str, Any]) -> dict[str, Any]:
    """Without what there is nothing to say about; zeros and falsehoods stay."""
    return {key: value for key, value in shown.items() if value not in (None, "", [], {})}


def _order(step: Step) -> tuple[str, str]:
    """By start, then name; steps that never started last."""
    started_at = step.status.started_at if step.status is not None else None
    return started_at or "~", step.name


def _between_ms(start: str | None, end: str | None) -> int | None:
    if start is None or end is None:
        return None
    # 0 where the clock was set back meanwhile.
    return max(0, round((parse_stamp(end) - parse_stamp(start)).total_seconds() * 1000))
