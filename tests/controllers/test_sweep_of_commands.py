"""Runs that the boot sweep ends: those of commands whose process has gone, and foreign ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from run_rig import AT, TASK, AtOnce

from controllers.boot_sweep import NOT_OURS, PROCESS_ENDED, BootSweep
from datastore.clock import SystemClock
from datastore.kinds import (
    KINDS,
    PENDING,
    RUNS,
    STEPS,
    Call,
    Counts,
    PendingSpec,
    PendingStatus,
    Placement,
    RunSpec,
    RunStatus,
    StepSpec,
    StepStatus,
)
from datastore.record import Record
from datastore.store import Store

DEFINITION = {"name": "w", "jobs": [{"name": "j", "steps": [{"name": "s", "task": TASK}]}]}


def put_run(store: Store, name: str, *steps: str, **spec: Any) -> None:
    """A running run of three steps, some of which have these states."""
    asked = RunSpec(workflow="w", workflow_id="x", definition=DEFINITION, **spec)
    counts, jobs = Counts(total=3, waiting=3), {"j": "running", "k": "pending", "l": "succeeded"}
    status = RunStatus(state="running", started_at=AT, counts=counts, jobs=jobs)
    records: list[Record[Any, Any]] = [Record(RUNS, name, name, AT, asked, status)]
    for number, state in enumerate(steps):
        told = StepStatus.model_validate({"state": state, "started_at": AT})
        what = StepSpec(run=name, workflow="w", job="j", step=f"s{number}")
        records.append(Record(STEPS, f"{name}.j.s{number}", f"{name}{number}", AT, what, told))
    store.commit(records)


def new_store() -> Store:
    return Store(KINDS.values(), AtOnce())


def boot(store: Store, foreign: Sequence[tuple[str, str]] = ()) -> BootSweep:
    return BootSweep(store, SystemClock(), lambda: "new", foreign=foreign)


def test_a_run_of_a_command_ends_with_its_process_whoever_starts_next() -> None:
    for sweep in (BootSweep.run, BootSweep.run_of_commands):
        store = new_store()
        put_run(store, "own", "failed", "running", own_process=True)
        report = sweep(boot(store))
        assert report.summary() == "Boot sweep: 1 run ended with the process of its command"
        assert report.ended_runs == ["own"]
        status = store.get(RUNS, "own").status
        assert status is not None
        assert (status.state, status.failure) == ("failed", PROCESS_ENDED)
        assert status.counts == Counts(total=3, failed=2, cancelled=1)
        assert status.jobs == {"j": "failed", "k": "skipped", "l": "succeeded"}
        assert (status.duration_ms or 0) > 0
        step = store.get(STEPS, "own.j.s1").status
        assert step is not None
        assert (step.state, step.error) == ("failed", PROCESS_ENDED)


def test_it_is_cancelled_where_that_was_asked() -> None:
    store = new_store()
    put_run(store, "own", own_process=True, cancel=True, cancel_reason="wrong branch")
    boot(store).run()
    status = store.get(RUNS, "own").status
    assert status is not None
    assert (status.state, status.failure) == ("cancelled", "wrong branch")


def test_a_command_leaves_what_others_left_to_the_next_server() -> None:
    store = new_store()
    put_run(store, "served", "running")
    put_run(store, "planted", "running", own_process=True)
    report = BootSweep(
        store, SystemClock(), lambda: "new", foreign=[("runs", "planted")]
    ).run_of_commands()
    assert report.summary() is None
    assert [run.name for run in store.live(RUNS)] == ["served", "planted"]
    assert len(store.live(STEPS)) == 2


def test_a_foreign_run_ends_whole_and_last_and_with_a_story() -> None:
    store = new_store()
    put_run(store, "planted", "succeeded", "running")
    put_run(store, "timeless")
    run = store.get(RUNS, "timeless")
    assert run.status is not None
    store.commit([run.with_status(run.status.model_copy(update={"started_at": "soon"}))])
    call = Call(model="m", model_type="command/shell", method="execute")
    for episode in (1, 2):
        asked = PendingSpec(
            run="planted", workflow="w", job="k", step="t", episode=episode, call=call,
            placement=Placement(),
        )  # fmt: skip
        status = PendingStatus(state="waiting", queued_at=AT)
        name = f"planted.k.t.{episode}"
        store.commit([Record(PENDING, name, name, AT, asked, status)])
    foreign = [("runs", "planted"), ("runs", "timeless"), ("pending", "planted.k.t.2")]
    stories = []
    commit = store.commit

    def seen(*args: Any, **options: Any) -> None:
        stories.append(options.get("story"))
        commit(*args, **options)

    store.commit = seen  # type: ignore[method-assign]
    report = boot(store, foreign=foreign).run()
    assert report.ended_runs == ["planted", "timeless"]
    status_of = store.get(RUNS, "planted").status
    assert status_of is not None
    assert (status_of.state, status_of.failure) == ("failed", NOT_OURS)
    assert status_of.counts == Counts(total=3, succeeded=1, failed=1, cancelled=1)
    assert status_of.ended_at is not None
    assert (status_of.duration_ms or 0) > 0
    assert store.get(STEPS, "planted.k.t").uid == "new", "its own, not that of its wait"
    waited = store.get(STEPS, "planted.k.t").status
    assert waited is not None
    assert (waited.state, waited.error, waited.episodes) == ("cancelled", NOT_OURS, 2)
    told = {story.run: story.text for story in stories if story is not None}
    assert told.keys() == {"planted", "timeless"}
    assert told["planted"].count("state: orphaned") == 2
    timeless = store.get(RUNS, "timeless").status
    assert timeless is not None
    assert (timeless.state, timeless.duration_ms) == ("failed", None)
