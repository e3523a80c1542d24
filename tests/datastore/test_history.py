from __future__ import annotations

import random
from typing import Any, Literal

import pytest
from record_samples import AT, lease
from record_samples import run as run_of

from datastore.history import TAIL_BYTES, build_story, tail
from datastore.kinds import (
    LEASES,
    PENDING,
    RUNS,
    STEPS,
    Call,
    Counts,
    Lease,
    LeaseStatus,
    Outcome,
    Pending,
    PendingSpec,
    PendingStatus,
    Placement,
    Run,
    RunSpec,
    RunStatus,
    Step,
    StepSpec,
    StepStatus,
)
from datastore.record import Record
from datastore.yaml_loader import load

LATER = "2026-11-29T16:41:33.623Z"


def the_run() -> Run:
    spec = RunSpec(
        workflow="@scope/deploy", workflow_id="1", inputs={"env": "prod", "n": 0}, definition={}
    )
    status = RunStatus(
        state="failed",
        started_at=AT,
        ended_at=LATER,
        duration_ms=2500,
        jobs={"build": "succeeded", "ship": "failed", "never": "skipped"},
        failure="step ship.push failed",
    )
    return Record(RUNS, "r1", "u", AT, spec, status)


def step(job: str, name: str, **status: Any) -> Step:
    spec = StepSpec(run="r1", workflow="w", job=job, step=name)
    return Record(STEPS, f"r1.{job}.{name}", "u", AT, spec, StepStatus.model_validate(status))


def pending(job: str, name: str, episode: int, **status: Any) -> Pending:
    spec = PendingSpec(
        run="r1",
        workflow="w",
        job=job,
        step=name,
        episode=episode,
        call=Call(model_type="command/shell", model="m", method="execute"),
        placement=Placement(labels={"pool": "gpu"}),
    )
    found = PendingStatus.model_validate({"queued_at": AT, **status})
    return Record(PENDING, f"r1.{job}.{name}.{episode}", "u", AT, spec, found)


def ended_lease(name: str, on: str, state: str, reason: str | None = None) -> Lease:
    status = LeaseStatus.model_validate({"state": state, "bound_at": AT, "reason": reason})
    return Record(LEASES, name, "u", AT, lease(name, on).spec, status)


def story(shuffled: int = 0) -> str:
    failed = Outcome(
        ok=False, reason="failed", exit_code=3, duration_ms=40, stderr="1\n2\nboom\n", stdout=""
    )
    done = Outcome(ok=True, reason="completed", exit_code=0, duration_ms=7, stdout="secret-free")
    steps = [
        step(
            "build", "compile", state="succeeded", started_at=AT, ended_at=AT, worker="w1",
            outcome=done,
        ),
        step("build", "note", state="skipped"),
        step(
            "ship", "push", state="failed", started_at=AT, ended_at=LATER, worker="w2",
            waited_s=1.23456, episodes=2, outcome=failed, error="exit code 3",
        ),
    ]  # fmt: skip
    pendings = [
        pending("ship", "push", 1, state="dispatched", reason="0 of 1 workers fit", waited_s=1.2),
        pending("ship", "push", 2, state="dispatched", worker="w2"),
    ]
    leases = [
        ended_lease("r1.ship.push.1", "w1", "expired", "worker lost"),
        ended_lease("r1.ship.push.2", "w2", "failed"),
    ]
    mix = random.Random(shuffled)
    for records in (steps, pendings, leases):
        mix.shuffle(records)
    return build_story(the_run(), steps, pendings, leases)


def test_story_tells_what_happened_where_and_why() -> None:
    value = load(story().encode(), "story").value
    assert list(value) == [
        "apiVersion", "kind", "run", "workflow", "state", "startedAt", "endedAt", "durationMs",
        "failure", "inputs", "jobs",
    ]  # fmt: skip
    assert value["kind"] == "RunStory"
    assert value["inputs"] == {"env": "prod", "n": 0}
    build, ship, never = value["jobs"]
    assert (build["name"], build["state"]) == ("build", "succeeded")
    assert [found["name"] for found in build["steps"]] == ["compile", "note"]
    assert build["steps"][1] == {"name": "note", "state": "skipped"}
    assert "stdout" not in build["steps"][0]
    assert build["steps"][0]["exitCode"] == 0
    assert never == {"name": "never", "state": "skipped"}
    assert ship["steps"] == [
        {
            "name": "push",
            "state": "failed",
            "worker": "w2",
            "startedAt": AT,
            "endedAt": LATER,
            "durationMs": 40,
            "waitedS": 1.235,
            "error": "exit code 3",
            "exitCode": 3,
            "reason": "failed",
            "stderr": "1\n2\nboom\n",
            "episodes": [
                {
                    "state": "dispatched",
                    "reason": "0 of 1 workers fit",
                    "waitedS": 1.2,
                    "worker": "w1",
                    "lease": "expired",
                    "leaseReason": "worker lost",
                },
                {"state": "dispatched", "worker": "w2", "lease": "failed"},
            ],
        }
    ]


def test_story_does_not_depend_on_the_order_of_the_records() -> None:
    assert len({story(shuffled) for shuffled in range(10)}) == 1


def test_steps_without_an_outcome_are_timed_by_start_and_end() -> None:
    timed = step("j", "s", state="cancelled", started_at=AT, ended_at=LATER)
    value = load(build_story(the_run(), [timed], [], []).encode(), "story").value
    assert value["jobs"][-1]["steps"][0]["durationMs"] == 2500


@pytest.mark.parametrize(
    ("state", "counted", "said"),
    [("cancelled", 9, 8), ("cancelled", 1, None), ("cancelled", 0, None), ("failed", 9, None)],
)
def test_steps_of_a_cancelled_run_that_are_only_counted_are_told_of(
    state: Literal["cancelled", "failed"], counted: int, said: int | None
) -> None:
    counts = Counts(total=counted, cancelled=counted)
    run = the_run().with_status(RunStatus(state=state, started_at=AT, counts=counts))
    value = load(build_story(run, [step("j", "s", state="cancelled")], [], []).encode(), "s").value
    assert value.get("neverStarted") == said


def test_only_the_tail_of_output_is_kept() -> None:
    assert tail("".join(f"{n}\n" for n in range(100))) == "".join(f"{n}\n" for n in range(80, 100))
    assert tail("") == ""
    assert len(tail("x" * 100_000)) == TAIL_BYTES
    assert len(tail("ü€😀" * 10_000).encode()) <= TAIL_BYTES
    assert "€" in tail("ü€😀" * 10_000)


def test_a_run_comes_to_its_end_whatever_its_records_hold() -> None:
    """Regression: the inputs of an older run held a lone surrogate, and its story never came."""
    poisoned = run_of("r", inputs={"names": ["caf\udce9"]})
    story = load(build_story(poisoned, [], [], []).encode(), "story").value
    assert story["inputs"] == {"names": ["caf\ufffd"]}
