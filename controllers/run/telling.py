"""The events of runs, jobs and steps: told once, in order, and told again after a restart.

Every event has a key, so telling twice is safe; a log that lost its last lines is completed from
the records.
"""

from __future__ import annotations

import asyncio
from typing import Any

from controllers.ports import RunEvents
from controllers.requirement import describe
from controllers.run.graph import JobChange, StepKey
from controllers.run.live import LiveRun
from datastore.clock import Clock, parse_stamp
from datastore.kinds import PENDING, STEPS, Lease, Pending, Run, StepStatus
from datastore.record import Kind
from datastore.store import Store

READ_AT_ONCE = 200
"""Records of an earlier process that are parsed at once, so that others get their turn."""


def last_event(run: Run) -> dict[str, Any] | None:
    """The last event of a run that is over, for who follows one whose log lacks it."""
    if run.live or run.status is None:
        return None
    at, name = run.status.ended_at or run.status.started_at, "run_completed"
    return {"at": at, "kind": name, "run": run.name, **_end(run), "key": name}


def _end(run: Run) -> dict[str, Any]:
    status = run.status
    assert status is not None
    return {"status": status.state, "durationMs": status.duration_ms, "failure": status.failure}


class RunTeller:
    """Emits; every method is a plain `def`."""

    def __init__(self, store: Store, clock: Clock, events: RunEvents) -> None:
        self._store = store
        self._clock = clock
        self._events = events

    def run_started(self, live: LiveRun) -> None:
        """The run is under way."""
        self._events.emit(
            live.run,
            "run_started",
            "run_started",
            workflow=live.workflow.name,
            jobs=[job.name for job in live.workflow.jobs],
        )

    def run_ended(self, run: Run) -> None:
        """The run's record is final; nothing follows."""
        self._events.emit(run.name, "run_completed", "run_completed", **_end(run))

    def jobs(self, live: LiveRun) -> None:
        """Jobs that started or ended since the last call."""
        while (change := live.graph.take_change()) is not None:
            self._job(live, change)

    def _job(self, live: LiveRun, change: JobChange) -> None:
        now = self._clock.now()
        job = change.job
        if change.state == "running":
            began = live.recorded.pop(job, None)
            live.job_started[job] = now if began is None else parse_stamp(began)
            self._events.emit(live.run, f"job_started/{job}", "job_started", job=job)
            return
        if change.state == "skipped":
            self._events.emit(
                live.run, f"job_ended/{job}", "job_skipped", job=job, reason=change.reason
            )
            return
        passed = now - live.job_started.get(job, live.started)
        self._events.emit(
            live.run,
            f"job_ended/{job}",
            "job_completed",
            job=job,
            status=change.state,
            durationMs=max(0, round(passed.total_seconds() * 1000)),
        )

    async def first_jobs(self, live: LiveRun) -> None:
        """As `jobs`, at the first look: an earlier process may have started some of them."""
        kinds: tuple[Kind[Any, Any], ...] = (PENDING, STEPS)
        for kind in kinds:
            for number, name in enumerate(self._store.names_by(kind, "run", live.run), 1):
                found = self._store.find(kind, name)
                if found is not None:
                    job = found.spec.job
                    at = getattr(found.spec, "asked_at", None) or found.created_at
                    live.recorded[job] = min(at, live.recorded.get(job, at))
                if number % READ_AT_ONCE == 0:
                    await asyncio.sleep(0)
        self.jobs(live)


class StepTeller:
    """The events of steps; told where their records are looked at."""

    def __init__(self, events: RunEvents) -> None:
        self._events = events

    def started(self, live: LiveRun, key: StepKey, model: str, method: str) -> None:
        """The step has become ready; it may have to wait now."""
        self._emit(
            live, f"started/{key[0]}/{key[1]}", "step_started", key, model=model, method=method
        )

    def held(self, live: LiveRun, key: StepKey, reason: str) -> None:
        """The orchestrator cannot run the step itself yet: its model is held."""
        self._emit(live, f"held/{key[0]}/{key[1]}", "step_waiting", key, reason=reason)

    def refused(self, live: LiveRun, key: StepKey, reason: str) -> None:
        """The step cannot be opened or planned just now; once per step."""
        self._emit(live, f"refused/{key[0]}/{key[1]}", "step_waiting", key, reason=reason)

    def queued(self, live: LiveRun, key: StepKey, pending: Pending, lost: str | None) -> None:
        """Nobody could take the step; once per episode, then whenever the reason has changed.

        `lost` is why the episode before ended, if there was one.
        """
        status = pending.status
        assert status is not None
        if status.reason_changes:
            event = f"waiting/{pending.name}/{status.reason_changes}"
            self._emit(
                live, event, "step_waiting", key, reason=status.reason, dispatch=pending.name
            )
            return
        self._emit(
            live,
            f"queued/{pending.name}",
            "step_queued",
            key,
            requirement=describe(pending.spec.placement),
            reason=status.reason,
            dispatch=pending.name,
            episode=pending.spec.episode,
            **_why(lost),
        )

    def dispatched(self, live: LiveRun, key: StepKey, lease: Lease, lost: str | None) -> None:
        """A worker has accepted the step; `lost` as above."""
        self._emit(
            live,
            f"dispatched/{lease.name}",
            "step_dispatched",
            key,
            worker=lease.spec.worker,
            dispatch=lease.name,
            **_why(lost),
        )

    def skipped(self, live: LiveRun, key: StepKey, reason: str) -> None:
        """The step will not run."""
        self._emit(live, f"ended/{key[0]}/{key[1]}", "step_skipped", key, reason=reason)

    def ended(self, live: LiveRun, key: StepKey, status: StepStatus, duration_ms: int) -> None:
        """The step's record is final."""
        kind = {"succeeded": "step_completed", "cancelled": "step_cancelled"}.get(
            status.state, f"step_{status.state}"
        )
        fields: dict[str, Any] = {}
        if status.state == "skipped":
            fields["reason"] = status.error
        else:
            fields["durationMs"] = duration_ms
            fields["worker"] = status.worker
        if status.state == "cancelled" and not live.cancelled:
            fields["error"] = status.error
        if status.state == "failed":
            fields["error"] = status.error
            fields["reason"] = _reason(status)
            fields["allowedFailure"] = status.allowed_failure
        self._emit(live, f"ended/{key[0]}/{key[1]}", kind, key, **fields)

    def _emit(self, live: LiveRun, event: str, kind: str, key: StepKey, **fields: Any) -> None:
        self._events.emit(live.run, event, kind, job=key[0], step=key[1], **fields)


def _reason(status: StepStatus) -> str:
    """Why a step has failed, in one word."""
    if status.outcome is not None:
        return status.outcome.reason
    # Of an earlier episode it is where the last one came to nothing.
    _, _, episode = (status.dispatch or "").rpartition(".")
    return "worker_lost" if episode == str(status.episodes) else "not_started"


def _why(lost: str | None) -> dict[str, str]:
    return {} if lost is None else {"lost": lost}
