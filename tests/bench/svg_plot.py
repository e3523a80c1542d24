"""Line plots as SVG texts, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 44, 76
COLORS = ("#3b82f6", "#e8590c", "#2f9e44", "#ae3ec9", "#868e96")
GREY = "#868e96"

Point = tuple[float, float]


@dataclass(frozen=True)
class Axes:
    """What a plot shows, and how far its axes reach from 0."""

    title: str
    x: str
    y: str
    x_most: float
    y_most: float

    def at(self, point: Point) -> Point:
        """Where a point lies in the picture."""
        wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return (
            LEFT + wide * point[0] / self.x_most,
            HEIGHT - BOTTOM - high * point[1] / self.y_most,
        )


def plot(title: str, labels: tuple[str, str], series: Mapping[str, Sequence[Point]]) -> str:
    """The picture; `labels` are those of x and y, points of a series are sorted by x."""
    points = [point for line in series.values() for point in line]
    x_most, y_most = (_above(max(p[i] for p in points)) for i in (0, 1))
    axes = Axes(title, *labels, x_most, y_most)
    parts = [*_frame(axes)]
    for number, (name, line) in enumerate(series.items()):
        parts += _line(axes, number, name, sorted(line))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="{GREY}">'
    )
    return "\n".join([head, f"<title>{escape(title)}</title>", *parts, "</svg>", ""])


def _above(value: float) -> float:
    """A round number that is not below."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value)


def _frame(axes: Axes) -> Iterable[str]:
    yield f'<text x="{LEFT}" y="24" font-size="15">{escape(axes.title)}</text>'
    for part in range(5):
        share = part / 4
        x, y = axes.at((axes.x_most * share, axes.y_most * share))
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GREY}" stroke-opacity=".3"/>'
        yield _text(LEFT - 8, y + 4, f"{axes.y_most * share:,.4g}", "end")
        yield _text(x, HEIGHT - BOTTOM + 18, f"{axes.x_most * share:,.0f}", "middle")
    yield _text(WIDTH - RIGHT, HEIGHT - BOTTOM + 36, axes.x, "end")
    yield _text(LEFT, TOP - 8, axes.y, "end")


def _line(axes: Axes, number: int, name: str, line: Sequence[Point]) -> Iterable[str]:
    color = COLORS[number % len(COLORS)]
    places = [axes.at(point) for point in line]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
    yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places)
    x = LEFT + number * (WIDTH - LEFT) // 4
    yield f'<path d="M{x} {HEIGHT - 18}h18" stroke="{color}" stroke-width="3"/>'
    yield _text(x + 24, HEIGHT - 14, name, "start")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
