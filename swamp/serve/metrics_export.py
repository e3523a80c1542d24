"""The metrics of `/metrics` by OpenTelemetry, where `OTEL_*` variables ask for that.

They are the same instruments under the same names: collected on the event loop, sent by a thread.
While one export is under way no other begins, so a collector that does not answer costs a thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from datastore.meter import About, Counter, Gauge, Histogram, Instrument, Labels
from swamp import __version__
from swamp.serve.metrics import Metrics
from swamp.traces import Collector, not_installed, resource_of, switched_on, wanted_exporter

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import DataT, HistogramDataPoint, MetricsData
    from opentelemetry.sdk.resources import Resource

INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
INTERVAL_MS = 60_000.0

Send = Callable[["MetricsData"], object]


async def export_metrics(metrics: Metrics) -> None:
    """Export until cancelled; returns at once where nothing asks for it."""
    send = await asyncio.to_thread(_sender)
    if send is None:
        return
    resource = await asyncio.to_thread(resource_of, "swamp-serve", os.environ)
    since_ns, sending = time.time_ns(), threading.Thread()
    while True:
        await asyncio.sleep(_interval_s())
        if not sending.is_alive():
            times = Times(since_ns, time.time_ns())
            data = as_otel(await metrics.collect(), times, resource)
            sending = threading.Thread(target=send, args=(data,), daemon=True)
            sending.start()


def _sender() -> Send | None:
    """What sends metrics away; None, perhaps with a warning, where there is to be none."""
    if not switched_on(os.environ, "metrics"):
        return None
    if wanted_exporter(os.environ, "metrics", ("otlp",)) is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError as error:
        not_installed("metrics", error)
        return None
    return Collector(OTLPMetricExporter(), "metrics").export


def _interval_s() -> float:
    try:
        return max(0.1, float(os.environ.get(INTERVAL, INTERVAL_MS)) / 1000)
    except ValueError:
        return INTERVAL_MS / 1000


@dataclass(frozen=True, slots=True)
class Times:
    """From when it was measured, and until when; nanoseconds of the wall clock."""

    since_ns: int
    now_ns: int


def as_otel(instruments: Sequence[Instrument], times: Times, resource: Resource) -> MetricsData:
    """The instruments in OpenTelemetry's words, everything counted from the start."""
    from opentelemetry.sdk.metrics.export import Metric, MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [
        Metric(one.about.name, one.about.help, _unit(one.about), _data(one, times))
        for one in instruments
    ]
    scope = ScopeMetrics(InstrumentationScope("swamp", __version__), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _unit(about: About) -> str:
    return "s" if about.name.endswith("_seconds") else "1"


def _data(instrument: Instrument, times: Times) -> DataT:
    from opentelemetry.sdk.metrics import export

    def points(values: Mapping[Labels, float]) -> list[export.NumberDataPoint]:
        about = instrument.about
        return [
            export.NumberDataPoint(_named(about, labels), times.since_ns, times.now_ns, value)
            for labels, value in values.items()
        ]

    cumulative = export.AggregationTemporality.CUMULATIVE
    match instrument:
        case Counter():
            return export.Sum(points(instrument.values()), cumulative, is_monotonic=True)
        case Gauge():
            return export.Gauge(points(instrument.values))
        case Histogram():
            return export.Histogram(_spread(instrument, times), cumulative)


def _spread(histogram: Histogram, times: Times) -> list[HistogramDataPoint]:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    # The protocol has least and greatest as optional, the dataclass does not say so.
    unknown = cast(float, None)
    return [
        HistogramDataPoint(
            attributes=_named(histogram.about, labels),
            start_time_unix_nano=times.since_ns,
            time_unix_nano=times.now_ns,
            count=sum(series.counts),
            sum=series.sum,
            bucket_counts=list(series.counts),
            explicit_bounds=histogram.bounds,
            min=unknown,
            max=unknown,
        )
        for labels, series in histogram.series().items()
    ]


def _named(about: About, labels: Labels) -> dict[str, str]:
    return dict(zip(about.labels, labels, strict=True))
