"""The JSON shapes that people and machines read, from records made by hand."""

from datetime import UTC, datetime
from typing import Any

import pytest

from controllers.asked import MISSING
from datastore.kinds import (
    LEASES,
    PENDING,
    RUNS,
    STEPS,
    TOKENS,
    WORKERS,
    Call,
    Counts,
    Lease,
    LeaseSpec,
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
    Token,
    TokenSpec,
    TokenStatus,
    Worker,
    WorkerSpec,
    WorkerStatus,
)
from datastore.record import Record
from swamp.run_views import run_list, run_view
from swamp.views import queue_list, token_list, worker_list

AT = "2026-11-29T10:00:00.000Z"
NOW = datetime(2026, 11, 29, 10, 0, 30, tzinfo=UTC)
RUN = "run-1"


def worker(
    name: str,
    state: str = "connected",
    *,
    draining: bool = False,
    schedulable: bool = True,
    token: str = "fleet",
) -> Worker:
    status = WorkerStatus(
        state=state,  # type: ignore[arg-type]
        draining=draining,
        instance=f"i-{name}",
        machine=f"m-{name}",
        token=token,
        labels={"pool": "worker"},
        platform="linux",
        arch="x86_64",
        version="0.1.0",
        capacity=2,
        enrolled_at=AT,
        last_seen_at=AT,
    )
    return Record(WORKERS, name, f"u-{name}", AT, WorkerSpec(schedulable=schedulable), status)


def lease(step: str, worker_name: str = "t1", state: str = "active", episode: int = 1) -> Lease:
    spec = LeaseSpec(
        run=RUN,
        workflow="fan",
        job="build",
        step=step,
        worker=worker_name,
        instance="i",
        model="m",
        method="execute",
    )
    status = LeaseStatus(state=state, bound_at=AT)  # type: ignore[arg-type]
    return Record(LEASES, f"{RUN}.build.{step}.{episode}", "u", AT, spec, status)


def pending(
    step: str, state: str | None = "waiting", queued_at: str = AT, reason: str | None = "0 of 0"
) -> Pending:
    spec = PendingSpec(
        run=RUN,
        workflow="fan",
        job="build",
        step=step,
        episode=1,
        call=Call(model_type="command/shell", model="m", method="execute"),
        placement=Placement(labels={"pool": "gpu"}),
        wait_limit_s=600,
    )
    status = None
    if state is not None:
        status = PendingStatus(state=state, queued_at=queued_at, reason=reason)  # type: ignore[arg-type]
    return Record(PENDING, f"{RUN}.build.{step}.1", "u", AT, spec, status)


def step(name: str, state: str, template: str | None = None, **status: Any) -> Step:
    spec = StepSpec(run=RUN, workflow="fan", job="build", step=name, template=template)
    return Record(
        STEPS,
        f"{RUN}.build.{name}",
        "u",
        AT,
        spec,
        StepStatus(state=state, **status),  # type: ignore[arg-type]
    )


def run(name: str = RUN, state: str = "running", **status: Any) -> Run:
    definition = {
        "name": "fan",
        "jobs": [
            {
                "name": "build",
                "steps": [
                    {"name": "first"},
                    {"name": "probe-${{ self.host }}", "forEach": {"item": "host", "in": "x"}},
                    {"name": "last"},
                ],
            },
            {"name": "publish", "steps": [{"name": "push"}]},
        ],
    }
    spec = RunSpec(workflow="fan", workflow_id="id-fan", definition=definition)
    return Record(
        RUNS,
        name,
        "u",
        status.pop("created_at", AT),
        spec,
        RunStatus(state=state, started_at=AT, **status),  # type: ignore[arg-type]
    )


# -- workers -------------------------------------------------------------------------------------


def test_workers_are_sorted_and_show_the_leases_they_hold() -> None:
    shown = worker_list([worker("t2"), worker("t1")], [lease("b"), lease("a")])
    assert [view["name"] for view in shown["workers"]] == ["t1", "t2"]
    busy = shown["workers"][0]
    assert busy["status"] == "busy"
    assert busy["activeDispatchIds"] == ["run-1.build.a.1", "run-1.build.b.1"]
    assert busy["capacity"] == 2
    assert shown["workers"][1]["status"] == "idle"
    assert shown["count"] == 2
    assert "filteredDisconnectedCount" not in shown
    assert "note" not in busy


