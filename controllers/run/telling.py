"""The events of runs and their jobs: told once, in order, and told again after a restart.

Every event has a key, so telling twice is safe; a log that lost its last lines is completed from
the records. The events of steps are told where their records are written (`steps`).
"""

from __future__ import annotations

from datetime import datetime

from controllers.ports import RunEvents
from controllers.run.graph import JobChange
from controllers.run.live import LiveRun
from datastore.clock import Clock, parse_stamp
from datastore.kinds import PENDING, STEPS, Run
from datastore.store import Store


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
        assert run.status is not None
        self._events.emit(
            run.name,
            "run_completed",
            "run_completed",
            status=run.status.state,
            durationMs=run.status.duration_ms,
            failure=run.status.failure,
        )

    def jobs(self, live: LiveRun) -> None:
        """Jobs that started or ended since the last call."""
        while (change := live.graph.take_change()) is not None:
            self._job(live, change)

    def _job(self, live: LiveRun, change: JobChange) -> None:
        now = self._clock.now()
        job = change.job
        if change.state == "running":
            live.job_started[job] = self._began(live, job) or now
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
            durationMs=round(passed.total_seconds() * 1000),
        )

    def _began(self, live: LiveRun, job: str) -> datetime | None:
        """When a job's first step was recorded, if an earlier process had started it."""
        pendings = self._store.by(PENDING, "run", live.run)
        steps = self._store.by(STEPS, "run", live.run)
        seen = [one.created_at for one in pendings if one.spec.job == job]
        seen += [one.created_at for one in steps if one.spec.job == job]
        return parse_stamp(min(seen)) if seen else None
