"""What probes print and store is kept apart from that of steps, and nothing of it stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from datastore.kinds import KINDS
from datastore.kinds.probe import PROBE_MODEL, PROBE_OUTPUT
from datastore.layout import Layout
from datastore.outputs import Origin, OutputFiles, StoredOutput
from datastore.store import Store
from swamp.serve.probe_evidence import HEARD_MOST, ProbeOutput
from swamp.serve.step_data import OutputsOfSteps

AT = "2026-11-29T16:41:31.123Z"
PROBE = "probe.x.1"


class OfSteps:
    """A log of steps' output."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def output(self, run: str, *_: Any) -> None:
        self.runs.append(run)

    def output_count(self, run: str, dispatch: str) -> int:
        return 7


class NoJournal:
    """Nothing is written."""

    trouble = None

    def append(self, ops: Any, on_durable: Any = None) -> None: ...


def outputs_in(folder: Path) -> OutputsOfSteps:
    outputs = OutputsOfSteps(OutputFiles(Layout(folder)), lambda call: None)
    outputs.load(Store(KINDS.values(), NoJournal()))
    return outputs


def stored(outputs: OutputsOfSteps, run: str, dispatch: str) -> StoredOutput:
    upload = outputs.files.begin()
    upload.write(b"x")
    origin = Origin(PROBE_MODEL, run, "probe", "w1", dispatch)
    made = outputs.files.keep(upload, origin, PROBE_OUTPUT, "text/plain", AT)
    outputs.note(made)
    return made


def said(text: str) -> dict[str, str]:
    return {"job": "probe", "step": "w1", "stream": "stdout", "text": text}


async def test_output_of_probes_goes_to_no_log_and_each_piece_counts_once(tmp_path: Path) -> None:
    steps = OfSteps()
    heard = ProbeOutput(steps, outputs_in(tmp_path))
    acknowledged = []
    for number, text in ((1, "a"), (2, "b"), (2, "b"), (3, "c" * HEARD_MOST)):
        heard.output("probe", PROBE, number, said(text), lambda: acknowledged.append(1))
    heard.output("r", "r.j.s.1", 1, said("step"), lambda: None)
    assert heard.heard(PROBE)[:3] == "abc"
    assert len(heard.heard(PROBE)) == HEARD_MOST
    assert heard.output_count("probe", PROBE) == 3
    assert heard.output_count("r", "r.j.s.1") == 7
    assert len(acknowledged) == 4
    assert steps.runs == ["r"]


async def test_what_a_probe_stored_goes_with_it_and_at_the_latest_with_the_next_start(
    tmp_path: Path,
) -> None:
    outputs = outputs_in(tmp_path)
    heard = ProbeOutput(OfSteps(), outputs)
    heard.output("probe", PROBE, 1, said("a"), lambda: None)
    mine = stored(outputs, "probe", PROBE)
    of_a_step = stored(outputs, "r", "r.j.s.1")
    heard.forget(PROBE)
    assert heard.heard(PROBE) == ""
    await asyncio.get_running_loop().shutdown_default_executor()
    assert not outputs.files.raw(mine).exists()
    assert outputs.files.raw(of_a_step).exists()

    left = stored(outputs, "probe", "probe.y.1")
    again = outputs_in(tmp_path)
    assert not again.files.raw(left).exists()
    assert again.files.raw(of_a_step).exists()
