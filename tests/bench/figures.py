"""What a benchmark finds: figures over several rounds, each beside its floor, and growth curves."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Goal:
    """What the judged number, the ratio where there is a floor, should be. None: no limit."""

    at_most: float | None = None
    at_least: float | None = None

    def met(self, number: float) -> bool:
        """Whether the number is within it."""
        low, high = self.at_least, self.at_most
        return (low is None or number >= low) and (high is None or number <= high)

    def __str__(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return f"≤ {self.at_most:g}" if self.at_most is not None else ""


@dataclass
class Figure:
    """One number per round. With floors of the same rounds, the goal is about their ratio."""

    work: str
    what: str
    unit: str
    rounds: list[float]
    floors: list[float] = field(default_factory=list)
    floor: str = ""
    """What the floor is, in a few words."""
    goal: Goal = Goal()
    inverted: bool = False
    """Whether the ratio is floor over figure: the share of the possible speed."""

    @property
    def ratios(self) -> list[float]:
        """Figure over floor, round by round."""
        pairs = zip(self.rounds, self.floors, strict=True) if self.floors else ()
        return [floor / one if self.inverted else one / floor for one, floor in pairs]

    @property
    def judged(self) -> float:
        """The median that the goal is about."""
        return statistics.median(self.ratios or self.rounds)

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without one."""
        return self.goal.met(self.judged) if str(self.goal) else None

    def document(self) -> dict[str, Any]:
        """Everything about it, for the JSON file."""
        return {**asdict(self), "goal": str(self.goal), "ratios": self.ratios, "met": self.met}


@dataclass
class Curve:
    """How something grows: one line per series, points of x and y."""

    name: str
    title: str
    x: str
    y: str
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, series: str, x: float, y: float) -> None:
        """One more point of a series."""
        self.series.setdefault(series, []).append((x, y))


@dataclass
class Bench:
    """One run of the suite: what it may take, and what it has found so far."""

    quick: bool
    say: Callable[[str], None]
    figures: list[Figure] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What went wrong, or has to be known to read the figures."""
    failed: bool = False

    def size(self, full: int, quick: int) -> int:
        """How much of something: less of it in a quick run."""
        return quick if self.quick else full

    @property
    def rounds(self) -> int:
        """How often a figure is taken."""
        return 1 if self.quick else 3

    def add(self, figure: Figure) -> Figure:
        """Take a figure, and say so."""
        self.figures.append(figure)
        self.say(f"  {figure.what}: {figure.judged:.3g} {figure.goal!s}")
        return figure

    def curve(self, curve: Curve) -> Curve:
        """Take a curve; points may follow."""
        self.curves.append(curve)
        return curve

    @contextmanager
    def tolerated(self, what: str) -> Iterator[None]:
        """Note that something failed, and go on with the rest."""
        try:
            yield
        except (AssertionError, OSError, RuntimeError, ValueError) as error:
            self.failed = True
            first = str(error).strip().splitlines()[:1]
            self.notes.append(f"{what}: {type(error).__name__}: {' '.join(first)[:300]}")
            self.say(f"  FAILED {self.notes[-1]}")


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
