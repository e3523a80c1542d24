"""Who fits a placement and who is chosen, row by row."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import pytest

from controllers import placement
from controllers.placement import Fleet, available, choose, explain, matches, takes_probes
from datastore.definitions.placement import PlacementTemplate
from datastore.kinds import WORKERS, Placement, Worker, WorkerSpec, WorkerStatus
from datastore.record import Record

AT = "2026-11-29T12:00:00.000Z"


def worker(name: str = "box", *, schedulable: bool = True, **status: Any) -> Worker:
    known = {
        "state": "connected", "instance": f"{name}-1", "machine": name, "token": name,
        "labels": {"pool": "gpu", "zone": "a"}, "platform": "linux", "arch": "x86_64",
        "version": "1", "capacity": 2, "enrolled_at": AT, "last_seen_at": AT,
    }  # fmt: skip
    made = WorkerStatus.model_validate({**known, **status})
    return Record(WORKERS, name, name, AT, WorkerSpec(schedulable=schedulable), made)


def reason(placement: Placement, *workers: Worker, load: int = 0) -> str:
    held = tuple(f"d{i}" for i in range(load))
    fleet = Fleet(lambda: workers, lambda name: held, lambda name: False, known=len(workers))
    return explain(placement, fleet).code


@pytest.mark.parametrize(
    ("template", "active"),
    [
        (PlacementTemplate(), False),
        (PlacementTemplate(labels={}), False),
        (PlacementTemplate(target="box"), True),
        (PlacementTemplate(labels={"pool": "gpu"}), True),
        (PlacementTemplate(platform="linux"), True),
    ],
)
def test_any_single_field_is_a_placement_and_none_is_none(
    template: PlacementTemplate, active: bool
) -> None:
    assert template.active is active


@pytest.mark.parametrize(
    ("placement", "fits"),
    [
        (Placement(), True),
        (Placement(target="box"), True),
        (Placement(target="box-1"), True),
        (Placement(target="other"), False),
        (Placement(target="box", labels={"pool": "cpu"}), True),
        (Placement(labels={"pool": "gpu"}), True),
        (Placement(labels={"pool": "gpu", "zone": "a"}), True),
        (Placement(labels={"pool": "gpu", "zone": "b"}), False),
        (Placement(labels={"rack": "7"}), False),
        (Placement(platform="linux"), True),
        (Placement(platform="linux/x86_64"), True),
        (Placement(platform="linux/arm64"), False),
        (Placement(platform="darwin"), False),
        (Placement(platform="linux", labels={"pool": "cpu"}), False),
    ],
)
def test_every_given_part_must_hold_and_a_target_decides_alone(
    placement: Placement, fits: bool
) -> None:
    assert matches(placement, worker()) is fits


def test_disconnected_draining_and_cordoned_workers_take_nothing() -> None:
    assert available(worker())
    assert not available(worker(state="disconnected"))
    assert not available(worker(draining=True))
    assert not available(worker(schedulable=False))


def test_most_free_slots_win_and_then_the_name() -> None:
    fleet = [worker("c", capacity=2), worker("b", capacity=2), worker("a", capacity=1)]
    free = {"a": 1, "b": 2, "c": 2}
    for order in (fleet, fleet[::-1]):
        chosen = choose(order, lambda one: free[one.name])
        assert chosen is not None
        assert chosen.name == "b"


def test_a_worker_with_a_free_slot_is_chosen_and_a_full_one_never() -> None:
    fleet = [worker("a", capacity=3), worker("b", capacity=3)]
    one_left = choose(fleet, lambda one: {"a": 0, "b": 1}[one.name])
    assert one_left is not None
    assert one_left.name == "b"
    assert choose(fleet, lambda one: 0) is None
    assert choose([], lambda one: 1) is None


@pytest.mark.parametrize("target", [None, "box"])
def test_whoever_cannot_run_now_waits_with_the_reason(target: str | None) -> None:
    placement = Placement(target=target) if target else Placement(labels={"pool": "gpu"})
    assert reason(placement, worker(), load=2) == "full"
    assert reason(placement, worker(draining=True)) == "draining"
    assert reason(placement, worker(schedulable=False)) == "cordoned"


def test_a_placement_that_nobody_meets_waits_too() -> None:
    assert reason(Placement(labels={"pool": "cpu"}), worker()) == "no_match"
    assert reason(Placement(labels={"pool": "cpu"})) == "no_workers"
    assert reason(Placement(target="other")) == "target_unknown"
    assert reason(Placement(target="box"), worker(state="disconnected")) == "target_disconnected"


def test_a_value_that_some_worker_has_is_never_suggested_for_itself() -> None:
    """Regression, found by the simulation: the only worker with the value was cordoned."""
    workers = (
        worker("w1", schedulable=False, labels={"pool": "b"}),
        worker("w2", labels={"pool": "a"}),
    )
    fleet = Fleet(lambda: workers, lambda name: (), lambda name: False)
    text = explain(Placement(labels={"pool": "b"}), fleet).text
    assert text == "0 of 2 workers fit: 1 cordoned, 1 lacks pool=b (pool is: a, b)"


@pytest.mark.parametrize(
    ("free", "full", "said"),
    [
        (0, 1, "0 of 1 workers fit: 1 full"),
        (1, 0, "1 of 1 workers fits"),
        (1, 8, "1 of 9 workers fits; of the others: 8 full"),
        (2, 1, "2 of 3 workers fit; of the others: 1 full"),
    ],
)
def test_how_many_fit_is_said_once(free: int, full: int, said: str) -> None:
    """Regression: it said "1 of 9 workers fit: 1 fits, 8 full"."""
    workers = [worker(f"w{number}") for number in range(free + full)]
    busy = {one.name for one in workers[free:]}
    fleet = Fleet(lambda: workers, lambda name: ("d",) * 2 * (name in busy), lambda name: False)
    assert explain(Placement(), fleet).text == said


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"not": ["ci"]}, "2 have pool=ci, which the step excludes"),
        ({"not": ["ci", "old"]}, "2 have pool=ci, which the step excludes, 1 has pool=old, which"),
        (["x", "y"], "3 lack pool=x or y (pool is: ci, old)"),
    ],
)
def test_sets_and_negations_are_told_in_plain_words(rule: Any, said: str) -> None:
    """Regression: it said "2 lack pool not in (ci)"."""
    pools = {"w1": "ci", "w2": "ci", "w3": "old"}
    workers = tuple(worker(name, labels={"pool": pool}) for name, pool in pools.items())
    fleet = Fleet(lambda: workers, lambda name: ("d",) * 2, lambda name: False)
    assert said in explain(Placement.model_validate({"labels": {"pool": rule}}), fleet).text


def test_an_unverified_worker_takes_probes_and_no_steps() -> None:
    unverified = worker(state="unverified")
    assert not available(unverified)
    assert takes_probes(unverified)
    assert reason(Placement(labels={"pool": "gpu"}), unverified) == "unverified"
    assert reason(Placement(target="box"), unverified) == "unverified"
    fleet = Fleet(lambda: [worker(state="unverified", verify_failure="no way")], lambda _: (), bool)
    assert explain(Placement(), fleet).text == "0 of 1 workers fit: 1 unverified (no way)"


def test_cordoned_workers_take_probes_and_draining_or_absent_ones_do_not() -> None:
    assert takes_probes(worker(schedulable=False))
    assert not takes_probes(worker(draining=True))
    assert not takes_probes(worker(state="disconnected"))


def test_a_name_that_was_meant_is_found_among_very_many_by_comparing_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: among 5,000 workers a misspelt target stopped everything for 50 ms."""
    compared = []

    def counted(word: str, known: list[str], n: int) -> list[str]:
        compared.append(len(known))
        return get_close_matches(word, known, n=n)

    monkeypatch.setattr(placement, "get_close_matches", counted)
    one = worker()
    workers = [replace(one, name=f"worker-{number:05}") for number in range(2_000)]
    workers += [replace(one, name=f"gpu-box-{number:05}") for number in range(2_000)]
    fleet = Fleet(lambda: workers, lambda name: (), lambda name: False)
    text = explain(Placement(target="wrker-00017"), fleet).text
    assert text == "no worker 'wrker-00017' is known; did you mean 'worker-00017'?"
    assert compared == [placement.COMPARED_MOST]
