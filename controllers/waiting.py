"""Dispatches that wait, held by requirement, in the order in which they deserve a slot. Pure.

The order: priority first (1 is most urgent; a dispatch becomes one step more urgent for each five
minutes waited), then the run that has had the fewest turns (so that a fan-out of 10,000 does not
starve a run of one, however few slots there are; who has waited for five minutes no longer stands
back for that), then who asked first: what comes back as its worker was lost stands where it stood
when it first asked. The same rank compares the heads of different requirements that compete for one
worker.

A requirement has a shelf per priority, a shelf a lane per run, a lane its dispatches. Each shelf
keeps two heaps of lane heads, by load and by age, whose entries are checked when they come up
instead of being removed when they grow old: a decision costs the logarithm of the number of runs,
however many dispatches wait.

A dispatch whose model is held goes aside, to a group of its own requirement and model: it competes
from there with the same rank, and nobody stands behind it who could go first.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

from datastore.clock import Clock, parse_stamp
from datastore.kinds import Pending, PendingSpec, Placement
from datastore.kinds.dispatch_name import is_probe

MORE_URGENT_EVERY_S = 300.0

STALE_MOST = 256
"""Entries of a heap that may have grown old before it is built anew."""

Rank = tuple[int, int, float, int]
"""Priority with its age counted in, turns of the run (0 once it has aged), since when it
counts as waiting in seconds, order of arrival: smallest first."""


def requirement_key(placement: Placement, affinity: str | None = None) -> str:
    """One text per requirement: dispatches with equal ones wait together."""
    return placement.model_dump_json() + (f"@{affinity}" if affinity is not None else "")


def asked_s(spec: PendingSpec, since_s: float, clock: Clock, now_s: float) -> float:
    """Since when (loop time) it counts as waiting among others, if this wait began at `since_s`.

    Not less than it did wait, and of a later episode since the first one began: its step has run
    in vain meanwhile, and those that asked after it have no right to go before it.
    """
    waited_since_s = since_s - spec.waited_before_s
    if spec.asked_at is None:
        return waited_since_s
    ago_s = (clock.now() - parse_stamp(spec.asked_at)).total_seconds()
    return min(waited_since_s, now_s - ago_s)


@dataclass(frozen=True, slots=True, order=True)
class _Entry:
    """A waiting dispatch. `since_s`: see `asked_s`."""

    since_s: float
    order: int
    name: str


@dataclass
class _Lane:
    """The waiting dispatches of one run at one priority, the longest waiting first."""

    run: str
    load: int
    entries: deque[_Entry] = field(default_factory=deque)


@dataclass
class _Shelf:
    """The lanes of one requirement at one priority."""

    priority: int
    lanes: dict[str, _Lane] = field(default_factory=dict)
    by_load: list[tuple[int, _Entry, str]] = field(default_factory=list)
    by_age: list[tuple[_Entry, str]] = field(default_factory=list)

    def show(self, lane: _Lane) -> None:
        """The lane's head or load is new: put it where it will be found."""
        if len(self.by_load) > 2 * len(self.lanes) + STALE_MOST:
            self._rebuild()
        head = lane.entries[0]
        heappush(self.by_load, (lane.load, head, lane.run))
        heappush(self.by_age, (head, lane.run))

    def _rebuild(self) -> None:
        """Forget the entries that have grown old."""
        self.by_load = [(one.load, one.entries[0], run) for run, one in self.lanes.items()]
        self.by_age = [(one.entries[0], run) for run, one in self.lanes.items()]
        heapify(self.by_load)
        heapify(self.by_age)

    def heads(self) -> Iterator[_Lane]:
        """The lanes whose heads may go first: the one with the least load, and the oldest."""
        while self.by_load:
            load, head, run = self.by_load[0]
            lane = self.lanes.get(run)
            if lane is not None and lane.load == load and lane.entries[0] == head:
                yield lane
                break
            heappop(self.by_load)
        while self.by_age:
            head, run = self.by_age[0]
            lane = self.lanes.get(run)
            if lane is not None and lane.entries[0] == head:
                yield lane
                break
            heappop(self.by_age)

    def rank(self, lane: _Lane, now_s: float) -> Rank:
        """The rank of the lane's head."""
        head = lane.entries[0]
        older = int(max(0.0, now_s - head.since_s) / MORE_URGENT_EVERY_S)
        load = 0 if older else lane.load
        return max(1, self.priority - older), load, head.since_s, head.order


