"""Prometheus' text format, written by the server and read by `metrics_reader`."""

from __future__ import annotations

import pytest
from metrics_reader import read_metrics

from datastore.meter import About, Counter, Gauge, Histogram
from swamp.serve.metrics_text import as_text


def test_what_is_written_can_be_read() -> None:
    counter = Counter(About("a_total", "How many.", ("outcome",)), known=[("done",)])
    counter.add("done", by=2)
    gauge = Gauge(About("b", "How it is."), {(): 0.25})
    read = read_metrics(as_text([counter, gauge]))
    assert {name: one.kind for name, one in read.items()} == {"a_total": "counter", "b": "gauge"}
    assert read["a_total"].help == "How many."
    assert read["a_total"].value(outcome="done") == 2
    assert read["b"].value() == 0.25


@pytest.mark.parametrize("label", ["plain", 'a "quoted" one', "back\\slash", "two\nlines", "ü = 1"])
def test_labels_may_be_any_text(label: str) -> None:
    gauge = Gauge(About("g", "Any\\thing\nat all.", ("requirement",)), {(label,): 1})
    read = read_metrics(as_text([gauge]))
    assert read["g"].value(requirement=label) == 1
    assert read["g"].help == "Any\\thing\nat all."


def test_buckets_add_up() -> None:
    histogram = Histogram(About("h_seconds", "How long.", ("lookup",)), bounds=(0.5, 1.0))
    for value in (0.1, 0.5, 0.75, 3.0):
        histogram.observe(value, "miss")
    read = read_metrics(as_text([histogram]))["h_seconds"]
    buckets = {le: read.value("_bucket", lookup="miss", le=le) for le in ("0.5", "1", "+Inf")}
    assert buckets == {"0.5": 2, "1": 3, "+Inf": 4}
    assert read.value("_count", lookup="miss") == 4
    assert read.value("_sum", lookup="miss") == pytest.approx(4.35)


def test_an_instrument_without_values_is_announced() -> None:
    read = read_metrics(as_text([Gauge(About("g", "Nothing yet.", ("worker",)), {})]))
    assert read["g"].samples == {}
