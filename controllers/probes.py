"""Probes: a worker is shown to work, end to end, on the very path that steps take.

A probe is a dispatch: a pending one that the scheduler answers with a lease, so that it takes a
slot and counts once, like a step's. It belongs to no run. Its records go in the same commit that
takes its verdict into the worker's record, and those of an earlier process with the boot sweep; who
waits for a probe is known in memory alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from controllers.placement import takes_probes
from controllers.ports import NothingHeard, ProbeEvidence, SessionInfo
from datastore.clock import Clock, stamp
from datastore.kinds import LEASES, PENDING, Call, Lease, Outcome, PendingSpec, Placement, Worker
from datastore.kinds.probe import (
    MARKER,
    PROBE_METHOD,
    PROBE_MODEL,
    PROBE_OUTPUT,
    PROBE_TYPE,
    PROBES,
)
from datastore.record import Kind, Record
from datastore.store import Store

SAID_MOST = 200
"""Characters of a failed runner's last line that are told."""

WAIT_S = 60.0
"""How long a probe that somebody waits for may wait for a slot."""

RUN_S = 30.0
"""How long its runner may take."""

MOST_URGENT = 1

LOST_AFTER_WRITE = "write-then-drop"
"""The reason of an outcome that is no result of the runner's: it had written, and was lost."""

