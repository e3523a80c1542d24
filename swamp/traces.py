"""Traces of OpenTelemetry: one per run, over the server, its workers and their runners.

The trace id is the run's id, and span ids follow from dispatch ids by a hash: whoever knows a
dispatch knows its spans, so nothing has to be handed on for them to meet. OpenTelemetry is imported
only where `OTEL_*` variables switch it on. Spans wait in a bounded queue for a thread of their own:
a collector that does not answer costs spans, never time.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from datastore.kinds.dispatch_name import is_probe, run_of
from swamp import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger(__name__)

QUEUE_SIZE = 16_384
"""Spans that may wait for the collector; OTEL_BSP_MAX_QUEUE_SIZE says otherwise."""

CLOSE_WITHIN_S = 1.5
"""How long the last spans may take at the end of the process."""

_TOLD_MOST = 400
"""Characters that are told of why a collector takes nothing."""

Signal = Literal["traces", "metrics"]

RUN, STEP, EXECUTION, WORKER = "run", "step", "execution", "worker_execution"
"""Spans that others, also in other processes, name as their parents."""

Attribute = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took its time, by the wall clock, nanoseconds."""

    name: str
    trace: int
    id: int
    parent: int | None
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    error: str | None = None


def switched_on(environment: Mapping[str, str], signal: Signal = "traces") -> bool:
    """Whether these variables ask for that signal, by OpenTelemetry's own rules."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = _exporters(environment, signal)
    if exporters:
        return exporters != ["none"]
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return any(environment.get(name) for name in endpoints)


def _exporters(environment: Mapping[str, str], signal: Signal) -> list[str]:
    """The exporters that are named, commas between them."""
    named = environment.get(f"OTEL_{signal.upper()}_EXPORTER", "").split(",")
    return [name.strip() for name in named if name.strip()]


def wanted_exporter(
    environment: Mapping[str, str], signal: Signal, known: tuple[str, ...]
) -> str | None:
    """The first of `known` that is asked for; a warning names what else is, None if all of it."""
    named = _exporters(environment, signal) or ["otlp"]
    wanted = next((name for name in known if name in named), None)
    own, general = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = environment.get(own) or environment.get(general) or "http/protobuf"
    if wanted is None:
        log.warning(
            "OTEL_%s_EXPORTER=%s is not known here (%s): going on without %s",
            signal.upper(), ",".join(named), " or ".join(known), signal,
        )  # fmt: skip
        return None
    others = [name for name in named if name != wanted]
    if others:
        log.warning(
            "one exporter is taken of those in OTEL_%s_EXPORTER: going on without %s",
            signal.upper(), ", ".join(others),
        )  # fmt: skip
    if wanted == "otlp" and protocol != "http/protobuf":
        log.warning(
            "the OTLP protocol '%s' is not spoken here, only http/protobuf: going on without %s",
            protocol, signal,
        )  # fmt: skip
        return None
    return wanted


def not_installed(signal: Signal, error: ImportError) -> None:
    """Say that OpenTelemetry is asked for and not there."""
    log.warning(
        "OTEL_* variables ask for %s, but %s is not installed: install swamp[otel];"
        " going on without %s", signal, error.name, signal,
    )  # fmt: skip


def trace_of(run: str) -> int:
    """The trace of a run: its id, a UUID, read as a number."""
    return uuid.UUID(run).int


def span_of(name: str, part: str = "") -> int:
    """The id of the span of a run, a step or a dispatch, or of a part of it. Never 0."""
    digest = hashlib.sha256(f"{name}/{part}".encode()).digest()
    return int.from_bytes(digest[:8], "big") or 1


def trace_environment(name: str, part: str) -> dict[str, str]:
    """The variable by which a runner's own spans join, under a span that is sent by the caller.

    `name` is the dispatch, or the step that the server runs itself.
    """
    if is_probe(name):
        return {}
    parent = f"00-{trace_of(run_of(name)):032x}-{span_of(name, part):016x}-01"
    return {"TRACEPARENT": parent}


class Exporter(Protocol):
    """What `Collector` needs of an exporter of either signal."""

    def export(self, batch: Any, /) -> Any:
        """Send a batch."""

    def shutdown(self) -> None:
        """Send nothing more."""


class _Heard(logging.Handler):
    """The last that the SDK logged in each thread: a batch is sent by one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._of_thread = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, in one line."""
        self._of_thread.text = " ".join(record.getMessage().split())[:_TOLD_MOST]

    def take(self) -> str:
        """What was logged in this thread since this was last asked."""
        text = getattr(self._of_thread, "text", "")
        self._of_thread.text = ""
        return text


_heard = _Heard()


class Collector:
    """An exporter that says once that nothing is taken and why, and once that it is again.

    What the SDK logs, three lines for every batch, goes nowhere else.
    """

    def __init__(self, exporter: Exporter, signal: Signal) -> None:
        self._exporter = exporter
        self._signal = signal
        self._failing = False
        sdk = logging.getLogger("opentelemetry")
        sdk.propagate = False
        sdk.addHandler(_heard)

    def export(self, batch: Any) -> Any:
        """Send a batch; whether that worked, as the SDK says it. Blocks."""
        _heard.take()
        result = self._exporter.export(batch)
        failing = result.name != "SUCCESS"
        if failing != self._failing:
            self._failing = failing
            if failing:
                why = _heard.take() or "no reason is given"
                log.warning("the collector does not take %s: %s", self._signal, why)
            else:
                log.warning("the collector takes %s again", self._signal)
        return result

    def shutdown(self) -> None:
        """Give up what is being sent."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 0) -> bool:
        """There is nothing that waits here."""
        return True


