"""Why a dispatch waits, where its requirement alone does not say it."""

from __future__ import annotations

from collections.abc import Callable

from controllers.scheduler import Scheduler
from datastore.clock import SystemClock
from datastore.journal import Op
from datastore.kinds import (
    KINDS,
    LEASES,
    PAUSES,
    PENDING,
    WORKERS,
    Call,
    LeaseSpec,
    LeaseStatus,
    PauseSpec,
    PauseStatus,
    Pending,
    PendingSpec,
    Placement,
    Worker,
    WorkerSpec,
    WorkerStatus,
)
from datastore.record import Record
from datastore.store import Store

AT = "2026-11-29T12:00:00.000Z"


class AtOnce:
    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            on_durable()


def worker(name: str) -> Worker:
    status = WorkerStatus(
        state="connected", instance="i", machine=name, token=name, labels={"pool": "a"},
        platform="linux", arch="x", version="1", capacity=1, enrolled_at=AT, last_seen_at=AT,
    )  # fmt: skip
    return Record(WORKERS, name, name, AT, WorkerSpec(), status)


def bound_to_w1() -> tuple[Store, Scheduler]:
    """Two workers of one pool; the group of run r is bound to the first, which is full."""
    store = Store(KINDS.values(), AtOnce())
    spec = LeaseSpec(
        run="r", workflow="w", job="j", step="s1", worker="w1", instance="i", model="m1",
        method="execute", affinity="r",
    )  # fmt: skip
    held = LeaseStatus(state="active", bound_at=AT, active_at=AT)
    store.load(Record(LEASES, "r.j.s1.1", "l", AT, spec, held))
    store.commit([worker("w1"), worker("w2")])
    return store, Scheduler(store, SystemClock(), lambda: "uid", grace_s=60.0)


def second_step() -> Pending:
    spec = PendingSpec(
        run="r", workflow="w", job="j", step="s2", episode=1, affinity="r",
        placement=Placement(labels={"pool": "a"}),
        call=Call(model_type="command/shell", model="m2", method="execute"),
    )  # fmt: skip
    return Record(PENDING, "r.j.s2.1", "p", AT, spec)


def reason_of(store: Store) -> str | None:
    status = store.get(PENDING, "r.j.s2.1").status
    return None if status is None else status.reason


async def test_a_pause_by_label_holds_a_step_whose_group_is_bound_and_says_so() -> None:
    """Regression: the reason looked at the bound worker alone and said that it was full."""
    store, scheduler = bound_to_w1()
    pause = PauseSpec(labels={"pool": "a"}, note="disk swap")
    status = PauseStatus(state="paused", since=AT)
    store.commit([Record(PAUSES, "pool-a", "pa", AT, pause, status), second_step()])
    await scheduler.reconcile("r.j.s2.1")
    assert reason_of(store) == "the queue is paused (pool-a): disk swap"


async def test_a_step_whose_group_is_bound_waits_for_that_worker_alone() -> None:
    """Regression: what the queue shows came from the requirement, which the other one meets."""
    store, scheduler = bound_to_w1()
    store.commit([second_step()])
    await scheduler.reconcile("r.j.s2.1")
    spec = store.get(PENDING, "r.j.s2.1").spec
    shown = scheduler.reasons.of_dispatch(spec, fresh=True)
    assert (shown.text, reason_of(store)) == ("worker 'w1' is full",) * 2
    verdicts = [(one.worker, one.state) for one in scheduler.reasons.verdicts(spec)]
    assert verdicts == [("w1", "full"), ("w2", "elsewhere")]
