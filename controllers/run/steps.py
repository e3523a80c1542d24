"""One step, made true: started, followed over its episodes, and ended when its lease has.

A step's truth is in three records: its own, the pending dispatch of its latest episode, and the
lease of the same name. `look` reads them and commits whatever follows; looking twice changes
nothing the second time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

from controllers.asked import shown_file
from controllers.ports import LocalExecutor, RunEvents, StepData
from controllers.run.edits import lease_as_asked, pending_as_asked, spec_as_asked
from controllers.run.episodes import Episodes
from controllers.run.graph import StepKey
from controllers.run.live import LiveRun
from controllers.run.plan import StepPlan
from controllers.run.step_records import StepRecords
from controllers.run.telling import StepTeller
from datastore.clock import Clock, parse_stamp, stamp
from datastore.definitions.conditions import Ended
from datastore.kinds import (
    LEASES,
    PENDING,
    STEPS,
    Lease,
    Outcome,
    Pending,
    PendingSpec,
    Step,
    StepStatus,
    is_given_up,
)
from datastore.record import Record
from datastore.store import Store

ORCHESTRATOR_RESTART = "orchestrator_restart"

WISH_LOST = (
    "cancelled, as was asked of an earlier process of the server, which ended before its disk had"
    " taken that down"
)
"""The wish reached the worker, which waits for no disk, and was lost with the server."""

LOST_MOST = 5
"""After losing its worker so many times a step fails: it may be what kills them."""


class StepKeeper:
    """Reads and commits the records of steps. Every method is a plain `def`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        events: RunEvents,
        executor: LocalExecutor,
        new_uid: Callable[[], str],
        data: StepData,
    ) -> None:
        self._store = store
        self._clock = clock
        self._executor = executor
        self._records = StepRecords(clock, new_uid)
        self._data = data
        self.tell = StepTeller(events)
        self.episodes = Episodes(store)

    # -- looking ---------------------------------------------------------------------------------

    def knows_any(self, live: LiveRun) -> bool:
        """Whether any step of the run has records."""
        return any(self._store.count_by(kind, "run", live.run) for kind in (STEPS, PENDING))

    def known(self, live: LiveRun, key: StepKey) -> bool:
        """Whether the step has records already: it started before this process did."""
        name = live.step_name(key)
        return self._store.has(STEPS, name) or self.episodes.begun(name)

    def look(self, live: LiveRun, key: StepKey) -> None:
        """Do what the step's records call for."""
        name = live.step_name(key)
        step = self._store.find(STEPS, name)
        if step is not None and not step.live:
            self._ended(live, key, step)
            return
        dispatch = self.episodes.latest(name)
        if dispatch is None:
            self._look_local(live, key, step)
            return
        pending = self._store.get(PENDING, dispatch)
        lease = self._store.find(LEASES, dispatch)
        if lease is not None:
            self._look_leased(live, key, pending, lease)
        else:
            self._look_waiting(live, key, pending)

    def _look_local(self, live: LiveRun, key: StepKey, step: Step | None) -> None:
        if step is None or step.status is None:
            return
        if not self._executor.running(step.name):
            error = "the orchestrator was restarted while it ran this step itself"
            self._end_with(live, key, Outcome(ok=False, reason=ORCHESTRATOR_RESTART, error=error))
        elif live.cancelled:
            self._executor.stop(step.name)

    def _look_waiting(self, live: LiveRun, key: StepKey, pending: Pending) -> None:
        live.running.discard(live.step_name(key))
        status = pending.status
        if pending.live:
            pending = pending_as_asked(self._store, pending)
            if live.cancelled and not pending.spec.cancel:
                self._store.commit([pending.with_spec(cancel=True)])
            elif status is not None:
                self.tell.queued(live, key, pending, self._lost_before(pending))
            return
        assert status is not None
        if status.state == "timed_out" or (status.error is not None and not live.cancelled):
            self._end(live, key, "failed", error=status.reason)
        elif live.cancelled:
            self._end(live, key, "cancelled", error="cancelled while it waited for a worker")
        elif status.state == "cancelled":
            self._end(live, key, "cancelled", error=_cancelled_by(pending))
        else:
            self._new_episode(live, key, pending)

    def _look_leased(self, live: LiveRun, key: StepKey, pending: Pending, lease: Lease) -> None:
        status = lease.status
        assert status is not None
        if lease.live:
            live.running.add(live.step_name(key))
            lease = lease_as_asked(self._store, lease)
            if live.cancelled and not lease.spec.cancel:
                self._store.commit([lease.with_spec(cancel=True)])
                lease = self._store.get(LEASES, lease.name)
            if not is_given_up(lease):
                self._mark_running(live, key, pending, lease)
            if status.active_at is not None:
                self.tell.dispatched(live, key, lease, self._lost_before(pending))
            if is_given_up(lease):
                by = "cancelled" if live.cancelled else _cancelled_by(lease)
                error = f"{by} while worker '{lease.spec.worker}' was away"
                self._end(live, key, "cancelled", error=error, lease=lease)
            return
        live.running.discard(live.step_name(key))
        if status.active_at is not None:
            # It may have ended before anybody looked at it while it ran.
            self.tell.dispatched(live, key, lease, self._lost_before(pending))
        outcome = status.outcome
        if lease.spec.cancel and not live.cancelled and (outcome is None or _is_cancelled(outcome)):
            # Also where its worker was lost before it could stop: nobody wants it again.
            error = _cancelled_by(lease)
            self._end(live, key, "cancelled", error=error, outcome=outcome, lease=lease)
        elif outcome is not None:
            self._end_with(live, key, outcome, lease)
        elif live.cancelled:
            self._end(live, key, "cancelled", error="cancelled", lease=lease)
        elif status.state == "expired" and pending.spec.affinity is not None:
            worker = lease.spec.worker
            error = f"worker '{worker}', which its group must stay on, was lost (affinity)"
            self._end(live, key, "failed", error=error, lease=lease)
        elif status.state == "expired" and self._lost_too_often(pending):
            error = f"lost its worker {LOST_MOST} times, the last time: {status.reason}"
            self._end(live, key, "failed", error=error, lease=lease)
        else:
            self._new_episode(live, key, pending)

    def _lost_before(self, pending: Pending) -> str | None:
        """Why the step's episode before this one ended without a result; None if it is the first.

        `worker w1 was lost (its process died)`, `worker w1 refused (busy)`.
        """
        episode = pending.spec.episode
        if episode == 1:
            return None
        base = pending.name.rpartition(".")[0]
        lease = self._store.find(LEASES, f"{base}.{episode - 1}")
        if lease is None or lease.status is None:
            before = self._store.find(PENDING, f"{base}.{episode - 1}")
            return before.status.reason if before is not None and before.status else None
        verb = "refused it" if lease.state == "refused" else "was lost"
        why = (lease.status.reason or "").removeprefix("worker lost: ")
        return f"worker {lease.spec.worker} {verb}" + (f" ({why})" if why else "")

    def _lost_too_often(self, pending: Pending) -> bool:
        if pending.spec.episode < LOST_MOST:
            return False
        base = pending.name.rpartition(".")[0]
        leases = (
            self._store.find(LEASES, f"{base}.{episode}")
            for episode in range(1, pending.spec.episode + 1)
        )
        lost = [one for one in leases if one is not None and one.state == "expired"]
        return len(lost) >= LOST_MOST

    # -- starting --------------------------------------------------------------------------------

    def is_ready(self, live: LiveRun, key: StepKey, plan: StepPlan) -> None:
        """The step's dependencies are met; it may still have to wait for its model."""
        live.ready_at.setdefault(key, self._clock.now())
        self.tell.started(live, key, plan.call.model, plan.call.method)

    def start(self, live: LiveRun, key: StepKey, plan: StepPlan) -> None:
        """The step's dependencies are met: have it placed, or run it here."""
        now = self._clock.now()
        self.is_ready(live, key, plan)
        if plan.placement is None:
            self._start_local(live, key, plan, now)
            return
        spec = PendingSpec(
            run=live.run,
            workflow=live.workflow.name,
            job=key[0],
            step=key[1],
            template=live.template(key),
            episode=1,
            call=plan.call,
            placement=plan.placement,
            priority=plan.priority,
            wait_limit_s=plan.wait_limit_s,
            limit_from=plan.limit_from,
            timeout_s=plan.timeout_s,
            affinity=plan.affinity,
            model_concurrency=plan.model_concurrency,
        )
        self._store.commit([self._records.pending(live, key, spec)])

    def _start_local(self, live: LiveRun, key: StepKey, plan: StepPlan, now: datetime) -> None:
        name = live.step_name(key)
        status = StepStatus(state="running", started_at=stamp(now))
        live.running.add(name)
        self._store.commit([self._records.step(live, key, status, plan)])
        self._executor.start(name, plan.call, plan.timeout_s)

    def _new_episode(self, live: LiveRun, key: StepKey, old: Pending) -> None:
        """The step waits again, as a dispatch of its own; what it waited before counts."""
        waited_s = (old.status.waited_s if old.status is not None else None) or 0.0
        # A file that came while nobody looked, say at a restart, still counts for the step.
        asked = spec_as_asked(old.spec, self._store.desired(PENDING, old.name))
        if asked.cancel:
            self._end(live, key, "cancelled", error=_cancelled_by(old))
            return
        spec = asked.model_copy(
            update={
                "desired": None,
                "episode": old.spec.episode + 1,
                "waited_before_s": round(old.spec.waited_before_s + waited_s, 3),
                "asked_at": self.episodes.asked_at(old),
            }
        )
        puts: list[Record[Any, Any]] = [self._records.pending(live, key, spec)]
        step = self._store.find(STEPS, live.step_name(key))
        if step is not None and step.status is not None:
            puts.append(
                step.with_status(
                    step.status.model_copy(
                        update={"state": "waiting", "waited_s": spec.waited_before_s}
                    )
                )
            )
        outdated = self.episodes.outdated_by(old)
        self._store.commit(puts, [(PENDING, name) for name in outdated])

    def _mark_running(self, live: LiveRun, key: StepKey, pending: Pending, lease: Lease) -> None:
        step = self._store.find(STEPS, live.step_name(key))
        status = step.status if step is not None else None
        if status is not None and status.state == "running" and status.dispatch == lease.name:
            return
        waited_s = (pending.status.waited_s if pending.status is not None else None) or 0.0
        running = StepStatus(
            state="running",
            started_at=lease.status.bound_at if lease.status is not None else None,
            worker=lease.spec.worker,
            dispatch=lease.name,
            episodes=pending.spec.episode,
            waited_s=round(pending.spec.waited_before_s + waited_s, 3),
        )
        if step is not None:
            self._store.commit([step.with_status(running)])
            return
        self._store.commit([self._records.step(live, key, running, pending.spec)])

    # -- ending ----------------------------------------------------------------------------------

    def end_local(self, live: LiveRun, key: StepKey, outcome: Outcome) -> None:
        """A step that the orchestrator ran itself has ended."""
        step = self._store.find(STEPS, live.step_name(key))
        if step is not None and step.live:
            self._end_with(live, key, outcome)

    def _end_with(
        self, live: LiveRun, key: StepKey, outcome: Outcome, lease: Lease | None = None
    ) -> None:
        state = "succeeded" if outcome.ok else "failed"
        error = outcome.error
        if _is_cancelled(outcome):
            state = "cancelled"
            if lease is not None and not (lease.spec.cancel or live.cancelled):
                error = WISH_LOST
        self._end(live, key, state, error=error, outcome=outcome, lease=lease)

    def fail(self, live: LiveRun, key: StepKey, error: str) -> None:
        """The step cannot even be started."""
        live.ready_at.setdefault(key, self._clock.now())
        self._end(live, key, "failed", error=error)

    def cancel_unstarted(self, live: LiveRun, key: StepKey) -> None:
        """The run was cancelled just before this step would have started."""
        self._end(live, key, "cancelled", error="cancelled before it started")

    def skip(self, live: LiveRun, key: StepKey, reason: str) -> None:
        """The step will not run; told once, also over a restart."""
        if self._store.find(STEPS, live.step_name(key)) is None:
            status = StepStatus(state="skipped", ended_at=stamp(self._clock.now()), error=reason)
            self._store.commit([self._records.step(live, key, status)])
        live.count("skipped")
        self.tell.skipped(live, key, reason)

    def _end(
        self,
        live: LiveRun,
        key: StepKey,
        state: str,
        *,
        error: str | None = None,
        outcome: Outcome | None = None,
        lease: Lease | None = None,
    ) -> None:
        """Write the step's end, once, tell it, and free what depends on it."""
        step = self._store.find(STEPS, live.step_name(key))
        allowed = state == "failed" and live.written(key)[1].allow_failure
        dispatch = self.episodes.latest(live.step_name(key))
        pending = self._store.find(PENDING, dispatch) if dispatch is not None else None
        old = step.status if step is not None else None
        waited_s = 0.0
        if pending is not None and pending.status is not None:
            waited_s = pending.spec.waited_before_s + (pending.status.waited_s or 0.0)
        status = StepStatus.model_validate(
            {
                "state": state,
                "started_at": old.started_at if old else None,
                "ended_at": stamp(self._clock.now()),
                "worker": lease.spec.worker if lease else (old.worker if old else None),
                "dispatch": lease.name if lease else (old.dispatch if old else None),
                "episodes": pending.spec.episode if pending else 0,
                "waited_s": round(waited_s, 3),
                "error": error if state != "succeeded" else None,
                "allowed_failure": allowed,
                "outcome": outcome,
                "outputs": self._data.written_by(lease.name if lease else live.step_name(key))
                or None,
            }
        )
        if step is not None:
            self._store.commit([step.with_status(status)])
        else:
            asked = pending.spec if pending is not None else None
            self._store.commit([self._records.step(live, key, status, asked)])
        self._ended(live, key, self._store.get(STEPS, live.step_name(key)))

    def _ended(self, live: LiveRun, key: StepKey, step: Step) -> None:
        """The step's record is final: tell it, and let the graph go on."""
        if live.key_of.pop(step.name, None) is None:
            return
        status = step.status
        assert status is not None
        assert status.state not in ("running", "waiting")
        live.running.discard(step.name)
        live.copies.pop(key, None)
        latest = self.episodes.latest(step.name)
        self.episodes.forget(step.name)
        ready_at = live.ready_at.pop(key, None) or self._first_seen(step, latest)
        live.count(status.state)
        duration_ms = 0
        if status.ended_at is not None:
            passed = parse_stamp(status.ended_at) - ready_at
            duration_ms = max(0, round(passed.total_seconds() * 1000))
        self.tell.ended(live, key, status, duration_ms)
        counts = status.state in ("failed", "cancelled") and not status.allowed_failure
        if counts and live.failure is None:
            live.failure = status.error
        state = cast("Ended", status.state)
        live.graph.finish(key, state, allowed=status.allowed_failure)

    def _first_seen(self, step: Step, latest: str | None) -> datetime:
        last = None if latest is None else self._store.find(PENDING, latest)
        return parse_stamp(step.created_at if last is None else self.episodes.asked_at(last))


def _is_cancelled(outcome: Outcome) -> bool:
    return outcome.reason == "cancelled"


def _cancelled_by(dispatch: Pending | Lease) -> str:
    """Who ended the step where its run goes on: only a person's file asks for that."""
    file = shown_file(dispatch.kind, dispatch.name)
    return f"step {dispatch.spec.job}/{dispatch.spec.step} was cancelled by {file}"
