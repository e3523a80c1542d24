"""Which worker has a free slot for a requirement, without looking at every worker.

Workers that no requirement can tell apart share a *shape*: the values of the labels that some
requirement asks for, and the platform. A requirement is held against shapes, once; each shape has
its workers on a heap, the freest first. Entries are checked when they come up instead of being
removed when they grow old, so a change of one worker costs one entry, and a choice the number of
shapes that fit. Requirements that name their worker need none of this.

Each shape counts, too, how its workers stand, so that telling why a requirement waits costs the
number of shapes, not that of workers.

It is a look-up, never the truth: what it chooses is checked against the records, and `rebuild`
makes it anew from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from controllers.placement import FITS, Crowd, Stand, matches
from datastore.kinds import Placement, Worker

ShapeKey = tuple[str | None, ...]

REMEMBERED_MOST = 20_000
"""Requirements remembered; most of more would be affinity groups of ended runs."""

STALE_MOST = 64
"""Entries of a heap beyond twice its workers that may have grown old before it is built anew."""


@dataclass
class _Shape:
    sample: Worker
    """A worker that had the shape: what it matches, all of them match."""
    workers: dict[str, Stand] = field(default_factory=dict)
    """How each stood when last looked at."""
    stands: dict[Stand, int] = field(default_factory=dict)
    """How many of them stand how."""
    heap: list[tuple[int, str]] = field(default_factory=list)
    """(minus free slots, name) of workers that had some when last looked at."""


class FreeSlots:
    """The workers by shape."""

    def __init__(
        self,
        find: Callable[[str], Worker | None],
        free: Callable[[Worker], int],
        stand: Callable[[Worker], Stand],
    ) -> None:
        """`find` reads a worker's record, `free` its free slots just now; `stand` is asked why one
        that is live has none."""
        self._find = find
        self._free = free
        self._stand = stand
        self.generation = 0
        """Other shapes have other generations."""
        self._labels: tuple[str, ...] = ()
        self._shapes: dict[ShapeKey, _Shape] = {}
        self._shape_of: dict[str, ShapeKey] = {}
        self._fitting: dict[str, list[ShapeKey]] = {}

    def rebuild(self, workers: Iterable[Worker]) -> None:
        """Know these workers, as they are now, and no others."""
        self.generation += 1
        self._shapes.clear()
        self._shape_of.clear()
        self._fitting.clear()
        for worker in workers:
            self.changed(worker.name)

    def changed(self, name: str) -> None:
        """The worker is new, gone or other than before, or its load is."""
        worker = self._find(name)
        key = self._key(worker) if worker is not None and worker.live else None
        old = self._shape_of.get(name)
        if old is not None and old != key:
            left = self._shapes[old]
            _count(left.stands, left.workers.pop(name), -1)
            del self._shape_of[name]
        if worker is None or key is None:
            return
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = _Shape(worker)
            # Which requirements the new shape fits is not known.
            self._fitting.clear()
        self._shape_of[name] = key
        free = self._free(worker)
        self._note_stand(shape, worker, free)
        self._show(shape, worker, free)

    def took(self, name: str) -> None:
        """The worker has a slot less; the heap finds that out by itself."""
        worker, key = self._find(name), self._shape_of.get(name)
        if worker is not None and key is not None:
            self._note_stand(self._shapes[key], worker, self._free(worker))

    def _note_stand(self, shape: _Shape, worker: Worker, free: int) -> None:
        old = shape.workers.get(worker.name)
        new = FITS if free > 0 else self._stand(worker)
        if old == new:
            return
        if old is not None:
            _count(shape.stands, old, -1)
        _count(shape.stands, new, 1)
        shape.workers[worker.name] = new

    def best(self, requirement: str, placement: Placement) -> Worker | None:
        """The worker with most free slots, then the first by name; None if there is none."""
        found: Worker | None = None
        most = (0, "")
        for key in self._shapes_for(requirement, placement):
            top = self._top(self._shapes[key], placement)
            if top is not None and (found is None or top[0] < most):
                most, found = top
        return found

    def crowds(self) -> list[Crowd]:
        """The workers that are live, one crowd for each shape."""
        shapes = [one for one in self._shapes.values() if one.workers]
        return [Crowd(one.sample, one.stands, len(one.workers)) for one in shapes]

    def shapes(self) -> int:
        """How many shapes were seen; some may have no worker any more."""
        return len(self._shapes)

    def shape_of(self, name: str) -> ShapeKey | None:
        """Equal for workers that no requirement can tell apart; None for one that is not live."""
        return self._shape_of.get(name)

    def sample(self, shape: ShapeKey) -> Worker | None:
        """A worker that had the shape; None for a shape that was never seen."""
        found = self._shapes.get(shape)
        return None if found is None else found.sample

    def asks(self, placement: Placement) -> None:
        """Have shapes tell apart what this requirement tells apart."""
        new = sorted(set(placement.labels) - set(self._labels))
        if new:
            self._labels = (*self._labels, *new)
            names = list(self._shape_of)
            workers = (self._find(name) for name in names)
            self.rebuild(worker for worker in workers if worker is not None)

    def _key(self, worker: Worker) -> ShapeKey | None:
        status = worker.status
        if status is None:
            return None
        return (status.platform, status.arch, *(status.labels.get(one) for one in self._labels))

    def _show(self, shape: _Shape, worker: Worker, free: int) -> None:
        if free <= 0:
            return
        if len(shape.heap) > 2 * len(shape.workers) + STALE_MOST:
            shape.heap = self._fresh(shape)
            heapify(shape.heap)
            return
        heappush(shape.heap, (-free, worker.name))

    def _fresh(self, shape: _Shape) -> list[tuple[int, str]]:
        workers = (self._find(name) for name in shape.workers)
        entries = [(-self._free(worker), worker.name) for worker in workers if worker is not None]
        return [entry for entry in entries if entry[0] < 0]

    def _shapes_for(self, requirement: str, placement: Placement) -> list[ShapeKey]:
        found = self._fitting.get(requirement)
        if found is None:
            self.asks(placement)
            if len(self._fitting) >= REMEMBERED_MOST:
                self._fitting.clear()
            found = self._fitting[requirement] = [
                key for key, shape in self._shapes.items() if matches(placement, shape.sample)
            ]
        return found

    def _top(self, shape: _Shape, placement: Placement) -> tuple[tuple[int, str], Worker] | None:
        """The freest worker of the shape, entries that have grown old put right."""
        while shape.heap:
            minus_free, name = shape.heap[0]
            worker = self._find(name) if name in shape.workers else None
            free = 0 if worker is None or not matches(placement, worker) else self._free(worker)
            if worker is not None and free == -minus_free:
                return (minus_free, name), worker
            heappop(shape.heap)
            if free > 0:
                heappush(shape.heap, (-free, name))
        return None


def _count(counts: dict[Stand, int], stand: Stand, by: int) -> None:
    """Count, and keep no zeros: details are as many as notes that people write."""
    count = counts.get(stand, 0) + by
    if count:
        counts[stand] = count
    else:
        del counts[stand]
