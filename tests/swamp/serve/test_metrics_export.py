"""What goes out by OpenTelemetry, when, and what a collector that is gone costs."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from datastore.meter import About, Counter, Instrument
from swamp.serve.metrics import Metrics
from swamp.serve.metrics_export import MetricsExport

ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
STOP_WITHIN_S = 2.0


class Counted:
    """Metrics of one counter."""

    def __init__(self) -> None:
        self.counter = Counter(About("swamp_x_total", "x"))

    async def collect(self) -> Sequence[Instrument]:
        return [self.counter]


class Collector:
    """Keeps the value of each export; answers the first one once `answers` is set."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.began, self.answers = threading.Event(), threading.Event()
        self.answers.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, body: bytes) -> None:
        sent = ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics[0]
        self.values.append(sent.metrics[0].sum.data_points[0].as_int)
        self.began.set()
        self.answers.wait()


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may be measured itself."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_METRICS_EXPORTER", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{made.server.server_address[1]}/v1/metrics")
    yield made
    made.answers.set()
    made.server.shutdown()
    made.server.server_close()


async def test_the_end_is_exported_however_short_the_life(collector: Collector) -> None:
    counted, export = Counted(), MetricsExport()
    running = asyncio.ensure_future(export.run(cast(Metrics, counted)))
    counted.counter.add()
    running.cancel()
    await export.last(cast(Metrics, counted))
    await asyncio.to_thread(export.close)
    assert collector.values == [1]


async def test_the_last_export_follows_one_that_is_under_way(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    collector.answers.clear()
    counted, export = Counted(), MetricsExport()
    running = asyncio.ensure_future(export.run(cast(Metrics, counted)))
    assert await asyncio.to_thread(collector.began.wait, 10)
    running.cancel()
    counted.counter.add()
    await export.last(cast(Metrics, counted))
    collector.answers.set()
    await asyncio.to_thread(export.close)
    assert collector.values == [0, 1]


@pytest.mark.parametrize("collector_is", ["refuses", "never answers"])
async def test_the_end_does_not_wait_for_a_dead_collector(
    collector_is: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if collector_is == "never answers":
            bound.listen()
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{bound.getsockname()[1]}/v1/metrics")
        export = MetricsExport()
        began_s = time.monotonic()
        await export.last(cast(Metrics, Counted()))
        await asyncio.to_thread(export.close)
        assert time.monotonic() - began_s < STOP_WITHIN_S
    assert "metrics does not answer" in caplog.text


async def test_nothing_is_sent_where_nothing_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    export = MetricsExport()
    await export.run(cast(Metrics, Counted()))
    await export.last(cast(Metrics, Counted()))
    export.close()


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What swamp said: a thread of the exporter's may still speak of an earlier test."""
    return [one for one in caplog.records if one.name.startswith("swamp.")]


@pytest.mark.parametrize("interval", ["abc", "-5", "0", "nan", "inf", "60s"])
def test_an_interval_that_is_none_is_said_once(
    interval: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1/v1/metrics")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
    assert MetricsExport().interval_s == 60
    (said,) = ours(caplog)
    expected = f"OTEL_METRIC_EXPORT_INTERVAL={interval} is no number of milliseconds: taking 60000"
    assert said.getMessage() == expected


@pytest.mark.parametrize(("interval", "interval_s"), [("", 60), (" 2000 ", 2), ("1", 0.1)])
def test_an_interval_is_in_milliseconds(
    interval: str,
    interval_s: float,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1/v1/metrics")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
    assert MetricsExport().interval_s == interval_s
    assert ours(caplog) == []


def test_without_metrics_their_interval_is_nobodys_affair(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "abc")
    MetricsExport()
    assert ours(caplog) == []


async def test_of_a_list_of_exporters_the_known_one_is_taken(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "prometheus, otlp")
    export = MetricsExport()
    await export.last(cast(Metrics, Counted()))
    await asyncio.to_thread(export.close)
    assert collector.values == [0]
    assert "OTEL_METRICS_EXPORTER: going on without prometheus" in caplog.text
