"""A look-up of free slots gives what a look at every worker would give, and stays cheap."""

from __future__ import annotations

import random

import pytest

from controllers.free_slots import FreeSlots
from controllers.placement import available, choose, matches
from controllers.waiting import requirement_key
from datastore.kinds import WORKERS, NotIn, Placement, Worker, WorkerSpec, WorkerStatus
from datastore.record import Record

AT = "2026-11-29T12:00:00.000Z"


class Fleet:
    """Workers and their loads; counts how often one was looked at."""

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.load: dict[str, int] = {}
        self.looks = 0
        self.slots = FreeSlots(self.find, self.free, lambda worker: ("full", ""))

    def find(self, name: str) -> Worker | None:
        self.looks += 1
        return self.workers.get(name)

    def free(self, worker: Worker) -> int:
        assert worker.status is not None
        busy = self.load.get(worker.name, 0)
        return worker.status.capacity - busy if available(worker) else 0

    def put(self, name: str, *, schedulable: bool = True, **status: object) -> None:
        known = {
            "state": "connected", "instance": f"{name}-1", "machine": name, "token": name,
            "platform": "linux", "arch": "x86_64", "version": "1", "capacity": 2,
            "enrolled_at": AT, "last_seen_at": AT,
        }  # fmt: skip
        made = WorkerStatus.model_validate({**known, **status})
        self.workers[name] = Record(
            WORKERS, name, name, AT, WorkerSpec(schedulable=schedulable), made
        )
        self.slots.changed(name)

    def change_load(self, name: str, by: int) -> None:
        self.load[name] = self.load.get(name, 0) + by
        self.slots.changed(name)

    def best(self, placement: Placement) -> Worker | None:
        return self.slots.best(requirement_key(placement), placement)


@pytest.mark.parametrize("seed", range(20))
def test_the_same_worker_as_by_looking_at_all(seed: int) -> None:
    dice = random.Random(seed)
    fleet = Fleet()
    zones: list[str | list[str] | NotIn] = ["a", ["a", "b"], NotIn.model_validate({"not": ["a"]})]
    placements = [Placement(), Placement(labels={"pool": "x"}), Placement(platform="linux/arm64")]
    placements += [Placement(labels={"zone": zone, "pool": "y"}) for zone in zones]
    for _ in range(400):
        name = f"w{dice.randrange(12)}"
        if dice.random() < 0.5:
            fleet.put(
                name,
                schedulable=dice.random() < 0.8,
                state=dice.choice(["connected", "connected", "disconnected"]),
                labels={"pool": dice.choice("xy"), "zone": dice.choice("abc"), "host": name},
                arch=dice.choice(["x86_64", "arm64"]),
                capacity=dice.randrange(1, 4),
            )
        else:
            fleet.change_load(name, dice.choice([1, 1, -1]) if fleet.load.get(name, 0) else 1)
        placement = dice.choice(placements)
        fits = [one for one in fleet.workers.values() if one.live and matches(placement, one)]
        assert fleet.best(placement) == choose(fits, fleet.free)


def test_what_is_known_may_be_made_anew_at_any_time() -> None:
    fleet = Fleet()
    fleet.put("a", labels={"pool": "x"})
    fleet.put("b", labels={"pool": "x"})
    del fleet.workers["a"]  # and nobody says so
    assert fleet.best(Placement(labels={"pool": "x"})) == fleet.workers["b"]
    fleet.workers["c"] = fleet.workers["b"]
    fleet.slots.rebuild(fleet.workers.values())
    assert fleet.best(Placement(labels={"pool": "x"})) is not None


def test_a_choice_costs_the_same_with_a_hundred_times_the_workers() -> None:
    def looks(workers: int) -> int:
        fleet = Fleet()
        wanted = Placement(labels={"pool": "p1"})
        for number in range(workers):
            fleet.put(f"w{number:05}", labels={"pool": f"p{number % 20}", "host": f"h{number}"})
        fleet.best(wanted)
        fleet.looks = 0
        for _ in range(40):
            chosen = fleet.best(wanted)
            assert chosen is not None
            fleet.change_load(chosen.name, 1)
            fleet.change_load(chosen.name, -1)
        return fleet.looks

    assert looks(2000) <= 1.2 * looks(200)