REASON_MOST = 500
"""Characters of a probe's failure that a worker's record keeps."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe came to: `error` where its runner did not say how it went.

    The parts are None where nothing is known of them.
    """

    status: Literal["pass", "fail", "error"]
    platform: str | None = None
    arch: str | None = None
    marker_ok: bool | None = None
    output_ok: bool | None = None
    data_plane_ok: bool | None = None
    failures: tuple[str, ...] = ()
    error: str | None = None

    @property
    def reason(self) -> str:
        """Why it did not pass, in one line."""
        return self.error or "; ".join(self.failures)


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether workers are probed before they get steps, and what tells how probes went."""

    on_enroll: bool = False
    evidence: ProbeEvidence = field(default_factory=NothingHeard)


@dataclass
class _Probe:
    instance: str
    marker: str
    until_s: float
    """Until when it may wait for a slot, by the clock of the event loop."""
    dispatch: str
    verdict: asyncio.Future[Verdict]


@dataclass(frozen=True, slots=True)
class Ended:
    """A probe that is over: to be told once the records are gone and the worker knows."""

    instance: str
    verdict: Verdict
    records: tuple[tuple[Kind[Any, Any], str], ...]

    def shown_by(self, worker: Worker, now: datetime) -> Worker:
        """The worker after its probe. To be written in any case: it has a slot free again."""
        status, verdict = worker.status, self.verdict
        assert status is not None
        if status.instance != self.instance:
            return worker
        if verdict.status != "pass":
            log.warning("worker %s: its probe did not pass: %s", worker.name, verdict.reason)
            failure = {"verify_failure": verdict.reason[:REASON_MOST]}
            return worker.with_status(status.model_copy(update=failure))
        changes: dict[str, object] = {"verified_at": stamp(now), "verify_failure": None}
        if status.state == "unverified":
            changes["state"] = "connected"
        return worker.with_status(status.model_copy(update=changes))


class Probes:
    """The probes under way, at most one for each worker. Creates their pending dispatches."""

    def __init__(
        self, store: Store, clock: Clock, new_uid: Callable[[], str], evidence: ProbeEvidence
    ) -> None:
        self._store = store
        self._clock = clock
        self._new_uid = new_uid
        self._evidence = evidence
        self._of: dict[str, _Probe] = {}
        self._workers: dict[str, str] = {}

    def __contains__(self, worker: str) -> bool:
        return worker in self._of

    def workers(self) -> list[str]:
        """The workers with a probe under way."""
        return list(self._of)

    def worker_of(self, dispatch: str) -> str | None:
        """The worker that is probed by this dispatch."""
        return self._workers.get(dispatch)

    def start(self, worker: Worker, wait_s: float = math.inf) -> asyncio.Future[Verdict]:
        """Probe the worker, or join the probe that is under way; its verdict to come.

        `wait_s`: how long it may wait for a slot, or for a worker that refuses it.
        """
        known = self._of.get(worker.name)
        if known is not None:
            return known.verdict
        assert worker.status is not None
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        marker = self._new_uid()
        probe = _Probe(worker.status.instance, marker, until_s, "", loop.create_future())
        self._of[worker.name] = probe
        self._ask(worker.name, probe)
        return probe.verdict

    def look(self, worker: str, session: SessionInfo | None) -> Ended | None:
        """The probe of that worker if it is over; `tell` it once that is committed."""
        probe = self._of.get(worker)
        if probe is None:
            return None
        present = session is not None and session.instance == probe.instance
        pending = self._store.find(PENDING, probe.dispatch)
        lease = self._store.find(LEASES, probe.dispatch)
        if lease is not None and lease.live:
            return None
        if lease is None and pending is not None and pending.live:
            if not present and not pending.spec.cancel:
                self._store.commit([pending.with_spec(cancel=True)])
            return None
        verdict = None if lease is None else self._judged(probe, lease)
        if verdict is None and present and asyncio.get_running_loop().time() < probe.until_s:
            self._ask_again(worker, probe)
            return None
        last = lease or pending
        reason = last.status.reason if last and last.status else "its records are gone"
        return Ended(
            probe.instance,
            verdict or _error(f"nothing came of it: {reason}"),
            _records(probe.dispatch),
        )

    def tell(self, worker: str, ended: Ended) -> None:
        """The verdict is in the records: tell whoever waits for it."""
        probe = self._of.pop(worker)
        del self._workers[probe.dispatch]
        self._evidence.forget(probe.dispatch)
        if not probe.verdict.done():
            probe.verdict.set_result(ended.verdict)

    def leave(self, reason: str) -> None:
        """Nobody is waited for any more: this process stops."""
        for probe in self._of.values():
            if not probe.verdict.done():
                probe.verdict.set_result(_error(reason))

    # -- one probe -------------------------------------------------------------------------------

    def _ask(self, worker: str, probe: _Probe) -> None:
        """Create the pending dispatch that the scheduler will answer."""
        uid = self._new_uid()
        left_s = probe.until_s - asyncio.get_running_loop().time()
        probe.dispatch = f"{PROBES}.{uid}.1"
        self._workers[probe.dispatch] = worker
        spec = PendingSpec(
            run=PROBES,
            workflow="worker verify",
            job=PROBES,
            step=worker,
            episode=1,
            call=Call(
                model_type=PROBE_TYPE,
                model=PROBE_MODEL,
                method=PROBE_METHOD,
                arguments={MARKER: probe.marker, "outputs": [PROBE_OUTPUT]},
            ),
            placement=Placement(target=worker),
            priority=MOST_URGENT,
            wait_limit_s=None if left_s == math.inf else max(0.0, left_s),
            timeout_s=RUN_S,
            model_concurrency=0,
        )
        now = stamp(self._clock.now())
        self._store.commit(
            [Record(kind=PENDING, name=probe.dispatch, uid=uid, created_at=now, spec=spec)]
        )

    def _ask_again(self, worker: str, probe: _Probe) -> None:
        """The last dispatch has shown nothing, and another one may.

        A worker that has just come back may have lost it with its socket, or still be ending
        runners that nobody wants any more.
        """
        old = probe.dispatch
        del self._workers[old]
        self._evidence.forget(old)
        self._store.commit(removals=_records(old))
        self._ask(worker, probe)

    def _judged(self, probe: _Probe, lease: Lease) -> Verdict | None:
        """What the dispatch has shown; None where it was refused or lost, which shows nothing."""
        assert lease.status is not None
        outcome = lease.status.outcome
        if outcome is None or outcome.reason == LOST_AFTER_WRITE:
            return None
        wrote = lease.status.wrote_at is not None
        return judge(outcome, probe.marker, self._evidence.heard(probe.dispatch), wrote=wrote)


def judge(outcome: Outcome, marker: str, heard: str, *, wrote: bool) -> Verdict:
    """What the runner reported, held against what came back on the other ways.

    `heard`: its output, piece by piece. `wrote`: whether the data plane knows that it wrote.
    """
    report = _report(outcome.stdout)
    if report is None:
        why = outcome.error or f"its runner ended without a report ({outcome.reason})"
        said = outcome.stderr.strip().rpartition("\n")[2]
        return _error(f"{why}: {said[-SAID_MOST:]}" if said else why)
    marker_ok = report.get(MARKER) == marker
    output_ok = _report(heard) == report
    data_plane_ok = report.get("dataPlaneOk") is True and wrote
    failures = [
        "" if marker_ok else "the runner did not echo its marker",
        "" if output_ok else "its output did not come back whole",
        "" if data_plane_ok else f"the data plane: {report.get('dataPlaneError') or 'no write'}",
        "" if outcome.ok or not data_plane_ok else outcome.error or outcome.reason,
    ]
    found = tuple(failure for failure in failures if failure)
    return Verdict(
        status="fail" if found else "pass",
        platform=str(report.get("platform")),
        arch=str(report.get("arch")),
        marker_ok=marker_ok,
        output_ok=output_ok,
        data_plane_ok=data_plane_ok,
        failures=found,
    )


def verified_before(known: Worker | None, instance: str) -> str | None:
    """When this very process passed a probe: it needs none for another socket."""
    status = None if known is None else known.status
    return status.verified_at if status and status.instance == instance else None


def needs_probe(worker: Worker, session: SessionInfo | None) -> bool:
    """Whether it waits for its first probe; one that failed waits for somebody to act."""
    status = worker.status
    return (
        status is not None
        and status.state == "unverified"
        and status.verify_failure is None
        and session is not None
        and session.instance == status.instance
        and takes_probes(worker)
    )


def _report(text: str) -> dict[str, Any] | None:
    """The last line that the runner printed, if it is a report."""
    lines = text.strip().splitlines()
    try:
        report = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def _records(dispatch: str) -> tuple[tuple[Kind[Any, Any], str], ...]:
    return (PENDING, dispatch), (LEASES, dispatch)


def _error(reason: str) -> Verdict:
    return Verdict("error", error=reason)
