"""The lease controller: from `bound` to an end, whatever happens to the worker or its socket.

Makes true: a bound lease has been offered to its worker; a lease whose worker is away is
`recovering` and ends with the grace window; a cancelled one ends. Reads leases, pending dispatches,
the open sockets and, to say why one was lost, workers and tokens; alone writes the status of
leases. Woken by leases and by sockets that open or close. It never frees a slot by itself: the slot
is the lease, and is free when the lease has ended.

The methods below `reconcile` are what workers report, one plain move each. They answer at once;
whoever passes the answer on waits for the store's barrier.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from controllers.controller import Wait
from controllers.ports import SessionInfo, WorkerLink
from controllers.workqueue import WorkQueue
from datastore.clock import Clock, parse_stamp, stamp
from datastore.kinds import (
    LEASES,
    PENDING,
    TOKENS,
    WORKERS,
    Lease,
    LeaseStatus,
    Outcome,
    is_given_up,
)
from datastore.kinds.dispatch_name import run_of
from datastore.store import Store

log = logging.getLogger(__name__)

ACCEPT_TIMEOUT_S = 30.0
"""How long a worker may take to accept or refuse a dispatch before its socket is cut."""

CANCEL_TIMEOUT_S = 30.0
"""How long a worker may take to stop a cancelled runner before its socket is cut."""

LOOK_S = 5.0
"""How often it is looked whether that time must begin anew: our own disk held the answer up."""

WORKER_LOST = "worker lost"
WRITE_THEN_DROP = "write-then-drop"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What comparing the two lists of dispatches at a reconnect gave."""

    keep: tuple[str, ...]
    kill: tuple[str, ...]


