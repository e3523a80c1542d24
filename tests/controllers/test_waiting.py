"""The waiting room against a plain sort of everything that waits."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from controllers.waiting import (
    MORE_URGENT_EVERY_S,
    ModelLimit,
    WaitingRoom,
    requirement_key,
)
from datastore.kinds import PENDING, Call, Pending, PendingSpec, Placement
from datastore.record import Record

PLACEMENTS = [Placement(labels={"pool": pool}) for pool in ("a", "b")]
HELD = ModelLimit("x", 1)
CALL = Call(model_type="command/shell", model="m", method="execute")


def pending(name: str, run: str = "r1", priority: int = 3, placement: int = 0) -> Pending:
    spec = PendingSpec(
        run=run,
        workflow="w",
        job="j",
        step=name,
        episode=1,
        call=CALL,
        placement=PLACEMENTS[placement],
        priority=priority,
    )
    return Record(kind=PENDING, name=name, uid=name, created_at="", spec=spec)


def order_of(room: WaitingRoom, key: str, now_s: float = 0.0) -> list[str]:
    """Take heads until none is left."""
    taken = []
    while (head := room.head(key, now_s)) is not None:
        taken.append(head[1])
        room.remove(head[1])
    return taken


KEY = requirement_key(PLACEMENTS[0])


def test_more_urgent_goes_first_then_first_come() -> None:
    room = WaitingRoom(lambda run: 0)
    for name, priority in (("a", 3), ("b", 1), ("c", 3), ("d", 2)):
        room.add(pending(name, priority=priority), 0.0)
    assert order_of(room, KEY) == ["b", "d", "a", "c"]


def test_a_run_of_one_goes_before_the_rest_of_a_fan_out() -> None:
    load = Counter({"big": 8})
    room = WaitingRoom(lambda run: load[run])
    for number in range(5_000):
        room.add(pending(f"big{number}", run="big"), 0.0)
    room.add(pending("one", run="small"), 5.0)
    assert room.head(KEY, 5.0) == ((3, 0, 5.0, 5_001), "one")


def test_waiting_five_minutes_makes_one_step_more_urgent() -> None:
    room = WaitingRoom(lambda run: 0)
    room.add(pending("patient", run="a", priority=4), 0.0)
    room.add(pending("young", run="b", priority=3), MORE_URGENT_EVERY_S - 1)
    for now_s, first in ((MORE_URGENT_EVERY_S - 1, "young"), (MORE_URGENT_EVERY_S, "patient")):
        head = room.head(KEY, now_s)
        assert head is not None and head[1] == first


def test_who_waited_before_keeps_its_place_in_a_new_episode() -> None:
    room = WaitingRoom(lambda run: 0)
    room.add(pending("first"), 10.0)
    room.add(pending("back-again"), 12.0 - 5.0)
    assert order_of(room, KEY, 12.0) == ["back-again", "first"]


def test_a_change_of_priority_keeps_the_place_in_the_order_of_arrival() -> None:
    room = WaitingRoom(lambda run: 0)
    for name, priority in (("a", 3), ("b", 2), ("c", 2)):
        room.add(pending(name, priority=priority), 0.0)
    room.add(pending("a", priority=2), 0.0)
    assert order_of(room, KEY) == ["a", "b", "c"]


class Machine(RuleBasedStateMachine):
    """Random arrivals, ends, loads and clock against a list."""

    def __init__(self) -> None:
        super().__init__()
        self.load: Counter[str] = Counter()
        self.room = WaitingRoom(lambda run: self.load[run])
        self.waiting: dict[str, tuple[int, Pending, float]] = {}
        self.aside: set[str] = set()
        self.arrivals = 0
        self.now_s = 0.0

    @rule(
        run=st.sampled_from("xyz"),
        priority=st.integers(1, 5),
        placement=st.integers(0, 1),
        before_s=st.integers(0, 400),
    )
    def arrive(self, run: str, priority: int, placement: int, before_s: int) -> None:
        self.arrivals += 1
        one = pending(f"p{self.arrivals}", run, priority, placement)
        since_s = self.now_s - before_s
        self.waiting[one.name] = (self.arrivals, one, since_s)
        self.room.add(one, since_s)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.waiting:
            name = data.draw(st.sampled_from(sorted(self.waiting)))
            del self.waiting[name]
            self.aside.discard(name)
            self.room.remove(name)

    @rule(data=st.data())
    def set_aside(self, data: st.DataObject) -> None:
        """Only who could go first is ever set aside."""
        placement = data.draw(st.sampled_from(PLACEMENTS))
        head = self.room.head(requirement_key(placement), self.now_s)
        if head is not None:
            self.aside.add(head[1])
            self.room.set_aside(head[1], HELD)

    @rule(data=st.data(), priority=st.integers(1, 5))
    def prioritize(self, data: st.DataObject, priority: int) -> None:
        if self.waiting:
            name = data.draw(st.sampled_from(sorted(self.waiting)))
            order, one, since_s = self.waiting[name]
            changed = one.with_spec(priority=priority)
            self.waiting[name] = (order, changed, since_s)
            self.room.add(changed, since_s)

    @rule(run=st.sampled_from("xyz"), load=st.integers(0, 3))
    def work(self, run: str, load: int) -> None:
        self.load[run] = load
        self.room.load_changed(run)

    @rule(seconds=st.integers(0, 400))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    def _rank(self, entry: tuple[int, Pending, float]) -> tuple[Any, ...]:
        order, one, since_s = entry
        older = int((self.now_s - since_s) / MORE_URGENT_EVERY_S)
        load = 0 if older else self.load[one.spec.run]
        return max(1, one.spec.priority - older), load, since_s, order

    @invariant()
    def the_head_is_the_one_that_a_sort_puts_first(self) -> None:
        assert len(self.room) == len(self.waiting)
        keys = (self.room.key_of(name) for name in self.room.names())
        assert self.room.sizes() == Counter(filter(None, keys))
        for placement, aside in product(PLACEMENTS, (False, True)):
            key = requirement_key(placement) + ("#1#x" if aside else "")
            mine = [
                e
                for e in self.waiting.values()
                if e[1].spec.placement == placement and (e[1].name in self.aside) == aside
            ]
            assert (key in self.room.aside("x")) == (aside and bool(mine))
            head = self.room.head(key, self.now_s)
            if not mine:
                assert head is None
                assert key not in self.room.groups
            else:
                best = min(mine, key=self._rank)
                assert head == (self._rank(best), best[1].name)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("count", [100, 3_000])
def test_heaps_do_not_grow_with_what_has_happened(count: int) -> None:
    load: Counter[str] = Counter()
    room = WaitingRoom(lambda run: load[run])
    for number in range(10):
        room.add(pending(f"p{number}", run=f"r{number}"), 0.0)
    for number in range(count):
        load["r1"] = 5 + number % 7
        room.load_changed("r1")
    shelf = room.groups[KEY].shelves[3]
    assert len(shelf.by_load) <= 2 * 10 + 257
