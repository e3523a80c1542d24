"""Metrics and traces of real processes: a collector that listens, and others that do not."""

from __future__ import annotations

import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE_S, Repo
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

sys.path.insert(0, str(Path(__file__).parents[1] / "swamp" / "serve"))

from metrics_reader import Family, read_metrics

ENDED_WITHIN_S = 6.0
"""The last spans get 1.5 s; the SDK alone would wait for 10 s and more."""

PARTS = {
    "swamp.run", "swamp.step", "swamp.queue", "swamp.placement", "swamp.dispatch",
    "swamp.execution", "swamp.worker_execution", "swamp.settlement", "swamp.result_receipt",
    "swamp.journal_wait", "swamp.journal_write",
}  # fmt: skip

LOCAL = """name: here
jobs:
  - name: job
    steps:
      - name: s
        task: {type: model_method, modelType: command/shell, modelName: here, methodName: execute,
               inputs: {run: "echo parent=$TRACEPARENT"}}
"""


class Collector:
    """Takes what is exported: spans as (service, span), and the last of each metric by name."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self.metrics: dict[str, Any] = {}
        self.changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def take(self, path: str, body: bytes) -> None:
        with self.changed:
            if path == "/v1/metrics":
                for sent in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    self.metrics |= {one.name: one for one in sent.scope_metrics[0].metrics}
            else:
                for batch in ExportTraceServiceRequest.FromString(body).resource_spans:
                    named = {one.key: one.value.string_value for one in batch.resource.attributes}
                    found = batch.scope_spans[0].spans
                    self.spans += [(named["service.name"], span) for span in found]
            self.changed.notify_all()

    def wait(self, enough: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(enough, PATIENCE_S), [s.name for _, s in self.spans]

    def of_run(self, run: str) -> dict[str, tuple[str, Any]]:
        """Spans by name, of a run with one step and one episode."""
        trace = bytes.fromhex(run.replace("-", ""))
        return {span.name: (by, span) for by, span in self.spans if span.trace_id == trace}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def get_metrics(repo: Repo, token: str | None = None) -> dict[str, Family]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{repo.url}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return read_metrics(response.read().decode())


def one_run(repo: Repo) -> str:
    """Run a step that prints its TRACEPARENT; the run's id."""
    repo.shell_workflow("w", {"s": "echo parent=$TRACEPARENT"})
    repo.swamp("workflow", "run", "w")
    return str(repo.json("run", "list")["runs"][0]["runId"])


def stdout_of(repo: Repo, run: str) -> str:
    return str(repo.json("run", "show", run)["jobs"][0]["steps"][0]["stdout"])


def test_a_run_is_one_trace_over_server_worker_and_runner(repo: Repo, collector: Collector) -> None:
    repo.env |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
    }
    repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    run = one_run(repo)
    collector.wait(lambda: set(collector.of_run(run)) >= PARTS)
    spans = collector.of_run(run)
    assert {by for by, _ in spans.values()} == {"swamp-serve", "swamp-worker"}
    assert spans["swamp.worker_execution"][0] == "swamp-worker"
    ids = {span.span_id: name for name, (_, span) in spans.items()}
    parents = {name: ids.get(span.parent_span_id) for name, (_, span) in spans.items()}
    assert parents["swamp.run"] is None and parents["swamp.step"] == "swamp.run"
    assert parents["swamp.worker_execution"] == "swamp.execution"
    assert parents["swamp.journal_write"] == "swamp.settlement"
    for name, (by, span) in spans.items():
        if by == "swamp-serve" and parents[name] is not None:
            parent = spans[parents[name]][1]
            assert parent.start_time_unix_nano <= span.start_time_unix_nano, name
            assert span.end_time_unix_nano <= parent.end_time_unix_nano, name
    # What the runner was told is the worker's own span of it.
    runner = spans["swamp.worker_execution"][1].span_id.hex()
    assert f"parent=00-{run.replace('-', '')}-{runner}-01" in stdout_of(repo, run)
    assert any(span.name == "swamp.enrollment" for _, span in collector.spans)
    collector.wait(lambda: "swamp_leases_total" in collector.metrics)


