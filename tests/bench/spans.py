"""Spans that processes have printed to their logs, with `OTEL_TRACES_EXPORTER=console`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

SWITCH = {"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "none"}
"""What has to be in the environment of the processes."""


def durations_ms(logs: list[Path], run: str) -> dict[str, list[float]]:
    """By the name of a span: how long each of that run took, milliseconds."""
    trace = run.replace("-", "")
    found: dict[str, list[float]] = {}
    for log in logs:
        for span in _spans(log.read_text(errors="replace")):
            if span["context"]["trace_id"].removeprefix("0x") == trace:
                found.setdefault(span["name"], []).append(_took_ms(span))
    return found


def _spans(text: str) -> Iterator[dict[str, Any]]:
    """Every JSON object of a log that is a span; it prints other lines too."""
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{\n", at)) >= 0:
        try:
            span, at = decoder.raw_decode(text, at)
        except ValueError:
            at += 1
            continue
        if isinstance(span, dict) and "start_time" in span:
            yield span


def _took_ms(span: dict[str, Any]) -> float:
    start, end = (datetime.fromisoformat(span[key]) for key in ("start_time", "end_time"))
    return (end - start).total_seconds() * 1000
