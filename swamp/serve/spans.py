"""The server's spans, made when something has ended: from its records and a few moments beside.

Nothing is noted for them on the way that is not there anyway, so they cost nothing while traces are
off. The shape of a run's trace: run → step → queue, placement, dispatch, execution and settlement
of each episode; settlement → result receipt, journal wait, journal write. Times in records are cut
to milliseconds; the moments are exact. A run and a step last until their end is on disk, as what is
inside of them does: no span of the server reaches out of its parent.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from datastore.clock import parse_stamp
from datastore.journal_measures import Transaction
from datastore.kinds import Lease, LeaseStatus, Outcome, Pending, Run, Step, Worker
from swamp.traces import EXECUTION, RUN, STEP, Attribute, Span, Traces, span_of, trace_of

CANCELLED = "cancelled"
"""The reason, and the outcome, of what somebody has cancelled."""


@dataclass(slots=True)
class Moments:
    """What only this process knows of a lease. Seconds of the monotonic clock."""

    durable_s: float | None = None
    """Its binding was on disk, so that the dispatch could be sent."""
    received_s: float | None = None
    """Its result came."""


@dataclass(frozen=True, slots=True)
class Settled:
    """When the end of a lease was in memory, and on disk with this transaction."""

    committed_s: float
    durable_s: float
    transaction: Transaction | None


@dataclass(slots=True)
class Enrolling:
    """One enrollment, as far as it has come. Seconds of the monotonic clock."""

    began_s: float
    files_read: int = 0
    looked_s: float = 0.0
    """The token's desired file had been looked at."""
    committed_s: float = 0.0

    def looked(self, files_read: int) -> None:
        """The token's desired file was looked at; how often it had to be read."""
        self.files_read, self.looked_s = files_read, time.monotonic()


def outcome_of(status: LeaseStatus) -> str:
    """How a lease has ended, for those who count; one that was cancelled has not failed."""
    is_cancelled = status.state == "failed" and status.reason == CANCELLED
    return CANCELLED if is_cancelled else status.state


