"""The metrics of `/metrics` by OpenTelemetry, where `OTEL_*` variables ask for that.

They are the same instruments under the same names: collected on the event loop, sent by a thread.
While one export is under way no other begins, so a collector that does not answer costs a thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from datastore.meter import About, Counter, Gauge, Histogram, Instrument, Labels
from swamp import __version__
from swamp.serve.metrics import Metrics
from swamp.traces import (
    CLOSE_WITHIN_S,
    Collector,
    not_installed,
    resource_of,
    switched_on,
    wanted_exporter,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import DataT, HistogramDataPoint, MetricsData
    from opentelemetry.sdk.resources import Resource

log = logging.getLogger(__name__)

INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
INTERVAL_MS = 60_000.0
INTERVAL_LEAST_MS = 100.0

Send = Callable[[Sequence[Instrument], "Times"], object]


class MetricsExport:
    """Sends metrics away at every interval and once more at the end, where anything asks for it."""

    def __init__(self) -> None:
        """Blocks."""
        self._send = _sender()
        self.interval_s = INTERVAL_MS / 1000 if self._send is None else _interval_s()
        self._since_ns = time.time_ns()
        self._sending = threading.Thread()
        self._give_up_at_s = 0.0

    async def run(self, metrics: Metrics) -> None:
        """Export until cancelled; returns at once where nothing asks for it."""
        while self._send is not None:
            await asyncio.sleep(self.interval_s)
            if not self._sending.is_alive():
                await self._begin(metrics, self._send)

    async def last(self, metrics: Metrics) -> None:
        """Begin to send how it all ended, after what is being sent; `close` waits for it."""
        if self._send is not None:
            self._give_up_at_s = time.monotonic() + CLOSE_WITHIN_S
            await self._begin(metrics, self._send)

    async def _begin(self, metrics: Metrics, send: Send) -> None:
        instruments, before = await metrics.collect(), self._sending
        times = Times(self._since_ns, time.time_ns())

        def export() -> None:
            if before.ident is not None:
                before.join()
            send(instruments, times)

        self._sending = threading.Thread(target=export, daemon=True)
        self._sending.start()

    def close(self) -> None:
        """Wait for the last export, until CLOSE_WITHIN_S after it was begun. Blocks."""
        if self._give_up_at_s:
            self._sending.join(max(0.0, self._give_up_at_s - time.monotonic()))
            if self._sending.is_alive():
                log.warning("the collector of metrics does not answer: the last ones are lost")


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
    collector = Collector(OTLPMetricExporter(), "metrics")
    resource = resource_of("swamp-serve", os.environ)
    return lambda instruments, times: collector.export(as_otel(instruments, times, resource))


def _interval_s() -> float:
    """How long to wait between two exports, as the environment says; with a warning if it cannot.

    A finite number above 0.
    """
    given = os.environ.get(INTERVAL, "").strip()
    try:
        interval_ms = float(given or INTERVAL_MS)
    except ValueError:
        interval_ms = math.nan
    if not 0 < interval_ms < math.inf:
        log.warning("%s=%s is no number of milliseconds: taking %d", INTERVAL, given, INTERVAL_MS)
        interval_ms = INTERVAL_MS
    return max(INTERVAL_LEAST_MS, interval_ms) / 1000


@dataclass(frozen=True, slots=True)
class Times:
    """From when it was measured, and until when; nanoseconds of the wall clock."""

    since_ns: int
    now_ns: int


def as_otel(instruments: Sequence[Instrument], times: Times, resource: Resource) -> MetricsData:
    """The instruments in OpenTelemetry's words, everything counted from the start.

    Those without a value are left out: a metric without data points is no good one.
    """
    from opentelemetry.sdk.metrics.export import Metric, MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    told = ((one.about, _data(one, times)) for one in instruments)
    metrics = [
        Metric(about.name, about.help, _unit(about), data)
        for about, data in told
        if data.data_points
    ]
    scope = ScopeMetrics(InstrumentationScope("swamp", __version__), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _unit(about: About) -> str:
    # Of "1" Prometheus would make the name's end `_ratio`.
    return "s" if about.name.endswith("_seconds") else ""


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
