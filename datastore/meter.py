"""Instruments: counters, gauges and histograms with labels, cheap enough for the hot path.

An observation is a lookup in a dictionary and an addition, without a lock: one thread writes an
instrument, any other may read it, and then sees a count that is at most one observation ahead of
its sum. Whoever measures something owns its instruments; `swamp/serve` collects and exports them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Labels = tuple[str, ...]
"""Values of an instrument's labels, in the order of their names."""

DURATIONS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 1800.0,
)  # fmt: skip
"""Bounds for times, seconds: from a sync of a fast disk to a long wait."""

SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
"""Bounds for numbers of things."""


@dataclass(frozen=True, slots=True)
class About:
    """What an instrument is called, what it says, and the names of its labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


class Counter:
    """A number that only grows, by labels; 0 from the start for the labels in `known`."""

    def __init__(self, about: About, known: Iterable[Labels] = ()) -> None:
        self.about = about
        self._values: dict[Labels, float] = dict.fromkeys(known if about.labels else [()], 0)

    def add(self, *labels: str, by: float = 1) -> None:
        """So much more."""
        self._values[labels] = self._values.get(labels, 0) + by

    def values(self) -> Mapping[Labels, float]:
        """What was counted so far."""
        return dict(self._values)


@dataclass(frozen=True, slots=True)
class Gauge:
    """Values of this instant, worked out by whoever is asked for them."""

    about: About
    values: Mapping[Labels, float]


class Series:
    """The observations of one set of labels: how many fell below each bound, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self, bounds: int) -> None:
        self.counts = [0] * (bounds + 1)
        """By bucket, not added up; the last one is above all bounds."""
        self.sum = 0.0


class Histogram:
    """How observed values are spread over fixed buckets. A bound belongs to the bucket below it."""

    def __init__(self, about: About, bounds: tuple[float, ...] = DURATIONS_S) -> None:
        self.about = about
        self.bounds = bounds
        self._series: dict[Labels, Series] = {} if about.labels else {(): Series(len(bounds))}

    def observe(self, value: float, *labels: str) -> None:
        """One more value."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = Series(len(self.bounds))
        series.counts[bisect_left(self.bounds, value)] += 1
        series.sum += value

    def series(self) -> Mapping[Labels, Series]:
        """What was observed so far."""
        return dict(self._series)


Instrument = Counter | Gauge | Histogram