class Spans:
    """Makes spans of what has ended."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    def run(self, run: Run) -> None:
        """The whole run; its end is on disk just now."""
        assert run.status is not None
        made = _Maker(run.name, {"swamp.run": run.name, "swamp.workflow": run.spec.workflow})
        failure = run.status.failure or run.status.state
        error = None if run.status.state == "succeeded" else failure
        times = (_ns(run.created_at), _just_now_ns(run.status.ended_at or run.created_at))
        more = {"swamp.outcome": run.status.state}
        self._traces.emit(made.of(RUN, None, run.name, times, more, error))

    def step(self, step: Step, asked_at: str | None) -> None:
        """A step from its first wait, if it had one, to its end, which is on disk just now."""
        spec, status = step.spec, step.status
        assert status is not None
        made = _Maker(spec.run, _of_step(spec.run, spec.workflow, spec.job, spec.step))
        begins = [step.created_at, status.started_at, asked_at]
        start = min(_ns(one) for one in begins if one)
        error = (status.error or status.state) if status.state in ("failed", "cancelled") else None
        more: dict[str, Attribute] = {
            "swamp.episodes": status.episodes, "swamp.outcome": status.state,
            **_reason(status.outcome),
        }  # fmt: skip
        parent = span_of(spec.run, RUN)
        times = (start, _just_now_ns(status.ended_at or step.created_at))
        self._traces.emit(made.of(STEP, parent, step.name, times, more, error))

    def wait_in_vain(self, pending: Pending) -> None:
        """An episode of waiting that ended without a lease."""
        assert pending.status is not None
        end = _ns(pending.status.ended_at or pending.created_at)
        reason = pending.status.reason or pending.status.state
        self._traces.emit(_queue(_maker_of(pending), pending, end, reason))

    def lease(
        self, lease: Lease, pending: Pending | None, moments: Moments, settled: Settled
    ) -> None:
        """Everything from the wait for a worker to the settled end."""
        status = lease.status
        assert status is not None
        made = _maker_of(lease, lease.spec.worker)
        bound, active = _ns(status.bound_at), _ns(status.active_at or status.ended_at)
        clock = _WallClock()
        sent = bound if moments.durable_s is None else clock.at_ns(moments.durable_s)
        ended = moments.received_s if moments.received_s is not None else settled.committed_s
        step, error = _step_span(lease.name), None
        if status.state != "completed":
            error = status.reason or status.state
        if pending is not None:
            self._traces.emit(_queue(made, pending, bound))
        self._traces.emit(made.of("placement", step, lease.name, (bound, sent)))
        never_ran = error if status.active_at is None else None
        self._traces.emit(
            made.of("dispatch", step, lease.name, (sent, max(sent, active)), error=never_ran)
        )
        if status.active_at is not None:
            more: dict[str, Attribute] = {
                "swamp.outcome": outcome_of(status), **_reason(status.outcome)
            }  # fmt: skip
            if status.outcome is not None and status.outcome.exit_code is not None:
                more["process.exit_code"] = status.outcome.exit_code
            times = (active, clock.at_ns(ended))
            self._traces.emit(made.of(EXECUTION, step, lease.name, times, more, error))
        self._settlement(made, lease.name, moments, settled, clock)

    def _settlement(
        self, made: _Maker, name: str, moments: Moments, settled: Settled, clock: _WallClock
    ) -> None:
        committed = clock.at_ns(settled.committed_s)
        received = committed if moments.received_s is None else clock.at_ns(moments.received_s)
        times = (received, clock.at_ns(settled.durable_s))
        self._traces.emit(made.of("settlement", _step_span(name), name, times))
        parent = span_of(name, "settlement")
        if moments.received_s is not None:
            self._traces.emit(made.of("result_receipt", parent, name, (received, committed)))
        if settled.transaction is not None:
            # The writer may be quicker than we who look at the clock once we have committed.
            began = max(committed, clock.at_ns(settled.transaction.began_s))
            written = clock.at_ns(settled.transaction.ended_s)
            self._traces.emit(made.of("journal_wait", parent, name, (committed, began)))
            self._traces.emit(made.of("journal_write", parent, name, (began, written)))

    def enrollment(
        self, worker: Worker, lookup: str, enrolling: Enrolling, durable_s: float
    ) -> None:
        """How a worker came in: a trace of its own, as it belongs to no run."""
        assert worker.status is not None
        trace, own = uuid.uuid4().int, span_of(worker.status.instance, f"{enrolling.began_s}")
        attributes: dict[str, Attribute] = {
            "swamp.worker": worker.name,
            "swamp.token": worker.status.token,
            "swamp.lookup": lookup,
            "swamp.files_read": enrolling.files_read,
            "swamp.lookup_s": enrolling.looked_s - enrolling.began_s,
            "swamp.lock_wait_s": enrolling.committed_s - enrolling.looked_s,
            "swamp.save_s": durable_s - enrolling.committed_s,
        }
        clock = _WallClock()
        start, end = clock.at_ns(enrolling.began_s), clock.at_ns(durable_s)
        self._traces.emit(Span("swamp.enrollment", trace, own, None, start, end, attributes))


@dataclass(frozen=True, slots=True)
class _Maker:
    """What spans of one run have in common."""

    run: str
    attributes: Mapping[str, Attribute]

    def of(
        self,
        part: str,
        parent: int | None,
        name: str,
        times_ns: tuple[int, int],
        more: Mapping[str, Attribute] | None = None,
        error: str | None = None,
    ) -> Span:
        """The span of this part of a run, step or dispatch called `name`."""
        attributes = {**self.attributes, **(more or {})}
        start, end = times_ns
        return Span(
            f"swamp.{part}", trace_of(self.run), span_of(name, part), parent, start,
            max(start, end), attributes, error,
        )  # fmt: skip


def _maker_of(record: Lease | Pending, worker: str | None = None) -> _Maker:
    spec = record.spec
    attributes = _of_step(spec.run, spec.workflow, spec.job, spec.step)
    attributes["swamp.dispatch"] = record.name
    if worker is not None:
        attributes["swamp.worker"] = worker
    return _Maker(spec.run, attributes)


def _of_step(run: str, workflow: str, job: str, step: str) -> dict[str, Attribute]:
    return {
        "swamp.run": run, "swamp.workflow": workflow, "swamp.job": job, "swamp.step": step,
    }  # fmt: skip


def _queue(made: _Maker, pending: Pending, end_ns: int, error: str | None = None) -> Span:
    """The wait of one episode, with why it was long."""
    more: dict[str, Attribute] = {}
    if pending.status is not None and pending.status.reason is not None:
        more["swamp.reason"] = pending.status.reason
    times = (_ns(pending.created_at), end_ns)
    return made.of("queue", _step_span(pending.name), pending.name, times, more, error)


def _step_span(dispatch: str) -> int:
    """The span of the step that a dispatch is an episode of."""
    return span_of(dispatch.rpartition(".")[0], STEP)


def _ns(stamp: str | None) -> int:
    """Nanoseconds of a time in a record."""
    assert stamp is not None
    return round(parse_stamp(stamp).timestamp() * 1000) * 1_000_000


def _just_now_ns(stamp: str) -> int:
    """The wall time, nanoseconds, at which an end of that time is on disk, which is now."""
    return max(_ns(stamp), time.time_ns())


def _reason(outcome: Outcome | None) -> dict[str, Attribute]:
    """Why an execution did not succeed, in the word that its worker's span has for it."""
    return {} if outcome is None or outcome.ok else {"swamp.reason": outcome.reason}


class _WallClock:
    """Makes moments of the monotonic clock wall time, all of them by the same difference."""

    def __init__(self) -> None:
        # In this order: a pause in between must not move moments into the future.
        self._ahead_ns = time.time_ns() - int(time.monotonic() * 1e9)

    def at_ns(self, moment_s: float) -> int:
        """The wall time of a moment, nanoseconds."""
        return self._ahead_ns + int(moment_s * 1e9)
