"""What switches traces on, which ids they have, and what a collector that is gone costs."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from swamp.traces import (
    Span,
    Traces,
    open_traces,
    span_of,
    switched_on,
    trace_environment,
    wanted_exporter,
)

ROOT = Path(__file__).parents[2]
RUN = "01a228f7-29d5-7bdf-94f1-0f9bbd132e50"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
AT = "http://127.0.0.1:4318"
STOP_WITHIN_S = 2.0


def span(number: int = 1, error: str | None = None) -> Span:
    return Span("swamp.x", 7, number, 3, 1_000, 2_000, {"swamp.step": "s"}, error)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may be traced itself."""
    for name in (ENDPOINT, "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "traces", "metrics"),
    [
        ({}, False, False),
        ({"OTEL_SERVICE_NAME": "x"}, False, False),
        ({ENDPOINT: AT}, True, True),
        ({ENDPOINT: ""}, False, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": AT}, True, False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": AT}, False, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True, False),
        ({ENDPOINT: AT, "OTEL_TRACES_EXPORTER": "none"}, False, True),
        ({ENDPOINT: AT, "OTEL_TRACES_EXPORTER": " , none"}, False, True),
        ({ENDPOINT: AT, "OTEL_TRACES_EXPORTER": "otlp,console"}, True, True),
        ({ENDPOINT: AT, "OTEL_SDK_DISABLED": "TRUE"}, False, False),
    ],
)
def test_what_switches_them_on(environment: dict[str, str], traces: bool, metrics: bool) -> None:
    assert switched_on(environment, "traces") is traces
    assert switched_on(environment, "metrics") is metrics


def test_the_trace_of_a_run_is_its_id() -> None:
    parent = trace_environment(f"{RUN}.job.step.1", "execution")["TRACEPARENT"]
    version, trace, span_id, flags = parent.split("-")
    assert (version, trace, flags) == ("00", RUN.replace("-", ""), "01")
    assert int(span_id, 16) == span_of(f"{RUN}.job.step.1", "execution")
    assert trace_environment("probe.w1.x.1", "execution") == {}


def test_parts_and_episodes_have_spans_of_their_own() -> None:
    names = [f"{RUN}.job.step.{n}" for n in (1, 2)]
    ids = {span_of(name, part) for name in names for part in ("queue", "execution", "")}
    assert len(ids) == 6
    assert all(0 < one < 1 << 64 for one in ids)


def test_a_span_arrives_as_it_was_made() -> None:
    exporter = InMemorySpanExporter()
    traces = Traces(exporter, Resource({"service.name": "swamp-serve"}))
    traces.emit(span(4))
    traces.emit(span(5, "it broke"))
    traces.close()
    good, bad = exporter.get_finished_spans()
    assert (good.name, good.start_time, good.end_time) == ("swamp.x", 1_000, 2_000)
    assert good.context is not None and good.parent is not None
    assert (good.context.trace_id, good.context.span_id, good.parent.span_id) == (7, 4, 3)
    assert good.attributes == {"swamp.step": "s"}
    assert good.resource.attributes["service.name"] == "swamp-serve"
    assert good.status.is_ok
    assert (bad.status.is_ok, bad.status.description) == (False, "it broke")


class Stuck(SpanExporter):
    """A collector that takes a batch and never comes back."""

    def __init__(self) -> None:
        self.began, self.end = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.began.set()
        self.end.wait()
        return SpanExportResult.FAILURE


def test_a_collector_that_hangs_costs_spans_and_no_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
    stuck = Stuck()
    traces = Traces(stuck, Resource({}))
    for number in range(5_000):
        traces.emit(span(number + 1))
    assert stuck.began.wait(5)
    began_s = time.monotonic()
    traces.close()
    assert time.monotonic() - began_s < STOP_WITHIN_S
    assert "does not answer" in caplog.text
    stuck.end.set()


@pytest.fixture(params=["refuses", "never answers"])
def dead_collector(request: pytest.FixtureRequest) -> Iterator[str]:
    """An address where nobody listens, or where somebody takes connections and says nothing."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if request.param == "never answers":
            bound.listen()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_the_end_of_the_process_does_not_wait_for_a_dead_collector(
    dead_collector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT, dead_collector)
    traces = open_traces("swamp-serve")
    assert traces is not None
    began_s = time.monotonic()
    for number in range(600):
        traces.emit(span(number + 1))
    traces.close()
    assert time.monotonic() - began_s < STOP_WITHIN_S


class Refusing(BaseHTTPRequestHandler):
    """A collector that takes nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(418, "no tea here")

    def log_message(self, *_: object) -> None: ...


def test_why_a_collector_takes_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: a certificate that is not trusted, a wrong address and a 500 were all alike."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.server_address[1]}")
        traces = open_traces("swamp-serve")
        assert traces is not None
        traces.emit(span(4))
        traces.close()
        server.shutdown()
    [said] = [record.message for record in caplog.records if "does not take" in record.message]
    assert said.startswith("the collector does not take traces: ")
    assert "418" in said
    assert "no tea here" in said


def test_without_variables_nothing_is_opened_or_imported() -> None:
    assert open_traces("swamp-serve") is None
    look = (
        "import sys, swamp.serve.app, swamp.worker.connect, swamp.traces;"
        "assert swamp.traces.open_traces('x') is None;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    environment = {"PATH": "/usr/bin"}
    loaded = subprocess.run(
        [sys.executable, "-c", look],
        capture_output=True, text=True, check=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin is not known"),
        ({ENDPOINT: AT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "'grpc' is not spoken here"),
        ({ENDPOINT: AT, "OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, "are not understood"),
    ],
)
def test_what_is_not_known_is_said_in_one_line(
    variables: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert open_traces("swamp-serve") is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert said in caplog.text
    assert "going on without traces" in caplog.text


@pytest.mark.parametrize(
    ("exporters", "taken", "said"),
    [
        ("otlp", "otlp", None),
        (" otlp , ", "otlp", None),
        ("otlp,console", "otlp", "OTEL_TRACES_EXPORTER: going on without console"),
        ("console, otlp", "otlp", "OTEL_TRACES_EXPORTER: going on without console"),
        ("zipkin,console", "console", "OTEL_TRACES_EXPORTER: going on without zipkin"),
        ("otlp,none,jaeger", "otlp", "OTEL_TRACES_EXPORTER: going on without none, jaeger"),
        ("zipkin,jaeger", None, "OTEL_TRACES_EXPORTER=zipkin,jaeger is not known here"),
    ],
)
def test_of_a_list_of_exporters_one_is_taken(
    exporters: str, taken: str | None, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {"OTEL_TRACES_EXPORTER": exporters}
    assert wanted_exporter(environment, "traces", ("otlp", "console")) == taken
    assert len(caplog.records) == (said is not None)
    assert said is None or said in caplog.text


def test_without_the_extra_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, AT)
    for name in [one for one in sys.modules if one.startswith("opentelemetry")]:
        monkeypatch.setitem(sys.modules, name, None)
    assert open_traces("swamp-serve") is None
    assert len(caplog.records) == 1
    assert "install swamp[otel]; going on without traces" in caplog.text