class LeaseController:
    """Reconciles leases by dispatch id."""

    def __init__(self, store: Store, link: WorkerLink, clock: Clock, *, grace_s: float) -> None:
        self.queue = WorkQueue(run_of)
        self._store = store
        self._link = link
        self._clock = clock
        self._grace_s = grace_s
        self._offered: dict[str, tuple[int, float]] = {}
        self._cancelled: dict[str, tuple[int, float]] = {}
        self._away_since: dict[str, float] = {}
        store.watch(LEASES, self.queue.add)

    def live_keys(self) -> Iterable[str]:
        return [lease.name for lease in self._store.live(LEASES)]

    def session_changed(self, worker: str) -> None:
        """The worker's socket opened or closed."""
        for name in self._store.names_by(LEASES, "worker", worker):
            self.queue.add(name)

    async def reconcile(self, name: str) -> Wait | None:
        lease = self._store.find(LEASES, name)
        if lease is None or lease.status is None or not lease.live:
            self._forget(name)
            return None
        session = self._link.session(lease.spec.worker)
        if session is None or session.instance != lease.spec.instance:
            return self._while_away(lease)
        self._away_since.pop(name, None)
        if lease.spec.cancel:
            return self._cancel(lease, session)
        if lease.status.state == "bound":
            return self._offer(lease, session)
        return None

    # -- the worker is there ---------------------------------------------------------------------

    def _offer(self, lease: Lease, session: SessionInfo) -> Wait | None:
        number, _ = self._offered.get(lease.name, (0, 0.0))
        if number != session.number:
            pending = self._store.find(PENDING, lease.name)
            if pending is None:
                self._end(lease, "expired", "its pending dispatch is gone")
                return None
            self._offered[lease.name] = (session.number, asyncio.get_running_loop().time())
            self._link.dispatch(lease, pending)
        return self._until_answered(self._offered, lease, ACCEPT_TIMEOUT_S, "dispatch")

    def _cancel(self, lease: Lease, session: SessionInfo) -> Wait | None:
        """What has left for the worker is stopped there; what has not never leaves."""
        offered, _ = self._offered.get(lease.name, (0, 0.0))
        assert lease.status is not None
        if lease.status.state == "bound" and (
            offered != session.number or self._link.withdraw(lease.name)
        ):
            self._end_cancelled(lease)
            return None
        number, _ = self._cancelled.get(lease.name, (0, 0.0))
        if number != session.number:
            self._cancelled[lease.name] = (session.number, asyncio.get_running_loop().time())
            self._link.cancel(lease.spec.worker, lease.name)
        return self._until_answered(
            self._cancelled, lease, CANCEL_TIMEOUT_S, "the cancel of dispatch"
        )

    def _until_answered(
        self, asked: dict[str, tuple[int, float]], lease: Lease, timeout_s: float, to: str
    ) -> Wait | None:
        """Wait for the worker's answer for so long, then cut its socket.

        The time begins anew while our own disk holds up the question, or what answers it: no
        worker is cut, and in the end loses what it runs, for what the server cannot do.
        """
        now_s = asyncio.get_running_loop().time()
        number, since = asked[lease.name]
        if self._store.hold is not None or self._link.holds_up(lease.name):
            since = now_s
            asked[lease.name] = (number, since)
        left_s = timeout_s - (now_s - since)
        if left_s > 0:
            return Wait(min(left_s, LOOK_S))
        self._link.cut(lease.spec.worker, f"no answer to {to} {lease.name}")
        return None

    # -- the worker is away ----------------------------------------------------------------------

    def _while_away(self, lease: Lease) -> Wait | None:
        """Nobody waits for a cancelled step whose worker is away; its slot and its model do.

        What it runs may go on until the worker is back or its grace window is over.
        """
        assert lease.status is not None
        if lease.spec.cancel and lease.status.state == "bound" and lease.name not in self._offered:
            self._end_cancelled(lease)
            return None
        now_s = asyncio.get_running_loop().time()
        is_new = False
        if lease.name not in self._away_since:
            before_s = self._away_before_s(lease)
            self._away_since[lease.name] = now_s - before_s
            # A restart would count a whole one from where an earlier one began.
            is_new = before_s == 0.0
        since = self._away_since[lease.name]
        left_s = self._grace_s - (now_s - since)
        if left_s <= 0 and lease.spec.cancel:
            self._end_cancelled(lease)
        elif left_s <= 0:
            why = self._token_ended(lease) or f"away for longer than {self._grace_s:g}s"
            self._lose(lease, f"{WORKER_LOST}: {why}")
        elif lease.status.state != "recovering" or is_new or self._window_is_unsaid(lease):
            began = self._clock.now() - timedelta(seconds=now_s - since)
            self._move(lease, "recovering", recovering_at=stamp(began))
        return Wait(left_s) if left_s > 0 else None

    @staticmethod
    def _window_is_unsaid(lease: Lease) -> bool:
        """Whether a restart could not tell how much is left; only of one given up it must."""
        assert lease.status is not None
        return lease.status.recovering_at is None and is_given_up(lease)

    def _away_before_s(self, lease: Lease) -> float:
        """How much of its window a given-up lease has had under an earlier process, seconds.

        Nobody waits for its step, so it needs no time to come back after a restart: by the end of
        its own window the worker has ended what it runs, whether or not there was a server.
        """
        assert lease.status is not None
        since = lease.status.recovering_at
        if not is_given_up(lease) or since is None or lease.name in self._cancelled:
            return 0.0
        passed_s = (self._clock.now() - parse_stamp(since)).total_seconds()
        return min(max(0.0, passed_s), self._grace_s)

    def _lose(self, lease: Lease, reason: str) -> None:
        """The attempt is over without a result. What it wrote decides what that means."""
        assert lease.status is not None
        log.warning("%s on worker %s is given up: %s", lease.name, lease.spec.worker, reason)
        if lease.status.wrote_at is None:
            self._end(lease, "expired", reason)
            return
        error = f"{reason}, after it had written an output ({WRITE_THEN_DROP})"
        self._end(lease, "failed", error, Outcome(ok=False, reason=WRITE_THEN_DROP, error=error))

    # -- what workers report ---------------------------------------------------------------------

    def reconnected(
        self, worker: str, instance: str, running: Iterable[str], finished: Iterable[str]
    ) -> Comparison:
        """Compare the worker's list with its leases, before any dispatch on that socket.

        A runner without a lease is to be killed; a lease without runner or result ends now, as does
        every lease of an earlier process of the worker.
        """
        has = set(running)
        has_result = set(finished)
        keep = []
        for lease in self._store.by(LEASES, "worker", worker):
            self._away_since.pop(lease.name, None)
            if lease.spec.instance != instance:
                self._lose(lease, f"{WORKER_LOST}: its process was restarted")
            elif lease.name in has or lease.name in has_result:
                keep.append(lease.name)
                assert lease.status is not None
                if is_given_up(lease):
                    self._move(lease, "recovering", recovering_at=stamp(self._clock.now()))
                elif lease.status.state != "active":
                    self._activate(lease)
            else:
                self._lose(lease, f"{WORKER_LOST}: it came back without this runner")
        kill = sorted((has | has_result) - set(keep))
        return Comparison(keep=tuple(keep), kill=tuple(kill))

    def would_be_back(self, worker: str, instance: str, running: Iterable[str]) -> bool:
        """A worker cannot enroll only because the disk refuses writes; whether it may go on.

        If so, the grace windows of its leases begin anew, now, and its own does, of which it is
        told: that counts from when it asked, and is the shorter one (`GRACE_MARGIN`). So what it
        runs is always over before its lease is, and nothing runs twice. Over a restart as well: the
        leases' windows begin anew with it, except those of what was given up. So it may run nothing
        of that; and the window of what is given up later has, until it is put down anew, no
        beginning in the records (`recovering_at`), which a restart takes for a whole one.
        """
        leases = [
            one
            for one in self._store.by(LEASES, "worker", worker)
            if one.spec.instance == instance and not one.spec.cancel
        ]
        if not set(running) <= {lease.name for lease in leases}:
            return False
        session = self._link.session(worker)
        if session is not None and session.instance == instance:
            # Its old socket counts still: the windows begin when that is found to be gone.
            return True
        for lease in leases:
            assert lease.status is not None
            if lease.status.state != "recovering" or lease.status.recovering_at is not None:
                self._move(lease, "recovering", recovering_at=None)
            self._away_since[lease.name] = asyncio.get_running_loop().time()
        return True

    def given_up(self, worker: str, instance: str, running: Iterable[str]) -> list[str]:
        """Those of `running` that were cancelled: nobody waits for them, and they may be stopped.

        While the worker still runs one, nothing else that it runs is put off: `would_be_back`.
        """
        found = (self._live_of(worker, name) for name in running)
        return [
            lease.name
            for lease in found
            if lease is not None and lease.spec.cancel and lease.spec.instance == instance
        ]

    def instance_died(self, worker: str, instance: str) -> int:
        """End the leases of a process that is known to be dead, runners and all; how many."""
        leases = self._store.by(LEASES, "worker", worker)
        ended = [lease for lease in leases if lease.spec.instance == instance]
        for lease in ended:
            why = self._token_ended(lease) or "its process died"
            self._lose(lease, f"{WORKER_LOST}: {why}")
        return len(ended)

    def _token_ended(self, lease: Lease) -> str | None:
        """What became of the token of the lease's worker, which stops when that ends."""
        worker = self._store.find(WORKERS, lease.spec.worker)
        if worker is None or worker.status is None:
            return None
        token = self._store.find(TOKENS, worker.status.token)
        if token is None or token.live:
            return None
        return f"token '{token.name}' {'was ' if token.state == 'revoked' else ''}{token.state}"

    def accepted(self, worker: str, name: str) -> None:
        """The worker started the runner."""
        lease = self._live_of(worker, name)
        if lease is not None and lease.status is not None and lease.status.state == "bound":
            self._activate(lease)

    def refused(self, worker: str, name: str, reason: str) -> None:
        """The worker took it not: nothing ran, the step waits again without blame."""
        lease = self._live_of(worker, name)
        if lease is not None and lease.status is not None and lease.status.state == "bound":
            if lease.spec.cancel:
                self._end_cancelled(lease)
            else:
                self._end(lease, "refused", reason)

    def settle(self, worker: str, name: str, outcome: Outcome) -> bool:
        """Take a result; False if the lease had ended before (the worker may forget it anyway)."""
        lease = self._live_of(worker, name)
        if lease is None or lease.status is None:
            return False
        if lease.status.state == "bound":
            self._activate(lease)
            lease = self._store.get(LEASES, name)
        if outcome.reason == "worker_lost":
            # The worker stopped before the runner had ended: no result of the step's own.
            self._lose(lease, f"{WORKER_LOST}: it was stopped while the step ran")
        else:
            self._end(lease, "completed" if outcome.ok else "failed", outcome.reason, outcome)
        return True

    def first_write(self, worker: str, name: str) -> bool:
        """Mark that the dispatch is about to write an output; False if its lease has ended.

        The caller waits for the barrier before it stores the first byte (promise 2), also when
        another writer of the same dispatch set the mark.
        """
        lease = self._live_of(worker, name)
        if lease is None or lease.status is None:
            return False
        if lease.status.wrote_at is None:
            wrote_at = stamp(self._clock.now())
            self._store.commit(
                [lease.with_status(lease.status.model_copy(update={"wrote_at": wrote_at}))]
            )
        return True

    # -- moves -----------------------------------------------------------------------------------

    def _live_of(self, worker: str, name: str) -> Lease | None:
        lease = self._store.find(LEASES, name)
        if lease is None or not lease.live or lease.spec.worker != worker:
            return None
        return lease

    def _activate(self, lease: Lease) -> None:
        assert lease.status is not None
        at = lease.status.active_at or stamp(self._clock.now())
        self._move(lease, "active", active_at=at, recovering_at=None)

    def _end_cancelled(self, lease: Lease) -> None:
        outcome = Outcome(ok=False, reason="cancelled", error="cancelled")
        self._end(lease, "failed", "cancelled", outcome)

    def _end(self, lease: Lease, state: str, reason: str, outcome: Outcome | None = None) -> None:
        ended_at = stamp(self._clock.now())
        self._move(lease, state, reason=reason, outcome=outcome, ended_at=ended_at)
        self._forget(lease.name)

    def _move(self, lease: Lease, state: str, **changes: object) -> None:
        assert isinstance(lease.status, LeaseStatus)
        update: Mapping[str, object] = {"state": state, **changes}
        self._store.commit([lease.with_status(lease.status.model_copy(update=update))])

    def _forget(self, name: str) -> None:
        self._offered.pop(name, None)
        self._cancelled.pop(name, None)
        self._away_since.pop(name, None)