def test_disconnected_workers_are_counted_and_hidden_unless_asked_for() -> None:
    fleet = [worker("gone", "disconnected"), worker("here")]
    shown = worker_list(fleet, [])
    assert [view["name"] for view in shown["workers"]] == ["here"]
    assert (shown["count"], shown["filteredDisconnectedCount"]) == (1, 1)
    everybody = worker_list(fleet, [], show_all=True)
    assert [view["status"] for view in everybody["workers"]] == ["disconnected", "idle"]
    assert "filteredDisconnectedCount" not in everybody


def test_what_keeps_a_worker_from_new_work_shows_before_busy() -> None:
    fleet = [worker("a", draining=True), worker("b", schedulable=False)]
    shown = worker_list(fleet, [lease("x", "a"), lease("y", "b")])
    assert [view["status"] for view in shown["workers"]] == ["draining", "cordoned"]


# -- queue ---------------------------------------------------------------------------------------


def test_the_queue_lists_only_waiting_dispatches_oldest_first() -> None:
    older = "2026-11-29T09:59:00.000Z"
    shown = queue_list(
        [pending("new"), pending("old", queued_at=older), pending("done", "dispatched"),
         pending("unseen", None)],
        NOW,
    )  # fmt: skip
    assert [view["stepName"] for view in shown] == ["old", "new"]
    assert shown[0] == {
        "queueId": "run-1.build.old.1",
        "requirement": "pool=gpu",
        "workflowName": "fan",
        "runId": RUN,
        "jobName": "build",
        "stepName": "old",
        "model": "m",
        "modelType": "command/shell",
        "methodName": "execute",
        "priority": 3,
        "queuedAt": older,
        "ageMs": 90_000,
        "reason": "0 of 0",
        "limitS": 600.0,
        "limitFrom": "default",
    }


# -- tokens --------------------------------------------------------------------------------------


def token(name: str, state: str, expires_at: str, **status: Any) -> Token:
    return Record(
        TOKENS,
        name,
        "u",
        AT,
        TokenSpec(expires_at=expires_at, max_enrollments=3),
        TokenStatus(state=state, secret_hash="0" * 64, **status),  # type: ignore[arg-type]
    )


def test_tokens_show_their_bindings_and_never_their_hash() -> None:
    later = "2026-11-30T00:00:00.000Z"
    shown = token_list(
        [token("fleet", "enrolled", later, enrollments=2)],
        [worker("w2"), worker("w1", "disconnected"), worker("other", token="else")],
        NOW,
    )
    assert shown == [
        {
            "name": "fleet",
            "state": "enrolled",
            "effectiveState": "enrolled",
            "createdAt": AT,
            "expiresAt": later,
            "maxEnrollments": 3,
            "bindingCount": 2,
            "bindings": [
                {"worker": "w1", "machineId": "m-w1", "enrolledAt": AT},
                {"worker": "w2", "machineId": "m-w2", "enrolledAt": AT},
            ],
        }
    ]


def test_a_live_token_past_its_expiry_is_effectively_expired_an_ended_one_is_what_it_is() -> None:
    shown = token_list([token("b", "unused", AT), token("a", "revoked", AT, ended_at=AT)], [], NOW)
    assert [(view["name"], view["state"], view["effectiveState"]) for view in shown] == [
        ("a", "revoked", "revoked"),
        ("b", "unused", "expired"),
    ]
    assert shown[0]["revokedAt"] == AT
    assert "revokedAt" not in shown[1]


# -- runs ----------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_filtered_and_limited() -> None:
    runs = [
        run("r1", "succeeded", created_at="2026-11-29T09:00:00.000Z", duration_ms=5),
        run("r3", "failed", created_at="2026-11-29T11:00:00.000Z", failure="why"),
        run("r2", "succeeded", created_at="2026-11-29T10:00:00.000Z"),
    ]
    assert [item["runId"] for item in run_list(runs)["runs"]] == ["r3", "r2", "r1"]
    assert [item["runId"] for item in run_list(runs, status="succeeded")["runs"]] == ["r2", "r1"]
    assert [item["runId"] for item in run_list(runs, limit=1)["runs"]] == ["r3"]
    assert run_list(runs, workflow="other") == {"runs": []}
    assert run_list(runs)["runs"][0]["failureReason"] == "why"
    assert run_list(runs)["runs"][2]["durationMs"] == 5


def names_and_states(view: dict[str, Any], job: int = 0) -> list[tuple[str, str]]:
    return [(step["name"], step["status"]) for step in view["jobs"][job]["steps"]]