@dataclass(frozen=True, slots=True)
class ModelLimit:
    """A model's key, and how many executions of it there may be at the same time."""

    key: str
    concurrency: int


@dataclass
class Group:
    """All waiting dispatches of one requirement."""

    placement: Placement
    affinity: str | None = None
    run: str = ""
    """The run of an affinity group; others have dispatches of many runs."""
    model: ModelLimit | None = None
    """Set where all of them call one model that was held."""
    probe: bool = False
    """Whether they are probes: no pause holds them, and they go where no step may go."""
    shelves: dict[int, _Shelf] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Place:
    group: str
    priority: int
    run: str
    entry: _Entry


class WaitingRoom:
    """Every dispatch that the scheduler has to place."""

    def __init__(
        self,
        load_of_run: Callable[[str], int],
        on_group: Callable[[str, Group], None] = lambda key, group: None,
    ) -> None:
        """`load_of_run` answers how many turns a run has had; `on_group` is told of each
        requirement that is new."""
        self._on_group = on_group
        self.groups: dict[str, Group] = {}
        self._load_of_run = load_of_run
        self._places: dict[str, _Place] = {}
        self._sizes: Counter[str] = Counter()
        self._lanes_of_run: dict[str, dict[tuple[str, int], None]] = {}
        self._aside: dict[str, dict[str, None]] = {}
        self._gone: set[int] = set()
        self._arrivals = 0

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, pending: Pending, since_s: float) -> str:
        """Take a dispatch in; answers the key of its requirement. Again after a new priority."""
        spec = pending.spec
        place = self._places.get(pending.name)
        if place is not None:
            if place.priority != spec.priority:
                self._move(pending.name, place, replace(place, priority=spec.priority))
            return place.group
        key = requirement_key(spec.placement, spec.affinity)
        probe = is_probe(pending.name)
        if probe:
            # Never beside steps: it goes where none of them may go.
            key = f"{key}?"
        if key not in self.groups:
            self._open_group(key, Group(spec.placement, spec.affinity, spec.run, probe=probe))
        self._arrivals += 1
        entry = _Entry(since_s, self._arrivals, pending.name)
        place = _Place(key, spec.priority, spec.run, entry)
        self._places[pending.name] = place
        self._sizes[key] += 1
        self._put(place)
        return key

    def remove(self, name: str) -> None:
        """The dispatch waits no more. Costs nothing however many wait before it."""
        place = self._places.pop(name, None)
        if place is None:
            return
        self._gone.add(place.entry.order)
        self._one_less(place.group)
        self._tidy(place)

    def set_aside(self, name: str, model: ModelLimit) -> None:
        """The dispatch's model is held: it lets others of its requirement go first until then."""
        place = self._places[name]
        open_group = self.groups[place.group]
        key = f"{place.group}#{model.concurrency}#{model.key}"
        if key not in self.groups:
            self._open_group(key, replace(open_group, shelves={}, model=model))
            self._aside.setdefault(model.key, {})[key] = None
        self._move(name, place, replace(place, group=key))

    def _open_group(self, key: str, group: Group) -> None:
        self.groups[key] = group
        self._on_group(key, group)

    def aside(self, model: str) -> tuple[str, ...]:
        """The keys of the groups that wait for that model."""
        return tuple(self._aside.get(model, ()))

    def load_changed(self, run: str) -> None:
        """The run has had a turn."""
        for key, priority in self._lanes_of_run.get(run, ()):
            shelf = self.groups[key].shelves[priority]
            lane = shelf.lanes[run]
            load = self._load_of_run(run)
            if load != lane.load:
                lane.load = load
                shelf.show(lane)

    def head(self, key: str, now_s: float) -> tuple[Rank, str] | None:
        """The dispatch of that requirement that goes first, None when it has none left."""
        group = self.groups.get(key)
        if group is None:
            return None
        best: tuple[Rank, str] | None = None
        for shelf in group.shelves.values():
            for lane in shelf.heads():
                found = shelf.rank(lane, now_s), lane.entries[0].name
                if best is None or found < best:
                    best = found
        return best

    def first(self, key: str, most: int) -> list[str]:
        """Some dispatches of that requirement that are near the front, for telling people."""
        group = self.groups.get(key)
        found: list[str] = []
        for priority in sorted(group.shelves) if group is not None else ():
            for lane in list(group.shelves[priority].lanes.values()) if group else ():
                found += [entry.name for entry in list(lane.entries)[: most - len(found)]]
                if len(found) >= most:
                    return found
        return found

    def key_of(self, name: str) -> str | None:
        """The requirement under which a dispatch waits."""
        place = self._places.get(name)
        return None if place is None else place.group

    def sizes(self) -> Counter[str]:
        """How many wait under each key."""
        return self._sizes.copy()

    def names(self) -> Iterator[str]:
        """Everything that waits, in no order."""
        return iter(list(self._places))

    def _one_less(self, key: str) -> None:
        self._sizes[key] -= 1
        if not self._sizes[key]:
            del self._sizes[key]

    # -- lanes -----------------------------------------------------------------------------------

    def _put(self, place: _Place) -> None:
        shelves = self.groups[place.group].shelves
        shelf = shelves.setdefault(place.priority, _Shelf(place.priority))
        lane = shelf.lanes.get(place.run)
        if lane is None:
            lane = shelf.lanes[place.run] = _Lane(place.run, self._load_of_run(place.run))
            lanes = self._lanes_of_run.setdefault(place.run, {})
            lanes[place.group, place.priority] = None
        old_head = lane.entries[0] if lane.entries else None
        insort(lane.entries, place.entry)
        if lane.entries[0] != old_head:
            shelf.show(lane)

    def _tidy(self, place: _Place) -> None:
        """Drop what is gone from the front of a lane, and the lane once it is empty."""
        group = self.groups[place.group]
        shelf = group.shelves[place.priority]
        lane = shelf.lanes[place.run]
        old_head = lane.entries[0]
        while lane.entries and lane.entries[0].order in self._gone:
            self._gone.discard(lane.entries.popleft().order)
        if lane.entries:
            if lane.entries[0] != old_head:
                shelf.show(lane)
            return
        del shelf.lanes[place.run]
        lanes = self._lanes_of_run[place.run]
        del lanes[place.group, place.priority]
        if not lanes:
            del self._lanes_of_run[place.run]
        if not shelf.lanes:
            del group.shelves[place.priority]
        if not group.shelves:
            del self.groups[place.group]
            if group.model is not None:
                groups = self._aside[group.model.key]
                del groups[place.group]
                if not groups:
                    del self._aside[group.model.key]

    def _move(self, name: str, place: _Place, moved: _Place) -> None:
        """Put a dispatch elsewhere, at the place that its waiting gives it there."""
        lane = self.groups[place.group].shelves[place.priority].lanes[place.run]
        self._places[name] = moved
        self._one_less(place.group)
        self._sizes[moved.group] += 1
        if lane.entries[0] == place.entry:
            self._put(moved)
            self._gone.add(place.entry.order)
            self._tidy(place)
            self._gone.discard(place.entry.order)
        else:
            lane.entries.remove(place.entry)
            self._put(moved)
