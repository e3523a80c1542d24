"""Instruments as Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from datastore.meter import About, Counter, Gauge, Histogram, Instrument, Labels, Series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def as_text(instruments: Iterable[Instrument]) -> str:
    """One page with all of them."""
    return "".join(f"{line}\n" for one in instruments for line in _lines(one))


def _lines(instrument: Instrument) -> Iterator[str]:
    about = instrument.about
    yield f"# HELP {about.name} {_escaped(about.help)}"
    match instrument:
        case Histogram():
            yield f"# TYPE {about.name} histogram"
            for labels, series in instrument.series().items():
                yield from _series(instrument, labels, series)
        case Counter():
            yield f"# TYPE {about.name} counter"
            for labels, value in instrument.values().items():
                yield f"{about.name}{_labels(about, labels)} {_number(value)}"
        case Gauge():
            yield f"# TYPE {about.name} gauge"
            for labels, value in instrument.values.items():
                yield f"{about.name}{_labels(about, labels)} {_number(value)}"


def _series(histogram: Histogram, labels: Labels, series: Series) -> Iterator[str]:
    about = histogram.about
    bounds = [*map(_number, histogram.bounds), "+Inf"]
    counts = list(accumulate(series.counts))
    for bound, count in zip(bounds, counts, strict=True):
        yield f"{about.name}_bucket{_labels(about, labels, le=bound)} {count}"
    yield f"{about.name}_sum{_labels(about, labels)} {_number(series.sum)}"
    yield f"{about.name}_count{_labels(about, labels)} {counts[-1]}"


def _labels(about: About, values: Labels, **more: str) -> str:
    pairs = [*zip(about.labels, values, strict=True), *more.items()]
    inside = ",".join(f'{name}="{_escaped(value, quotes=True)}"' for name, value in pairs)
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    """The shortest text that means this number."""
    return str(int(value)) if value == int(value) else repr(value)
