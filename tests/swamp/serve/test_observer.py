"""What is counted, timed and traced when records change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from datastore.clock import parse_stamp
from datastore.desired import DesiredFile
from datastore.journal import Op
from datastore.journal_measures import JournalMeasures, Transaction
from datastore.kinds import (
    KINDS,
    LEASES,
    PENDING,
    RUNS,
    STEPS,
    WORKERS,
    Call,
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
from datastore.meter import Counter, Histogram
from datastore.record import Record
from datastore.store import Store
from swamp.protocol import ResultFrame
from swamp.serve.observer import Observer
from swamp.traces import Span, Traces, span_of, trace_of

RUN = "01a228f7-29d5-7bdf-94f1-0f9bbd132e50"
STEP = f"{RUN}.job.s"
DISPATCH = f"{STEP}.1"
AT, THEN, LATER = (f"2026-11-29T12:00:0{n}.000Z" for n in range(3))
CALL = Call(model_type="command/shell", model="m", method="execute")


class ManualDisk:
    """A journal that syncs when the test says so."""

    trouble = None

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            self.waiting.append(on_durable)

    def sync(self) -> None:
        batch, self.waiting = self.waiting, []
        for tell in batch:
            tell()


class Kept:
    """Traces that stay here."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def emit(self, span: Span) -> None:
        self.spans.append(span)

    def named(self, name: str) -> Span:
        return next(span for span in self.spans if span.name == f"swamp.{name}")

    def names(self) -> list[str]:
        return [span.name.removeprefix("swamp.") for span in self.spans]


class World:
    """A store that is observed, and one dispatch in it."""

    def __init__(self) -> None:
        self.disk, self.journal, self.traces = ManualDisk(), JournalMeasures(), Kept()
        self.store = Store(KINDS.values(), self.disk)
        self.observer = Observer(self.store, self.journal, cast(Traces, self.traces))
        self.measured = {one.about.name: one for one in self.observer.instruments()}

    def counted(self, name: str, *labels: str) -> float:
        counter = self.measured[name]
        assert isinstance(counter, Counter)
        return counter.values()[labels]

    def timed(self, name: str, *labels: str) -> int:
        histogram = self.measured[name]
        assert isinstance(histogram, Histogram)
        series = histogram.series().get(labels)
        return 0 if series is None else sum(series.counts)

    def wait(self, name: str = DISPATCH) -> None:
        run = name.partition(".")[0]
        spec = PendingSpec(
            run=run, workflow="w", job="job", step="s", episode=1, call=CALL, placement=Placement()
        )
        status = PendingStatus(state="waiting", queued_at=AT, reason="nobody is there")
        self.store.commit([Record(PENDING, name, "p", AT, spec, status)])

    def end_wait(self, state: str, name: str = DISPATCH) -> Record[Any, Any]:
        pending = self.store.get(PENDING, name)
        assert pending.status is not None
        changes = {"state": state, "ended_at": THEN, "waited_s": 1.0}
        return pending.with_status(pending.status.model_copy(update=changes))

    def bind(self, name: str = DISPATCH) -> None:
        spec = LeaseSpec(
            run=name.partition(".")[0], workflow="w", job="job", step="s", worker="box",
            instance="i", model="m", method="execute",
        )  # fmt: skip
        lease = Record(LEASES, name, "l", THEN, spec, LeaseStatus(state="bound", bound_at=THEN))
        self.store.commit([lease, self.end_wait("dispatched", name)])

    def move(self, state: str, name: str = DISPATCH, **changes: Any) -> None:
        lease = self.store.get(LEASES, name)
        assert lease.status is not None
        status = lease.status.model_copy(update={"state": state, **changes})
        self.store.commit([lease.with_status(status)])

    def enroll(self, name: str, enrolled_at: str) -> None:
        status = WorkerStatus(
            state="connected", instance="i", machine="m", token="t", platform="linux", arch="x",
            version="1", capacity=1, enrolled_at=enrolled_at, last_seen_at=enrolled_at,
        )  # fmt: skip
        known = self.store.find(WORKERS, name)
        fresh = Record(WORKERS, name, name, AT, WorkerSpec(), status)
        self.store.commit([fresh if known is None else known.with_status(status)])


@pytest.fixture
def world() -> World:
    return World()


DONE = Outcome(ok=True, reason="completed", exit_code=0)


def carry_out(world: World, name: str = DISPATCH) -> None:
    """From the wait to a result that is on disk."""
    world.wait(name)
    world.bind(name)
    world.disk.sync()
    world.move("active", name, active_at=THEN)
    world.observer.received(ResultFrame(dispatch=name, outcome=DONE))
    world.move("completed", name, ended_at=LATER, outcome=DONE)


async def test_an_outcome_counts_once_it_is_durable(world: World) -> None:
    carry_out(world)
    assert world.timed("swamp_queue_wait_seconds") == 1
    assert world.counted("swamp_leases_total", "completed") == 0
    assert world.timed("swamp_settle_seconds") == 0
    assert "settlement" not in world.traces.names()
    world.disk.sync()
    assert world.counted("swamp_leases_total", "completed") == 1
    assert world.timed("swamp_settle_seconds") == 1