def test_steps_come_in_the_order_of_the_definition_copies_in_the_place_of_their_template() -> None:
    template = "probe-${{ self.host }}"
    view = run_view(
        run(counts=Counts(total=5), jobs={"build": "running"}),
        [
            step("probe-10", "succeeded", template, started_at=AT, ended_at=AT),
            step("probe-2", "running", template, started_at=AT),
            step("first", "succeeded"),
        ],
        [pending("probe-3")],
        [],
    )
    assert names_and_states(view) == [
        ("first", "succeeded"),
        ("probe-2", "running"),
        ("probe-3", "waiting"),
        ("probe-10", "succeeded"),
        ("last", "pending"),
    ]
    assert view["jobs"][0]["steps"][2]["template"] == template
    assert names_and_states(view, 1) == [("push", "pending")]
    assert [job["status"] for job in view["jobs"]] == ["running", "pending"]


def test_a_template_without_copies_is_shown_itself() -> None:
    view = run_view(run(), [step("probe-${{ self.host }}", "skipped")], [], [])
    assert names_and_states(view)[1] == ("probe-${{ self.host }}", "skipped")


@pytest.mark.parametrize(
    ("record", "waits", "leased", "state"),
    [
        (None, None, None, "pending"),
        (None, "waiting", None, "waiting"),
        (None, "dispatched", None, "pending"),
        (None, "dispatched", "active", "running"),
        (None, None, "completed", "pending"),
        ("waiting", "waiting", None, "waiting"),
        ("waiting", None, "bound", "running"),
        ("running", None, "active", "running"),
        ("succeeded", None, None, "succeeded"),
    ],
)
def test_a_steps_state(
    record: str | None, waits: str | None, leased: str | None, state: str
) -> None:
    view = run_view(
        run(),
        [step("first", record)] if record else [],
        [pending("first", waits)] if waits else [],
        [lease("first", state=leased)] if leased else [],
    )
    assert names_and_states(view)[0] == ("first", state)


def test_a_waiting_step_says_why_and_a_failed_one_how_it_ended() -> None:
    ended = "2026-11-29T10:00:05.500Z"
    outcome = Outcome(ok=False, reason="failed", exit_code=7, stderr="boom\n")
    view = run_view(
        run(state="failed", ended_at=ended, duration_ms=5500, failure="step first failed"),
        [
            step(
                "first",
                "failed",
                worker="t1",
                started_at=AT,
                ended_at=ended,
                episodes=2,
                waited_s=1.5,
                error="Command exited with code 7",
                outcome=outcome,
            )
        ],
        [pending("last", reason="0 of 1 workers fit")],
        [],
    )
    assert view["jobs"][0]["steps"][0] == {
        "name": "first",
        "status": "failed",
        "worker": "t1",
        "startedAt": AT,
        "completedAt": ended,
        "durationMs": 5500,
        "waitedS": 1.5,
        "episodes": 2,
        "reason": "failed",
        "error": "Command exited with code 7",
        "exitCode": 7,
        "stderr": "boom\n",
    }
    assert view["jobs"][0]["steps"][-1]["reason"] == "0 of 1 workers fit"
    assert (view["status"], view["failureReason"]) == ("failed", "step first failed")
    assert view["durationMs"] == 5500


def test_a_desired_file_that_is_gone_shows_in_every_view() -> None:
    gone = f"00112233aabbccdd{MISSING}"
    record = worker("w1")
    assert record.status is not None
    record = record.with_status(record.status.model_copy(update={"desired": gone}))
    assert worker_list([record], [])["workers"][0]["desiredFile"] == "missing"
    one = token("t1", "unused", "2027-01-01T00:00:00.000Z", desired=gone)
    assert token_list([one], [], NOW)[0]["desiredFile"] == "missing"
    assert run_view(run(desired=gone), [], [], [])["desiredFile"] == "missing"
    assert "desiredFile" not in run_view(run(desired="00112233aabbccdd"), [], [], [])


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize(
    ("state", "cancel", "reason"),
    [
        ("active", False, None),
        ("active", True, "to be cancelled: its end is not known yet"),
        ("recovering", False, f"its worker is away since {AT}"),
    ],
)
def test_a_running_step_says_what_keeps_it_from_its_end(
    state: str, cancel: bool, reason: str | None, is_recorded: bool
) -> None:
    """Regression: of a run that was cancelled it was not to be seen that anybody had asked."""
    found = lease("c", state=state).with_spec(cancel=cancel)
    assert found.status is not None
    found = found.with_status(found.status.model_copy(update={"recovering_at": AT}))
    records = [step("c", "running", started_at=AT)] if is_recorded else []
    [seen] = [
        one
        for one in run_view(run(), records, [], [found])["jobs"][0]["steps"]
        if one["name"] == "c"
    ]
    assert (seen["status"], seen.get("reason")) == ("running", reason)
