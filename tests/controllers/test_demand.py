"""The free slots that demand tells of, against a look at every worker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from controllers.demand import Answer, Seen, demand_of, waiting_in
from controllers.placement import Reason, available, matches
from datastore.kinds import (
    LEASES,
    PENDING,
    WORKERS,
    Call,
    LeaseSpec,
    LeaseStatus,
    PendingSpec,
    PendingStatus,
    Placement,
    Worker,
    WorkerSpec,
    WorkerStatus,
)
from datastore.record import Record

AT = "2026-11-29T12:00:00.000Z"
NOW = datetime(2026, 11, 29, 12, 1, tzinfo=UTC)
STATES = ("connected", "connected", "connected", "unverified")


def worker(number: int) -> Worker:
    status = WorkerStatus.model_validate(
        {
            "state": STATES[number % 4], "instance": f"i{number}", "machine": "m", "token": "t",
            "labels": {"pool": "ab"[number % 2]}, "platform": "linux", "version": "1",
            "arch": ("x86_64", "arm64")[number % 3 % 2], "capacity": 1 + number % 3,
            "draining": number % 7 == 0, "enrolled_at": AT, "last_seen_at": AT,
        }
    )  # fmt: skip
    spec = WorkerSpec(schedulable=number % 5 != 0)
    return Record(WORKERS, f"w{number}", "u", AT, spec, status)


def lease(number: int) -> Record[Any, Any]:
    spec = LeaseSpec(
        run="r", workflow="w", job="j", step=f"s{number}", worker=f"w{number % 20}", instance="i",
        model="m", method="execute", requirement="pool=a",
    )  # fmt: skip
    return Record(
        LEASES, f"r.j.s{number}.1", "u", AT, spec, LeaseStatus(state="active", bound_at=AT)
    )


@pytest.mark.parametrize(
    "placement",
    [
        Placement(),
        Placement(labels={"pool": "a"}),
        Placement(labels={"pool": "b"}, platform="linux/arm64"),
        Placement(labels={"pool": ["a", "b"]}, platform="linux"),
        Placement(target="w11"),
        Placement(target="i13"),
        Placement(target="w10"),
        Placement(target="nobody"),
    ],
)
def test_free_slots_are_those_of_a_look_at_every_worker(placement: Placement) -> None:
    spec = PendingSpec(
        run="r", workflow="w", job="j", step="s", episode=1, placement=placement,
        call=Call(model_type="command/shell", model="m", method="execute"),
    )  # fmt: skip
    status = PendingStatus(state="waiting", queued_at=AT)
    pending = Record(PENDING, "r.j.s.1", "u", AT, spec, status)
    workers = tuple(worker(number) for number in range(60))
    leases = tuple(lease(number) for number in range(30))
    seen = Seen((pending,), leases, workers)
    expected = 0
    for one in workers:
        assert one.status is not None
        held = sum(taken.spec.worker == one.name for taken in leases)
        if available(one) and matches(placement, one):
            expected += max(0, one.status.capacity - held)
    waiting = waiting_in(seen, NOW)
    (name,) = waiting
    answers = {name: Answer(Reason("full", "all slots are taken"), 0)}
    found = {one.requirement: one for one in demand_of(seen, waiting, answers, {"soon": 3})}
    assert (found[name].free_slots, found[name].waiting) == (expected, 1)
    assert found[name].oldest_s == 60
    assert found["soon"].soon == 3
    assert found["pool=a"].running == 30