async def test_a_file_about_an_ended_lease_counts_nothing(world: World) -> None:
    carry_out(world)
    world.disk.sync()
    spans = len(world.traces.spans)
    world.store.set_desired(LEASES, DISPATCH, DesiredFile(spec={"cancel": True}, digest="d"))
    world.store.set_desired(PENDING, DISPATCH, DesiredFile(spec={"cancel": True}, digest="d"))
    world.disk.sync()
    assert world.counted("swamp_leases_total", "completed") == 1
    assert world.timed("swamp_queue_wait_seconds") == 1
    assert len(world.traces.spans) == spans


async def test_the_spans_of_a_dispatch_hang_together(world: World) -> None:
    world.journal.acknowledged = Transaction(1.0, 2.0)
    carry_out(world)
    world.disk.sync()
    parents = {span.name.removeprefix("swamp."): span.parent for span in world.traces.spans}
    step, settlement = span_of(STEP, "step"), span_of(DISPATCH, "settlement")
    assert parents == {
        "queue": step, "placement": step, "dispatch": step, "execution": step, "settlement": step,
        "result_receipt": settlement, "journal_wait": settlement, "journal_write": settlement,
    }  # fmt: skip
    assert {span.trace for span in world.traces.spans} == {trace_of(RUN)}
    assert len({span.id for span in world.traces.spans}) == len(parents)
    assert all(span.start_ns <= span.end_ns for span in world.traces.spans)
    assert all(span.error is None for span in world.traces.spans)
    queue = world.traces.named("queue")
    assert queue.end_ns - queue.start_ns == 1_000_000_000
    assert queue.attributes["swamp.reason"] == "nobody is there"
    execution = world.traces.named("execution")
    assert execution.attributes["process.exit_code"] == 0
    assert execution.attributes["swamp.worker"] == "box"


async def test_what_never_ran_has_no_execution(world: World) -> None:
    world.wait()
    world.bind()
    world.move("expired", ended_at=LATER, reason="worker lost")
    world.disk.sync()
    assert "execution" not in world.traces.names()
    assert "result_receipt" not in world.traces.names()
    assert world.traces.named("dispatch").error == "worker lost"
    assert world.counted("swamp_leases_total", "expired") == 1
    assert world.timed("swamp_settle_seconds") == 0


async def test_what_was_cancelled_has_not_failed(world: World) -> None:
    world.wait()
    world.bind()
    world.move("active", active_at=THEN)
    cancelled = Outcome(ok=False, reason="cancelled", error="cancelled")
    world.move("failed", ended_at=LATER, reason="cancelled", outcome=cancelled)
    world.disk.sync()
    assert world.counted("swamp_leases_total", "cancelled") == 1
    assert world.counted("swamp_leases_total", "failed") == 0
    assert world.traces.named("execution").attributes["swamp.outcome"] == "cancelled"


async def test_a_wait_in_vain_is_a_failed_span(world: World) -> None:
    world.wait()
    world.store.commit([world.end_wait("timed_out")])
    assert world.traces.spans == []
    world.disk.sync()
    assert world.traces.names() == ["queue"]
    assert world.traces.named("queue").error == "nobody is there"


async def test_a_run_is_the_root_of_its_steps(world: World) -> None:
    call = StepSpec(run=RUN, workflow="w", job="job", step="s", call=CALL)
    running = RunSpec(workflow="w", workflow_id="w", definition={})
    world.store.commit(
        [Record(RUNS, RUN, "r", AT, running, RunStatus(state="running", started_at=AT))]
    )
    world.wait()
    failed = StepStatus(state="failed", started_at=THEN, ended_at=LATER, error="exit code 1")
    world.store.commit([Record(STEPS, STEP, "s", THEN, call, failed)])
    run = world.store.get(RUNS, RUN)
    ended = RunStatus(state="failed", started_at=AT, ended_at=LATER, failure="step 's' failed")
    world.store.commit([run.with_status(ended)])
    world.disk.sync()
    step, root = world.traces.spans
    assert (root.name, root.parent, root.error) == ("swamp.run", None, "step 's' failed")
    assert (step.name, step.parent, step.error) == ("swamp.step", root.id, "exit code 1")
    assert root.trace == step.trace == int(RUN.replace("-", ""), 16)
    assert root.attributes["swamp.outcome"] == step.attributes["swamp.outcome"] == "failed"
    # From its first wait on, which began before the step had a record.
    assert step.start_ns == world.traces.named("run").start_ns


def start(world: World) -> None:
    spec = RunSpec(workflow="w", workflow_id="w", definition={})
    status = RunStatus(state="running", started_at=AT)
    world.store.commit([Record(RUNS, RUN, "r", AT, spec, status)])


