"""What the server measures while it runs: from changes of records, so that no controller is asked.

It must cost a step next to nothing: a few lookups per change of a lease. Outcomes are counted once
they are durable, like everything that leaves the process.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar

from datastore.journal_measures import JournalMeasures
from datastore.kinds import LEASES, PENDING, RUNS, STEPS, WORKERS, Lease, Step, Worker
from datastore.kinds.dispatch_name import is_probe
from datastore.meter import About, Counter, Histogram, Instrument
from datastore.store import Store
from swamp.protocol import FromWorker, ResultFrame
from swamp.serve.spans import CANCELLED, Enrolling, Moments, Settled, Spans, outcome_of
from swamp.traces import Traces

LAG_EVERY_S = 0.5
"""How often the event loop is tested."""

_ENROLLING: ContextVar[Enrolling | None] = ContextVar("enrolling", default=None)
"""The enrollment that this task carries out: each has a task of its own."""


class Observer:
    """Counts and times what happens. `traces` None: no spans are made."""

    def __init__(
        self, store: Store, journal: JournalMeasures, traces: Traces | None = None
    ) -> None:
        self._store = store
        self._journal = journal
        self._spans = None if traces is None else Spans(traces)
        self._moments = {lease.name: Moments() for lease in store.live(LEASES)}
        self._live = {run.name for run in store.live(RUNS)}
        self._live.update(pending.name for pending in store.live(PENDING))
        self._queue_wait = Histogram(
            About("swamp_queue_wait_seconds", "How long a placed step waited for its worker.")
        )
        self._settle = Histogram(
            About("swamp_settle_seconds", "From a result's arrival until its outcome is durable.")
        )
        ends = [state for state in LEASES.moves if state and state not in LEASES.live_states]
        self._leases = Counter(
            About("swamp_leases_total", "Leases that have ended, by their outcome.", ("outcome",)),
            known=[(state,) for state in sorted({*ends, CANCELLED})],
        )
        self._reconnects = Counter(
            About("swamp_worker_reconnects_total", "Enrollments of workers that were known before.")
        )
        self._enrollment = Histogram(
            About(
                "swamp_enrollment_seconds",
                "From a worker's introduction until its record is durable.",
                ("lookup",),
            )
        )
        self._lag = Histogram(
            About("swamp_event_loop_lag_seconds", "How late the event loop came to a timer.")
        )
        store.watch(LEASES, self._lease_changed)
        store.watch(WORKERS, self._worker_changed)
        if self._spans is not None:
            store.watch(PENDING, self._pending_changed)
            store.watch(STEPS, self._step_changed)
            store.watch(RUNS, self._run_changed)

    def instruments(self) -> list[Instrument]:
        """Everything that is measured here and in the journal."""
        journal = self._journal
        return [
            self._queue_wait, self._settle, self._leases, self._reconnects, self._enrollment,
            journal.records, journal.wait, journal.write, self._lag,
        ]  # fmt: skip

    async def watch_loop(self) -> None:
        """Test the event loop until cancelled."""
        while True:
            due_s = time.monotonic() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._lag.observe(max(0.0, time.monotonic() - due_s))

    # -- leases ----------------------------------------------------------------------------------

    def received(self, frame: FromWorker) -> None:
        """A frame came from a worker; of interest is when each result did."""
        if isinstance(frame, ResultFrame):
            moments = self._moments.get(frame.dispatch)
            if moments is not None and moments.received_s is None:
                moments.received_s = time.monotonic()

    def _lease_changed(self, name: str) -> None:
        lease = self._store.find(LEASES, name)
        if lease is None:
            return
        if lease.live and name not in self._moments:
            self._bound(lease)
        elif not lease.live and name in self._moments:
            moments, committed_s = self._moments.pop(name), time.monotonic()
            self._store.after_barrier(lambda: self._settled(lease, moments, committed_s))

    def _bound(self, lease: Lease) -> None:
        moments = self._moments[lease.name] = Moments()
        pending = self._store.find(PENDING, lease.name)
        if pending is not None and pending.status is not None and not is_probe(lease.name):
            self._queue_wait.observe(pending.status.waited_s or 0.0)

        def durable() -> None:
            moments.durable_s = time.monotonic()

        if self._spans is not None:
            self._store.after_barrier(durable)

    def _settled(self, lease: Lease, moments: Moments, committed_s: float) -> None:
        """The end of the lease is on disk."""
        if is_probe(lease.name) or lease.status is None:
            return
        now_s = time.monotonic()
        self._leases.add(outcome_of(lease.status))
        if moments.received_s is not None:
            self._settle.observe(now_s - moments.received_s)
        if self._spans is not None:
            pending = self._store.find(PENDING, lease.name)
            settled = Settled(committed_s, now_s, self._journal.acknowledged)
            self._spans.lease(lease, pending, moments, settled)

    # -- enrollments -----------------------------------------------------------------------------

    def enrolling(self) -> Enrolling:
        """A worker introduces itself to this task."""
        enrolling = Enrolling(time.monotonic())
        _ENROLLING.set(enrolling)
        return enrolling

    def _worker_changed(self, name: str) -> None:
        enrolling = _ENROLLING.get()
        worker = self._store.find(WORKERS, name) if enrolling is not None else None
        if enrolling is None or worker is None or worker.status is None:
            return
        _ENROLLING.set(None)
        enrolling.committed_s = time.monotonic()
        self._store.after_barrier(lambda: self._enrolled(worker, enrolling))

    def _enrolled(self, worker: Worker, enrolling: Enrolling) -> None:
        """The worker's record is on disk."""
        assert worker.status is not None
        known = worker.created_at != worker.status.enrolled_at
        lookup = "direct" if enrolling.files_read else "memory" if known else "miss"
        now_s = time.monotonic()
        self._enrollment.observe(now_s - enrolling.began_s, lookup)
        if known:
            self._reconnects.add()
        if self._spans is not None:
            self._spans.enrollment(worker, lookup, enrolling, now_s)

    # -- for spans alone -------------------------------------------------------------------------

    def _pending_changed(self, name: str) -> None:
        pending = self._store.find(PENDING, name)
        if pending is None or is_probe(name):
            self._live.discard(name)
        elif pending.live:
            self._live.add(name)
        elif name in self._live:
            self._live.discard(name)
            if self._spans is not None and pending.state != "dispatched":
                spans = self._spans
                self._store.after_barrier(lambda: spans.wait_in_vain(pending))

    def _step_changed(self, name: str) -> None:
        step = self._store.find(STEPS, name)
        if step is not None and not step.live and self._spans is not None:
            spans, asked_at = self._spans, self._asked_at(step)
            self._store.after_barrier(lambda: spans.step(step, asked_at))

    def _asked_at(self, step: Step) -> str | None:
        """When it first asked for a worker; the record of that may be gone after restarts."""
        latest = step.status.episodes if step.status is not None else 0
        first = self._store.find(PENDING, f"{step.name}.1")
        first = first or self._store.find(PENDING, f"{step.name}.{latest}")
        return None if first is None else first.spec.asked_at or first.created_at

    def _run_changed(self, name: str) -> None:
        run = self._store.find(RUNS, name)
        if run is not None and run.live:
            self._live.add(name)
        elif name in self._live and self._spans is not None:
            self._live.discard(name)
            spans = self._spans
            if run is not None:
                self._store.after_barrier(lambda: spans.run(run))
