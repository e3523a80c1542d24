"""The scheduler: answers pending dispatches with leases.

Makes true: a dispatch whose requirement some worker with a free slot meets has a lease; every
other is `waiting`, with the reason, until its limit. Reads pending dispatches, workers and leases;
writes the status of pending dispatches and creates leases, both in one commit. Woken by pending
dispatches, by workers, and by leases that ended. It never counts slots: the load of a worker is the
number of its live leases, so a running dispatch cannot count twice (seed #3293).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from datetime import timedelta

from controllers.controller import Wait
from controllers.disk_hold import DiskHold
from controllers.model_locks import ModelLocks
from controllers.pauses import Pauses
from controllers.pool import WorkerPool
from controllers.reasons import Reasons
from controllers.renewal import RENEW_EVERY_S, Renewal
from controllers.requirement import describe, requirement
from controllers.waiting import ModelLimit, Rank, WaitingRoom, asked_s
from controllers.workqueue import WorkQueue
from datastore.alive import Span
from datastore.clock import Clock, stamp
from datastore.kinds import (
    LEASES,
    PAUSES,
    PENDING,
    RUNS,
    STEPS,
    WORKERS,
    Lease,
    LeaseSpec,
    LeaseStatus,
    Pending,
    PendingStatus,
    Worker,
)
from datastore.kinds.call import model_key
from datastore.kinds.dispatch_name import run_of
from datastore.record import Record
from datastore.store import Store

PLACE = "place"
"""The key of the placing pass; dispatch ids always contain a dot."""

AFFINITY_LOST = "affinity_lost"

RENEW = "renew"
"""The key under which the reasons of what waits are looked at again."""

PAUSE = "pause "
"""What the keys of pauses begin with; no dispatch id has a space."""

LOOKS_AT_ONCE = 1_000
"""How many dispatches that cannot go now one pass puts aside before others get their turn."""


def _lane_of(key: str) -> str | None:
    """A dispatch waits for no crowd of another run, and nothing is placed before pauses are known.

    Dispatches of 20,000 steps that a run begins, or that end with it, are looked at for seconds.
    """
    return None if key.startswith(PAUSE) else run_of(key)


class Scheduler:
    """Reconciles pending dispatches by name, and `PLACE` for the requirements that woke up."""

    def __init__(
        self, store: Store, clock: Clock, new_uid: Callable[[], str], *, grace_s: float
    ) -> None:
        """`grace_s`: how long a worker may be away before what is bound to it is lost."""
        self.queue = WorkQueue(_lane_of)
        self._store = store
        self._clock = clock
        self._new_uid = new_uid
        self._awake: set[str] = set()
        self._since: dict[str, float] = {}
        self._turn = 0
        self._turns: dict[str, int] = {}
        self._grace_s = grace_s
        self._away_since: dict[str, float] = {}
        self._hold = DiskHold(store, lambda: self.queue.add(PLACE))
        self._pauses = Pauses(store, clock, new_uid)
        self._locks = ModelLocks(store)
        self._pool = WorkerPool(store, self._pauses.holding, self._locks)
        self._room = self.waiting = WaitingRoom(self._turn_of_run, self._pool.added)
        self.reasons = Reasons(
            store, self._pool.refused, self._pauses.holding, self._pool.effective, self._pool.crowds
        )
        self._renewal = Renewal(store, self._room, self.reasons, self._pool.shapes)
        store.watch(PAUSES, lambda name: self.queue.add(PAUSE + name))
        store.watch(PENDING, self.queue.add)
        store.watch(RUNS, self._run_changed)
        store.watch(STEPS, self._step_changed)
        store.watch(WORKERS, self._worker_changed)
        store.watch(LEASES, self._lease_changed)

    def live_keys(self) -> Iterable[str]:
        self._pool.look_again()
        self._awake.update(self._room.groups)
        named = {*self._store.names(PAUSES), *self._store.desired_names(PAUSES)}
        # What holds the queue back is taken over before anything is placed.
        pauses = (PAUSE + name for name in sorted(named))
        return [*pauses, PLACE, RENEW, *(one.name for one in self._store.live(PENDING))]

    async def reconcile(self, key: str) -> Wait | None:
        if key == PLACE:
            self.place()
            return None
        if key == RENEW:
            # No record can be brought up to date while the disk refuses; the queue says why.
            held = self._hold.on() and self._store.trouble is not None
            return Wait(RENEW_EVERY_S) if held else self._renewal.some()
        if key.startswith(PAUSE):
            self._pauses.look_at(key.removeprefix(PAUSE))
            self._awake.update(self._room.groups)
            self.place()
            self.queue.add(RENEW)
            return None
        return self._look_at(key)

    def held_back(self) -> list[Span]:
        """When the disk held back all that waits, for a start to come."""
        now, now_s = self._clock.now(), asyncio.get_running_loop().time()
        spans = [[now - timedelta(seconds=now_s - at) for at in one] for one in self._hold.spans()]
        return [(began, ended) for began, ended in spans]

    # -- waking ----------------------------------------------------------------------------------

    def _worker_changed(self, name: str) -> None:
        self._pool.forget_refusal(name)
        self._wake_for(name)
        if self._room.groups:
            self.queue.add(RENEW)

    def _run_changed(self, name: str) -> None:
        if self._store.is_finished(RUNS, name):
            self._pool.forget_run(name)
            self._turns.pop(name, None)

    def _lease_changed(self, name: str) -> None:
        lease = self._store.find(LEASES, name)
        if lease is None or lease.status is None:
            return
        if lease.live:
            self._pool.took(lease.spec.worker)
            return
        self._wake_model(model_key(lease.spec.model_type, lease.spec.model))
        worker = lease.spec.worker
        if lease.status.state == "refused":
            for_s = self._pool.note_refusal(worker)
            self._pool.changed(worker)
            asyncio.get_running_loop().call_later(for_s, self._wake_for, worker)
        else:
            self._pool.forget_refusal(worker)
            self._wake_for(worker)

    def _step_changed(self, name: str) -> None:
        step = self._store.find(STEPS, name)
        if step is None or step.live or step.spec.placement is not None:
            return
        if step.spec.call is not None:
            self._wake_model(step.spec.call.model_key)

    def _wake_model(self, model: str) -> None:
        """An execution of that model has ended: whoever waited for it may go."""
        if keys := self._room.aside(model):
            self._awake.update(keys)
            self.queue.add(PLACE)

    def _wake_for(self, worker_name: str) -> None:
        """Wake the requirements that this worker could meet, and no others."""
        self._pool.changed(worker_name)
        self._awake.update(self._pool.concerned(worker_name, self._room.groups))
        if self._awake:
            self.queue.add(PLACE)

    # -- one dispatch ----------------------------------------------------------------------------

    def _look_at(self, name: str) -> Wait | None:
        pending = self._store.find(PENDING, name)
        if pending is None or not pending.live:
            self._room.remove(name)
            self._since.pop(name, None)
            return None
        now_s = asyncio.get_running_loop().time()
        since = self._since.setdefault(name, now_s)
        if pending.spec.cancel:
            self._end(pending, "cancelled", self._waited_s(since), "cancelled")
            return None
        fresh = name not in self._room
        wanted = self._room.add(pending, asked_s(pending.spec, since, self._clock, now_s))
        if fresh or pending.status is None:
            self._awake.add(wanted)
            self.place()
            placed = self._store.get(PENDING, name)
            if not placed.live:
                self._since.pop(name, None)
                return None
            pending = placed
        if pending.status is None:
            pending = self._mark_waiting(pending)
            self.queue.add_after(RENEW, RENEW_EVERY_S)
        waited_s = self._waited_s(since)
        left_s = self._left_s(pending, waited_s)
        lost_s = self._until_lost_s(pending, now_s)
        if lost_s is not None and lost_s <= 0:
            self._end(pending, "cancelled", waited_s, self._lost_text(pending), AFFINITY_LOST)
            return None
        if left_s is not None and left_s <= 0:
            self._end(pending, "timed_out", waited_s, self._timeout_text(pending))
            return None
        waits = [one for one in (left_s, lost_s) if one is not None]
        soonest_s = RENEW_EVERY_S if self._hold.on() else 0.0
        return Wait(max(soonest_s, min(waits))) if waits else None

    def _waited_s(self, since: float) -> float:
        """For how long it has waited, without the time in which our disk held it back, seconds."""
        return asyncio.get_running_loop().time() - since - self._hold.held_s(since)

    @staticmethod
    def _left_s(pending: Pending, waited_s: float) -> float | None:
        """How much of its waiting the step has left, seconds; None for ever."""
        limit = pending.spec.wait_limit_s
        return None if limit is None else limit - pending.spec.waited_before_s - waited_s

    def _until_lost_s(self, pending: Pending, now_s: float) -> float | None:
        """When its group has lost the worker that it is bound to; None while that is there."""
        spec = pending.spec
        bound = self._pool.bound_to(spec.affinity, spec.run) if spec.affinity else None
        worker = self._store.find(WORKERS, bound) if bound is not None else None
        if worker is None or worker.live:
            self._away_since.pop(bound or "", None)
            return None
        if self._hold.on():
            # It may try to come back, and is refused as long as the disk is.
            self._away_since[worker.name] = now_s
        return self._grace_s - (now_s - self._away_since.setdefault(worker.name, now_s))

    def _lost_text(self, pending: Pending) -> str:
        worker = self._pool.effective(pending.spec).target
        return f"worker '{worker}', which its group must stay on, was lost (affinity)"

    def _mark_waiting(self, pending: Pending) -> Pending:
        status = PendingStatus(
            state="waiting",
            queued_at=stamp(self._clock.now()),
            reason=self.reasons.of_dispatch(pending.spec).text,
        )
        self._store.commit([pending.with_status(status)])
        return self._store.get(PENDING, pending.name)

    def _end(
        self,
        pending: Pending,
        state: str,
        waited_s: float,
        reason: str,
        error: str | None = None,
    ) -> None:
        now = stamp(self._clock.now())
        queued_at = pending.status.queued_at if pending.status else now
        status = PendingStatus.model_validate(
            {
                "state": state,
                "queued_at": queued_at,
                "reason": reason,
                "waited_s": round(waited_s, 3),
                "ended_at": now,
                "error": error,
            }
        )
        self._room.remove(pending.name)
        self._since.pop(pending.name, None)
        self._store.commit([pending.with_status(status)])

    def _timeout_text(self, pending: Pending) -> str:
        spec = pending.spec
        layer = {
            "serve": "serve --queue-timeout",
            "default": "the default",
            "edit": "an edit of its desired file",
        }.get(spec.limit_from, f"queueTimeout of the {spec.limit_from}")
        return (
            f"Timed out waiting for a worker matching {describe(spec.placement)} to become"
            f" available: waited {spec.wait_limit_s:g}s, the limit set by {layer};"
            f" {self.reasons.of_dispatch(spec, fresh=True).text}"
        )

    # -- placing ---------------------------------------------------------------------------------

    def place(self) -> None:
        """Give every slot that the awake requirements can use to the dispatches that go first.

        One plain pass: what it reads, it decides and commits before anything else runs. Nobody
        gets one while the disk refuses writes: that dispatch could not leave.
        """
        if self._hold.on():
            return
        now_s = asyncio.get_running_loop().time()
        heads: list[tuple[Rank, str, str]] = []
        for key in sorted(self._awake):
            self._push_head(heads, key)
        self._awake.clear()
        looks = LOOKS_AT_ONCE
        while heads:
            rank, key, name = heapq.heappop(heads)
            head = self._room.head(key, now_s)
            if head is None:
                continue
            if head != (rank, name):
                heapq.heappush(heads, (head[0], key, head[1]))
                continue
            worker = self._pool.best(key, self._room.groups[key])
            if worker is None:
                continue
            looks -= not self._give(name, worker)
            self._push_head(heads, key)
            if looks == 0:
                self._awake.update(key for _, key, _ in heads)
                self.queue.add(PLACE)
                return

    def _give(self, name: str, worker: Worker) -> bool:
        """Give the slot to that dispatch; False if it cannot take it: then the next one may."""
        pending = self._store.find(PENDING, name)
        if pending is None or not pending.live or pending.spec.cancel:
            self._room.remove(name)
            self.queue.add(name)
            return False
        spec = pending.spec
        if self._locks.full(spec.call.model_key, spec.model_concurrency):
            self._room.set_aside(name, ModelLimit(spec.call.model_key, spec.model_concurrency))
            return False
        self._bind(pending, worker)
        return True

    def _push_head(self, heads: list[tuple[Rank, str, str]], key: str) -> None:
        head = self._room.head(key, asyncio.get_running_loop().time())
        if head is not None:
            heapq.heappush(heads, (head[0], key, head[1]))

    def _turn_of_run(self, run: str) -> int:
        """A run's turn: who has had fewer goes first; a run that is new begins with the others."""
        turn = max(self._turns.get(run, 0), self._turn)
        self._turns[run] = turn
        return turn

    def _took_a_turn(self, run: str) -> None:
        self._turn = self._turns.get(run, self._turn)
        self._turns[run] = self._turn + 1
        self._room.load_changed(run)

    def _bind(self, pending: Pending, worker: Worker) -> None:
        """Create the lease and end the wait, in one commit."""
        assert worker.status is not None
        spec = pending.spec
        now = stamp(self._clock.now())
        since = self._since.pop(pending.name, None)
        waited_s = 0.0 if since is None else self._waited_s(since)
        lease: Lease = Record(
            kind=LEASES,
            name=pending.name,
            uid=self._new_uid(),
            created_at=now,
            owner=spec.run,
            spec=LeaseSpec(
                run=spec.run,
                workflow=spec.workflow,
                job=spec.job,
                step=spec.step,
                worker=worker.name,
                instance=worker.status.instance,
                model_type=spec.call.model_type,
                model=spec.call.model,
                method=spec.call.method,
                requirement=requirement(spec.placement),
                affinity=spec.affinity,
            ),
            status=LeaseStatus(state="bound", bound_at=now),
        )
        old = pending.status
        ended = PendingStatus(
            state="dispatched",
            queued_at=old.queued_at if old else now,
            reason=old.reason if old else None,
            waited_s=round(waited_s, 3),
            ended_at=now,
            worker=worker.name,
        )
        self._room.remove(pending.name)
        self._store.commit([lease, pending.with_status(ended)])
        self._took_a_turn(spec.run)