def end(world: World, state: Any, **changes: Any) -> None:
    """End the step, then the run, both so."""
    call = StepSpec(run=RUN, workflow="w", job="job", step="s", call=CALL)
    status = StepStatus(state=state, ended_at=LATER, **changes)
    world.store.commit([Record(STEPS, STEP, "s", THEN, call, status)])
    ended = RunStatus(
        state=state if state != "skipped" else "succeeded", started_at=AT, ended_at=LATER
    )
    world.store.commit([world.store.get(RUNS, RUN).with_status(ended)])


async def test_what_is_inside_of_a_span_ends_within_it(world: World) -> None:
    """A step and its run ended some milliseconds before the outcome of the step was on disk."""
    began_s = time.monotonic() - 60
    world.journal.acknowledged = Transaction(began_s, began_s + 1)
    start(world)
    carry_out(world)
    end(world, "succeeded")
    world.disk.sync()
    by_id = {span.id: span for span in world.traces.spans}
    assert {by_id[span.parent].name for span in world.traces.spans if span.parent is not None} == {
        "swamp.run", "swamp.step", "swamp.settlement",
    }  # fmt: skip
    for span in world.traces.spans:
        if span.parent is not None:
            assert by_id[span.parent].start_ns <= span.start_ns, span.name
            assert span.end_ns <= by_id[span.parent].end_ns, span.name


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "skipped"])
async def test_the_outcome_is_an_attribute_of_step_and_run(world: World, state: str) -> None:
    start(world)
    end(world, state)
    world.disk.sync()
    step, root = world.traces.spans
    assert step.attributes["swamp.outcome"] == state
    assert root.attributes["swamp.outcome"] == (state if state != "skipped" else "succeeded")


@pytest.mark.parametrize("reason", ["failed", "timed_out", "signalled", "cancelled"])
async def test_why_it_failed_is_said_as_the_worker_says_it(world: World, reason: str) -> None:
    outcome = Outcome(ok=False, reason=reason, error="it broke")
    start(world)
    world.wait()
    world.bind()
    world.move("active", active_at=THEN)
    world.move("failed", ended_at=LATER, reason=reason, outcome=outcome)
    end(world, "failed", outcome=outcome)
    world.disk.sync()
    execution, step = world.traces.named("execution"), world.traces.named("step")
    assert execution.attributes["swamp.reason"] == step.attributes["swamp.reason"] == reason
    counted_as = "cancelled" if reason == "cancelled" else "failed"
    assert execution.attributes["swamp.outcome"] == counted_as
    assert world.counted("swamp_leases_total", counted_as) == 1


async def test_what_succeeded_has_no_reason(world: World) -> None:
    start(world)
    carry_out(world)
    end(world, "succeeded", outcome=DONE)
    world.disk.sync()
    for name in ("execution", "step"):
        assert "swamp.reason" not in world.traces.named(name).attributes


async def test_a_step_whose_first_wait_has_no_record_any_more_begins_with_it_all_the_same(
    world: World,
) -> None:
    """Restarts keep the newest orphan alone; the later dispatch knows when the first began."""
    world.wait()
    first = world.store.get(PENDING, f"{STEP}.1")
    spec = first.spec.model_copy(update={"episode": 7, "asked_at": AT})
    later = replace(first, name=f"{STEP}.7", revision=0, created_at=LATER, spec=spec)
    world.store.commit([later], [(PENDING, first.name)])
    call = StepSpec(run=RUN, workflow="w", job="job", step="s", call=CALL)
    ended = StepStatus(state="cancelled", ended_at=LATER, episodes=7)
    world.store.commit([Record(STEPS, STEP, "s", LATER, call, ended)])
    world.disk.sync()
    assert world.traces.named("step").start_ns == int(parse_stamp(AT).timestamp() * 1e9)


async def test_probes_are_nobodys_work(world: World) -> None:
    carry_out(world, "probe.box.x.1")
    world.disk.sync()
    assert world.traces.spans == []
    assert world.counted("swamp_leases_total", "completed") == 0
    assert world.timed("swamp_queue_wait_seconds") == 0


async def test_an_enrollment_says_how_the_worker_was_found(world: World) -> None:
    async def enroll(enrolled_at: str, files_read: int) -> None:
        world.observer.enrolling().looked(files_read)
        world.enroll("box", enrolled_at)
        world.enroll("box", enrolled_at)  # A second change of the record is not a second one.

    async with asyncio.TaskGroup() as group:
        for enrolled_at, files_read in ((AT, 0), (THEN, 0), (LATER, 1)):
            group.create_task(enroll(enrolled_at, files_read))
    assert world.traces.spans == []
    world.disk.sync()
    world.enroll("box", LATER)  # Outside of an enrollment: a change like any other.
    world.disk.sync()
    looked = [span.attributes["swamp.lookup"] for span in world.traces.spans]
    assert looked == ["miss", "memory", "direct"]
    assert [span.attributes["swamp.files_read"] for span in world.traces.spans] == [0, 0, 1]
    assert len({span.trace for span in world.traces.spans}) == 3
    assert world.counted("swamp_worker_reconnects_total") == 2
    assert [world.timed("swamp_enrollment_seconds", one) for one in ("miss", "memory")] == [1, 1]
