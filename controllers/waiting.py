"""Dispatches that wait, held by requirement, in the order in which they deserve a slot. Pure.

Inside a requirement: priority (1 is most urgent), then the run with the fewest live leases (so that
a fan-out of 10,000 does not starve a run of one), then first come first served. The same rank
compares the heads of different requirements that compete for one worker.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from datastore.kinds import Pending, Placement

Rank = tuple[int, int, int]
"""Priority, live leases of the run, order of arrival: the smallest goes first."""


def requirement_key(placement: Placement) -> str:
    """One text per requirement: dispatches with equal ones wait together."""
    return placement.model_dump_json()


@dataclass
class _Lane:
    """The waiting dispatches of one run at one priority, in order of arrival."""

    names: deque[tuple[int, str]] = field(default_factory=deque)


@dataclass
class Group:
    """All waiting dispatches of one requirement."""

    placement: Placement
    lanes: dict[tuple[int, str], _Lane] = field(default_factory=dict)

    def head(self, load_of_run: Callable[[str], int], gone: set[str]) -> tuple[Rank, str] | None:
        """The dispatch that goes first, skipping names in `gone`."""
        best: tuple[Rank, str] | None = None
        for (priority, run), lane in list(self.lanes.items()):
            while lane.names and lane.names[0][1] in gone:
                gone.discard(lane.names.popleft()[1])
            if not lane.names:
                del self.lanes[priority, run]
                continue
            order, name = lane.names[0]
            rank = (priority, load_of_run(run), order)
            if best is None or rank < best[0]:
                best = rank, name
        return best


@dataclass(frozen=True, slots=True)
class _Place:
    group: str
    lane: tuple[int, str]
    order: int


class WaitingRoom:
    """Every dispatch that the scheduler has to place."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self._places: dict[str, _Place] = {}
        self._gone: set[str] = set()
        self._arrivals = 0

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, pending: Pending) -> str:
        """Take a dispatch in; answers the key of its requirement. Again after a new priority."""
        lane_key = (pending.spec.priority, pending.spec.run)
        place = self._places.get(pending.name)
        if place is not None:
            if place.lane != lane_key:
                self._change_lane(pending.name, place, lane_key)
            return place.group
        key = requirement_key(pending.spec.placement)
        group = self.groups.setdefault(key, Group(pending.spec.placement))
        self._arrivals += 1
        self._gone.discard(pending.name)
        group.lanes.setdefault(lane_key, _Lane()).names.append((self._arrivals, pending.name))
        self._places[pending.name] = _Place(key, lane_key, self._arrivals)
        return key

    def remove(self, name: str) -> None:
        """The dispatch waits no more. Costs nothing however many wait before it."""
        place = self._places.pop(name, None)
        if place is None:
            return
        group = self.groups[place.group]
        lane = group.lanes.get(place.lane)
        if lane is not None and lane.names and lane.names[0][1] == name:
            lane.names.popleft()
        else:
            self._gone.add(name)
        if lane is not None and not lane.names:
            del group.lanes[place.lane]
        if not group.lanes:
            del self.groups[place.group]

    def group_of(self, name: str) -> Group | None:
        """The requirement under which a dispatch waits."""
        place = self._places.get(name)
        return None if place is None else self.groups.get(place.group)

    def head(self, key: str, load_of_run: Callable[[str], int]) -> tuple[Rank, str] | None:
        """The dispatch of that requirement that goes first, None when it has none left."""
        group = self.groups.get(key)
        if group is None:
            return None
        head = group.head(load_of_run, self._gone)
        if head is None:
            del self.groups[key]
        return head

    def names(self) -> Iterator[str]:
        """Everything that waits, in no order."""
        return iter(list(self._places))

    def _change_lane(self, name: str, place: _Place, lane_key: tuple[int, str]) -> None:
        """Move to another lane now, at the place that the order of arrival gives it there."""
        lanes = self.groups[place.group].lanes
        lanes[place.lane].names.remove((place.order, name))
        if not lanes[place.lane].names:
            del lanes[place.lane]
        insort(lanes.setdefault(lane_key, _Lane()).names, (place.order, name))
        self._places[name] = replace(place, lane=lane_key)
