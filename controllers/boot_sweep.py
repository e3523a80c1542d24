"""The boot sweep: once, before the server listens, records that an earlier process left tell the
truth again.

Makes true: nothing says waiting, running or connected without an owner in this process. Reads
everything that is live; writes through plain moves, as no owner runs yet. It is safe to run twice,
and one bad record is a warning, never a refusal to start.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from datastore.alive import Lived
from datastore.clock import Clock, parse_stamp, stamp
from datastore.errors import DatastoreError
from datastore.history import build_story
from datastore.journal import Story
from datastore.kinds import (
    LEASES,
    PENDING,
    RUNS,
    STEPS,
    WORKERS,
    Counts,
    Lease,
    Outcome,
    Pending,
    Run,
    Step,
    StepSpec,
    StepStatus,
    Worker,
    is_given_up,
)
from datastore.kinds.probe import PROBES
from datastore.record import Kind, Record
from datastore.store import Store

log = logging.getLogger(__name__)

RESTART = "orchestrator restart"
NOT_OURS = (
    "ended at a start of the server: neither its journal nor its index knew of it any more, so"
    " nobody can tell how far it had come"
)
"""Of what only a file in `observed/` shows: both were removed, or somebody put the file there."""
PROCESS_ENDED = "the process of its command ended before it did"

_WORDS = {
    "recovering": ("lease recovering", "leases recovering"),
    "expired": ("lease expired", "leases expired"),
    "orphaned": ("pending dispatch orphaned", "pending dispatches orphaned"),
    "disconnected": ("worker disconnected", "workers disconnected"),
    "own": (
        "run ended with the process of its command",
        "runs ended with the processes of their commands",
    ),
    "local": ("step on the server failed", "steps on the server failed"),
    "foreign": (
        "live record that this server did not write ended",
        "live records that this server did not write ended",
    ),
}


@dataclass
class SweepReport:
    """What the sweep changed, by kind of change."""

    counts: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    ended_runs: list[str] = field(default_factory=list)
    """Runs that the sweep ended: nobody has told their end yet."""

    def summary(self) -> str | None:
        """One line with a count for each; None after a clean stop."""
        parts = [
            f"{count} {_WORDS[what][count != 1]}" for what in _WORDS if (count := self.counts[what])
        ]
        return f"Boot sweep: {', '.join(parts)}" if parts else None


class BootSweep:
    """One sweep over a store that nobody else writes yet."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        new_uid: Callable[[], str],
        *,
        foreign: Iterable[tuple[str, str]] = (),
        recover: bool = True,
        earlier: Lived | None = None,
    ) -> None:
        """`foreign`: folder and name of live records found on disk that no journal or index of
        ours vouches for; they are ended, never continued. Without `recover` leases end at once.
        `earlier`: until when the earlier process lived, so that waiting counts until then."""
        self._store = store
        self._now = stamp(clock.now())
        self._new_uid = new_uid
        self._foreign = set(foreign)
        self._recover = recover
        self._earlier = earlier or Lived(clock.now())
        self._over: dict[str, None] = {}
        """Foreign runs: they end last, as their stories tell how what belongs to them ended."""
        self.report = SweepReport()

    def run(self) -> SweepReport:
        """Sweep; workers first, runs before what belongs to them."""
        for worker in self._store.live(WORKERS):
            self._try(self._worker, worker)
        for run in self._store.live(RUNS):
            self._try(self._run, run)
        for pending in self._store.live(PENDING):
            self._try(self._pending, pending)
        for lease in self._store.live(LEASES):
            self._try(self._lease, lease)
        for step in self._store.live(STEPS):
            self._try(self._step, step)
        for name in self._over:
            self._try(self._foreign_run, self._store.get(RUNS, name))
        self._forget_probes()
        return self.report

    def _forget_probes(self) -> None:
        """Whoever asked for a probe has gone with the earlier process: nothing stays of it."""
        kinds: tuple[Kind[Any, Any], ...] = (PENDING, LEASES)
        self._store.commit(
            removals=[(k, name) for k in kinds for name in self._store.names_by(k, "run", PROBES)]
        )

    def run_of_commands(self) -> SweepReport:
        """End what commands without a server left; the rest waits for the next server."""
        for run in self._store.live(RUNS):
            if run.spec.own_process and (RUNS.folder, run.name) not in self._foreign:
                self._try(self._run, run)
        return self.report

    def _try(self, sweep: Callable[[Any], None], record: Record[Any, Any]) -> None:
        try:
            sweep(record)
        except (DatastoreError, ValueError) as error:
            warning = f"{record.kind.title} '{record.name}' could not be swept: {error}"
            self.report.warnings.append(warning)
            log.warning("%s", warning)

    def _is_foreign(self, record: Record[Any, Any]) -> bool:
        if (record.kind.folder, record.name) not in self._foreign:
            return False
        self.report.counts["foreign"] += 1
        return True

    def _change(self, record: Record[Any, Any], **changes: object) -> None:
        assert record.status is not None
        self._store.commit([record.with_status(record.status.model_copy(update=changes))])

    def _worker(self, worker: Worker) -> None:
        if not self._is_foreign(worker):
            self.report.counts["disconnected"] += 1
        gone = {"state": "disconnected", "draining": False, "disconnected_at": self._now}
        self._change(worker, **gone)

    def _run(self, run: Run) -> None:
        if self._is_foreign(run):
            if run.status is None:
                self._store.commit(removals=[(RUNS, run.name)])
            else:
                self._over[run.name] = None
        elif run.spec.own_process:
            self._run_of_command(run)

    def _run_of_command(self, run: Run) -> None:
        """Its steps died with the process, and nobody is there who waits for its end."""
        steps = self._store.by(STEPS, "run", run.name)
        failed = {step.name: _failed(step, PROCESS_ENDED, self._now) for step in steps if step.live}
        steps = tuple(failed.get(step.name, step) for step in steps)
        failure = (run.spec.cancel and run.spec.cancel_reason) or PROCESS_ENDED
        ended = _ended(run, "cancelled" if run.spec.cancel else "failed", failure, steps, self._now)
        story = Story(run.spec.workflow, run.name, build_story(ended, steps, (), ()))
        self._store.commit([*failed.values(), ended], story=story)
        self.report.counts["own"] += 1
        self.report.ended_runs.append(run.name)

    def _foreign_run(self, run: Run) -> None:
        """What belongs to it has ended; a step that never got further than waiting is cancelled."""
        steps = {step.name: step for step in self._store.by(STEPS, "run", run.name)}
        pendings = self._store.by(PENDING, "run", run.name)
        leases = self._store.by(LEASES, "run", run.name)
        in_order = sorted(pendings, key=lambda pending: pending.spec.episode)
        waited = {
            step.name: step
            for step in (_cancelled(one, self._new_uid(), self._now) for one in in_order)
            if step.name not in steps
        }
        ended = _ended(run, "failed", NOT_OURS, [*steps.values(), *waited.values()], self._now)
        story = None
        # Nobody vouches for its times: with one that is none there is no story.
        with suppress(ValueError):
            text = build_story(ended, [*steps.values(), *waited.values()], pendings, leases)
            story = Story(run.spec.workflow, run.name, text)
        self._store.commit([*waited.values(), ended], story=story)
        self.report.ended_runs.append(run.name)

    def _pending(self, pending: Pending) -> None:
        foreign = self._is_foreign(pending)
        if pending.status is None:
            # Not looked at yet: nothing was said about it, so it goes on if it is ours.
            if foreign or not self._run_is_live(pending.spec.run):
                self._store.commit(removals=[(PENDING, pending.name)])
            return
        if not foreign:
            self.report.counts["orphaned"] += 1
        waited_s = self._earlier.waited_s(parse_stamp(pending.status.queued_at))
        self._change(
            pending,
            state="orphaned",
            ended_at=self._now,
            waited_s=round(waited_s, 3),
            reason=NOT_OURS if foreign else RESTART,
        )

    def _lease(self, lease: Lease) -> None:
        if self._is_foreign(lease):
            self._change(lease, state="expired", ended_at=self._now, reason=NOT_OURS)
        elif self._recover and (is_given_up(lease) or self._run_is_live(lease.spec.run)):
            self.report.counts["recovering"] += 1
            if lease.state != "recovering":
                self._change(lease, state="recovering", recovering_at=self._now)
        else:
            self.report.counts["expired"] += 1
            self._change(lease, state="expired", ended_at=self._now, reason=RESTART)

    def _step(self, step: Step) -> None:
        assert step.status is not None
        foreign = self._is_foreign(step)
        here = step.status.state == "running" and step.status.worker is None
        if not foreign and not here and self._run_is_live(step.spec.run):
            return
        if not foreign:
            self.report.counts["local"] += 1
        error = NOT_OURS if foreign else f"{RESTART}: it ran on the server itself"
        self._store.commit([_failed(step, error, self._now)])

    def _run_is_live(self, name: str) -> bool:
        run = self._store.find(RUNS, name)
        return run is not None and run.live and name not in self._over


