"""What a command without a server left: its run ends with its process, and nothing else does."""

from __future__ import annotations

from typing import Any

from run_rig import AT, TASK, AtOnce

from controllers.boot_sweep import PROCESS_ENDED, BootSweep
from datastore.clock import SystemClock
from datastore.kinds import KINDS, RUNS, STEPS, Counts, RunSpec, RunStatus, StepSpec, StepStatus
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


def test_a_run_of_a_command_ends_with_its_process_whoever_starts_next() -> None:
    for sweep in (BootSweep.run, BootSweep.run_of_commands):
        store = new_store()
        put_run(store, "own", "failed", "running", own_process=True)
        report = sweep(BootSweep(store, SystemClock()))
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
    BootSweep(store, SystemClock()).run()
    status = store.get(RUNS, "own").status
    assert status is not None
    assert (status.state, status.failure) == ("cancelled", "wrong branch")


def test_a_command_leaves_what_others_left_to_the_next_server() -> None:
    store = new_store()
    put_run(store, "served", "running")
    put_run(store, "planted", "running", own_process=True)
    report = BootSweep(store, SystemClock(), foreign=[("runs", "planted")]).run_of_commands()
    assert report.summary() is None
    assert [run.name for run in store.live(RUNS)] == ["served", "planted"]
    assert len(store.live(STEPS)) == 2