def test_runners_join_where_only_the_server_is_traced(repo: Repo, collector: Collector) -> None:
    untraced = dict(repo.env)
    repo.env |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    repo.serve()
    repo.env = untraced
    repo.worker("w1", "--label", "pool=worker")
    run = one_run(repo)
    collector.wait(lambda: set(collector.of_run(run)) >= PARTS - {"swamp.worker_execution"})
    spans = collector.of_run(run)
    assert "swamp.worker_execution" not in spans
    assert f"-{spans['swamp.execution'][1].span_id.hex()}-01" in stdout_of(repo, run)

    # A step that the server runs itself has no dispatch: its own span is the parent.
    repo.write("workflows/here.yaml", LOCAL)
    repo.swamp("workflow", "run", "here")
    run = str(repo.json("run", "list")["runs"][0]["runId"])
    collector.wait(lambda: "swamp.run" in collector.of_run(run))
    spans = collector.of_run(run)
    assert set(spans) == {"swamp.run", "swamp.step"}
    parent = f"00-{run.replace('-', '')}-{spans['swamp.step'][1].span_id.hex()}-01"
    assert f"parent={parent}" in stdout_of(repo, run)


def test_metrics_are_exported_at_the_end_of_a_short_life(repo: Repo, collector: Collector) -> None:
    repo.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    one_run(repo)
    assert server.terminate() == 0
    leases = collector.metrics["swamp_leases_total"].sum.data_points
    ended = {one.attributes[0].value.string_value: one.as_int for one in leases}
    assert ended["completed"] == 1


@pytest.mark.parametrize("collector_is", ["refuses", "never answers"])
def test_a_dead_collector_delays_nothing(repo: Repo, collector_is: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if collector_is == "never answers":
            bound.listen()
        repo.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{bound.getsockname()[1]}"
        repo.env["OTEL_BSP_SCHEDULE_DELAY"] = "100"
        server = repo.serve()
        worker = repo.worker("w1", "--label", "pool=worker")
        run = one_run(repo)
        assert "parent=00-" in stdout_of(repo, run)
        for process in (worker, server):
            began_s = time.monotonic()
            assert process.terminate() == 0
            assert time.monotonic() - began_s < ENDED_WITHIN_S


@pytest.mark.parametrize("whose", ["server", "worker", "both"])
def test_runners_hear_of_no_trace_that_nobody_sends(repo: Repo, whose: str) -> None:
    """What is asked for and cannot be: their spans would hang on one that never comes."""
    for name in [one for one in repo.env if one.startswith("OTEL_") or one == "TRACEPARENT"]:
        del repo.env[name]
    plain = dict(repo.env)
    asking = plain | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    repo.env = plain if whose == "worker" else asking
    repo.serve()
    repo.env = plain if whose == "server" else asking
    repo.worker("w1", "--label", "pool=worker")
    assert stdout_of(repo, one_run(repo)).splitlines() == ["parent="]
    repo.write("workflows/here.yaml", LOCAL)
    repo.swamp("workflow", "run", "here")
    run = str(repo.json("run", "list")["runs"][0]["runId"])
    assert stdout_of(repo, run).splitlines() == ["parent="]


def test_without_variables_runners_hear_of_no_trace(repo: Repo) -> None:
    for name in [one for one in repo.env if one.startswith("OTEL_") or one == "TRACEPARENT"]:
        del repo.env[name]
    repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    assert stdout_of(repo, one_run(repo)).splitlines() == ["parent="]


def test_metrics_tell_what_happened_to_whoever_may_read(repo: Repo) -> None:
    made = repo.json("access", "token", "create", "scraper", "--role", "read", "--duration", "1h")
    repo.serve("--auth", "token")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get_metrics(repo)
    worker = repo.worker("w1", "--label", "pool=worker")
    one_run(repo)
    read = get_metrics(repo, str(made["token"]))
    assert read["swamp_leases_total"].value(outcome="completed") == 1
    assert read["swamp_queue_wait_seconds"].value("_count") == 1
    assert read["swamp_settle_seconds"].value("_count") == 1
    assert read["swamp_settle_seconds"].value("_sum") > 0
    assert read["swamp_worker_slots"].value(worker="w1", state="free") == 1
    assert read["swamp_worker_reconnects_total"].value() == 0
    assert read["swamp_invalid_files"].value() == 0
    assert read["swamp_degraded"].value() == 0

    worker.terminate()
    repo.worker("w1", "--label", "pool=worker")
    (repo.path / "workflows" / "broken.yaml").write_text("name: [")
    repo.until(lambda: get_metrics(repo, str(made["token"]))["swamp_invalid_files"].value() == 1)
    read = get_metrics(repo, str(made["token"]))
    assert read["swamp_worker_reconnects_total"].value() == 1