def _failed(step: Step, error: str, now: str) -> Step:
    assert step.status is not None
    outcome = Outcome(ok=False, reason="orchestrator_restart", error=error)
    changes = {"state": "failed", "ended_at": now, "error": error, "outcome": outcome}
    return step.with_status(step.status.model_copy(update=changes))


def _cancelled(pending: Pending, uid: str, now: str) -> Step:
    """The step that was asked for, at its end."""
    asked = pending.spec
    what = StepSpec(
        run=asked.run,
        workflow=asked.workflow,
        job=asked.job,
        step=asked.step,
        call=asked.call,
        placement=asked.placement,
    )
    waited_s = asked.waited_before_s + ((pending.status and pending.status.waited_s) or 0.0)
    status = StepStatus(
        state="cancelled",
        ended_at=now,
        episodes=asked.episode,
        waited_s=round(waited_s, 3),
        error=NOT_OURS,
    )
    name = pending.name.rpartition(".")[0]
    return Record(STEPS, name, uid, pending.created_at, what, status, owner=asked.run)


def _ended(run: Run, state: str, failure: str, steps: Sequence[Step], now: str) -> Run:
    """The run at its end, with the counts of these steps; what never started is cancelled."""
    assert run.status is not None
    counts = Counter(str(step.state) for step in steps)
    total = max(run.status.counts.total, len(steps))
    counts["cancelled"] += total - len(steps)
    states = {"running": "failed", "pending": "skipped"}
    changes = {
        "state": state,
        "ended_at": now,
        "duration_ms": _passed_ms(run.status.started_at, now),
        "failure": failure,
        "counts": Counts(total=total, **counts),
        "jobs": {job: states.get(was, was) for job, was in run.status.jobs.items()},
    }
    return run.with_status(run.status.model_copy(update=changes))


def _passed_ms(start: str, end: str) -> int | None:
    """None where the start is no time: the record may be anybody's."""
    try:
        passed = parse_stamp(end) - parse_stamp(start)
    except ValueError:
        return None
    return max(0, round(passed.total_seconds() * 1000))
