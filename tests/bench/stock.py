"""Repositories with many records and definitions, written as fast as the datastore can.

Records go through the datastore's own writer of files and into its index, as those of a server that
has stopped cleanly; the server must not run meanwhile. They are on disk before anything is
measured, or the disk would still be writing them beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from datastore.index import Index
from datastore.journal import Put
from datastore.kinds import (
    KINDS,
    LEASES,
    PENDING,
    RUNS,
    STEPS,
    WORKERS,
    Call,
    Counts,
    LeaseSpec,
    LeaseStatus,
    Outcome,
    PendingSpec,
    PendingStatus,
    Placement,
    RunSpec,
    RunStatus,
    StepSpec,
    StepStatus,
    WorkerSpec,
    WorkerStatus,
)
from datastore.layout import Layout
from datastore.observed_files import ObservedFiles
from datastore.record import Record

AT = "2026-11-29T12:00:00.000Z"
STEPS_PER_RUN = 100
AT_ONCE = 5_000

CALL = Call(model_type="command/shell", model="shell", method="execute", arguments={"run": "true"})
PLACED = Placement(labels={"pool": "bench"})
DONE = Outcome(ok=True, reason="completed", exit_code=0, duration_ms=2)

MODEL = """type: command/shell
typeVersion: 2026.02.09.1
name: stored-{number}
methods:
  execute:
    arguments:
      run: "true"
"""


def finished_records(repository: Path, count: int) -> None:
    """So many records of finished runs: runs, steps, pending dispatches, leases."""
    _write(repository, islice(_finished(), count))


def finished_run(repository: Path, steps: int) -> str:
    """One finished run of so many steps, shown with all of them; its id."""
    run = "0193f000-0000-7000-8000-ffffffffffff"
    loop = {"name": "s-${{ self.n }}", "forEach": {"item": "n", "in": "${{ inputs.count }}"}}
    definition = {"name": "stored", "jobs": [{"name": "fan", "steps": [loop]}]}
    below = (record for number in range(steps) for record in _step(run, f"s-{number}"))
    _write(repository, chain([_run(run, steps, definition)], below))
    return run


def workers(repository: Path, count: int) -> None:
    """So many workers that are away."""
    _write(repository, (_worker(number) for number in range(count)))


def definitions(repository: Path, count: int) -> None:
    """So many model definitions, each in a file that is named otherwise."""
    folder = repository / "models" / "command" / "stored"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number:08x}.yaml").write_text(MODEL.format(number=number))
    os.sync()


def forget_index(repository: Path) -> None:
    """Make the next start a cold one."""
    for path in (repository / ".swamp").glob("index.db*"):
        path.unlink()


def _write(repository: Path, records: Iterable[Record[Any, Any]]) -> None:
    layout = Layout(repository)
    index, written = Index(layout.index, KINDS), ObservedFiles(layout, KINDS)
    every = iter(records)
    while lot := list(islice(every, AT_ONCE)):
        rows = [(record.kind.folder, written.apply(Put(record))) for record in lot]
        index.update((kind, row) for kind, row in rows if row is not None)
    index.close()
    os.sync()


def _finished() -> Iterator[Record[Any, Any]]:
    number = 0
    while True:
        run = f"0193f000-0000-7000-8000-{number:012x}"
        yield _run(run, STEPS_PER_RUN, {"name": "stored"})
        for step in range(STEPS_PER_RUN):
            yield from _step(run, f"s-{step}")
        number += 1


def _run(run: str, steps: int, definition: dict[str, Any]) -> Record[Any, Any]:
    spec = RunSpec(workflow="stored", workflow_id="stored", definition=definition)
    counts = Counts(total=steps, succeeded=steps)
    status = RunStatus(state="succeeded", started_at=AT, ended_at=AT, counts=counts)
    return Record(RUNS, run, run, AT, spec, status)


def _step(run: str, step: str) -> Iterator[Record[Any, Any]]:
    names: dict[str, str] = {"run": run, "workflow": "stored", "job": "fan", "step": step}
    name, dispatch = f"{run}.fan.{step}", f"{run}.fan.{step}.1"
    yield Record(
        STEPS, name, name, AT, StepSpec(**names, call=CALL, placement=PLACED),
        StepStatus(
            state="succeeded", started_at=AT, ended_at=AT, worker="w1", dispatch=dispatch,
            episodes=1, outcome=DONE,
        ),
    )  # fmt: skip
    yield Record(
        PENDING, dispatch, dispatch, AT,
        PendingSpec(**names, episode=1, call=CALL, placement=PLACED),
        PendingStatus(state="dispatched", queued_at=AT, waited_s=0, ended_at=AT, worker="w1"),
    )  # fmt: skip
    yield Record(
        LEASES, dispatch, dispatch, AT,
        LeaseSpec(**names, worker="w1", instance="i", model="shell", method="execute"),
        LeaseStatus(state="completed", bound_at=AT, active_at=AT, ended_at=AT, outcome=DONE),
    )  # fmt: skip


def _worker(number: int) -> Record[Any, Any]:
    name = f"stored-{number:016x}"
    status = WorkerStatus(
        state="disconnected", instance=f"i{number}", machine=f"m{number}", token="stored",
        labels={"pool": "stored", "fleet": "stored"}, platform="linux", arch="x86_64",
        version="0.1.0", capacity=1, enrolled_at=AT, last_seen_at=AT, disconnected_at=AT,
    )  # fmt: skip
    return Record(WORKERS, name, name, AT, WorkerSpec(), status)