class Traces:
    """Takes spans and has them exported, by a thread of its own."""

    def __init__(self, exporter: SpanExporter, resource: Resource) -> None:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        size = None if "OTEL_BSP_MAX_QUEUE_SIZE" in os.environ else QUEUE_SIZE
        collector = cast("SpanExporter", Collector(exporter, "traces"))
        self._processor = BatchSpanProcessor(collector, max_queue_size=size)
        self._resource = resource

    def emit(self, span: Span) -> None:
        """Queue a span; dropped while the queue is full."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode

        def context(span_id: int) -> SpanContext:
            sampled = TraceFlags(TraceFlags.SAMPLED)
            return SpanContext(span.trace, span_id, is_remote=False, trace_flags=sampled)

        # Not by a tracer: that makes up ids of its own, and times spans while they happen.
        failed = Status(StatusCode.ERROR, span.error)
        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=context(span.id),
                parent=None if span.parent is None else context(span.parent),
                resource=self._resource,
                attributes=span.attributes,
                status=Status() if span.error is None else failed,
                start_time=span.start_ns,
                end_time=max(span.start_ns, span.end_ns),
                instrumentation_scope=InstrumentationScope("swamp", __version__),
            )
        )

    def close(self) -> None:
        """Export what waits, for CLOSE_WITHIN_S at most. Blocks."""
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_WITHIN_S)
        if closing.is_alive():
            log.warning("the collector of traces does not answer: the last spans are lost")


def open_traces(service: str) -> Traces | None:
    """Traces as the environment asks for them, None without; what is in the way is logged.

    `service` is the name of this service where the environment names none. Blocks.
    """
    if not switched_on(os.environ):
        return None
    wanted = wanted_exporter(os.environ, "traces", ("otlp", "console"))
    if wanted is None:
        return None
    try:
        return Traces(_exporter(wanted), resource_of(service, os.environ))
    except ImportError as error:
        not_installed("traces", error)
    except ValueError as error:
        log.warning("OTEL_* variables are not understood (%s): going on without traces", error)
    return None


def _exporter(wanted: str) -> SpanExporter:
    if wanted == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def resource_of(service: str, environment: Mapping[str, str]) -> Resource:
    """What OpenTelemetry calls this process, as far as the environment does not say."""
    from opentelemetry.sdk.resources import Resource

    named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    attributes = {"service.version": __version__}
    return Resource.create(attributes if named else {"service.name": service, **attributes})
