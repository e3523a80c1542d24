"""`worker list` and `worker queue`: the seed's columns, by the server or on records."""

from typing import Any

from datastore.kinds import (
    LEASES,
    PENDING,
    WORKERS,
    Call,
    LeaseSpec,
    LeaseStatus,
    PendingSpec,
    PendingStatus,
    Placement,
    WorkerSpec,
    WorkerStatus,
)
from datastore.layout import Layout
from datastore.record import Record
from datastore.yaml_emitter import emit

AT = "2026-10-10T14:29:05.251Z"


def on_disk(repo: Layout, record: Record[Any, Any]) -> None:
    path = repo.record_file(record.kind.folder, record.name)
    path.write_text(emit(record.document()))


def worker(name: str, state: str, labels: dict[str, str]) -> Record[Any, Any]:
    status = WorkerStatus(
        state=state,  # type: ignore[arg-type]
        instance="i",
        machine="m",
        token=name,
        labels=labels,
        platform="linux",
        arch="x86_64",
        version="0.1.0",
        capacity=2,
        enrolled_at=AT,
        last_seen_at=AT,
    )
    return Record(WORKERS, name, f"u-{name}", AT, WorkerSpec(), status)


def lease(name: str, state: str) -> Record[Any, Any]:
    spec = LeaseSpec(
        run="r", workflow="w", job="j", step="s", worker="t1", instance="i", model="m",
        method="execute",
    )  # fmt: skip
    status = LeaseStatus(state=state, bound_at=AT)  # type: ignore[arg-type]
    return Record(LEASES, name, "u", AT, spec, status)


def test_workers_from_records_look_like_the_seeds_sample(repo: Layout, swamp: Any) -> None:
    on_disk(repo, worker("t1", "connected", {"pool": "worker"}))
    on_disk(repo, lease("r.j.s.1", "active"))
    on_disk(repo, lease("r.j.s.2", "completed"))
    result = swamp("worker", "list")
    assert result.code == 0
    assert result.out == (
        "NAME  STATUS  SLOTS  LABELS       PLATFORM/ARCH  LAST SEEN\n"
        "t1    busy    1/2    pool=worker  linux/x86_64   2026-10-10T14:29:05.251Z\n"
    )
    assert result.err.startswith("no server is running: this is what the records say")
    assert swamp("worker", "list", "--json").err == swamp("worker", "list", "-q").err == ""
    shown = swamp("worker", "list", "--json").json
    assert shown["workers"][0]["activeDispatchIds"] == ["r.j.s.1"]
    assert shown["count"] == 1


def test_no_workers_and_only_hidden_ones_are_said(repo: Layout, swamp: Any) -> None:
    assert swamp("worker", "list").out.startswith("No workers. Start one: swamp worker token")
    on_disk(repo, worker("old", "disconnected", {}))
    assert swamp("worker", "list").out == "1 disconnected worker not shown; see --all\n"
    assert swamp("worker", "list", "--all").err == ""
    assert swamp("worker", "list", "--all").out == (
        "NAME  STATUS        SLOTS  LABELS  PLATFORM/ARCH  LAST SEEN\n"
        "old   disconnected  0/2    -       linux/x86_64   2026-10-10T14:29:05.251Z\n"
    )
    on_disk(repo, worker("new", "connected", {}))
    assert swamp("worker", "list").out.endswith("\n\n1 disconnected worker not shown; see --all\n")


def test_the_queue_from_records_says_why(repo: Layout, swamp: Any) -> None:
    assert swamp("worker", "queue").out == "No step waits for a worker.\n"
    assert swamp("worker", "queue", "--json").out == "[]\n"
    spec = PendingSpec(
        run="r", workflow="w", job="j", step="s", episode=1,
        call=Call(model_type="command/shell", model="m", method="execute"),
        placement=Placement(labels={"pool": "gpu"}),
    )  # fmt: skip
    status = PendingStatus(state="waiting", queued_at=AT, reason="0 of 0 workers fit")
    on_disk(repo, Record(PENDING, "r.j.s.1", "u", AT, spec, status))
    headers, row = swamp("worker", "queue").out.splitlines()
    assert headers.split("  ")[0] == "REQUIREMENT"
    assert " ".join(headers.split()) == "REQUIREMENT RUN STEP MODEL PRIO QUEUED AT AGE REASON"
    assert row.startswith(f"pool=gpu     r    w/j/s  m      3     {AT}  ")
    assert row.endswith("  0 of 0 workers fit")


def test_two_runs_of_one_workflow_are_told_apart_in_the_queue(server: Any, swamp: Any) -> None:
    item = {
        "requirement": "pool=gpu", "workflowName": "w", "jobName": "j", "stepName": "s",
        "model": "m", "priority": 3, "queuedAt": AT, "ageMs": 0, "reason": "full",
    }  # fmt: skip
    runs = ("01a2272d-5817-7772-9494-93d9d88bca27", "01a2272d-6000-7772-9494-93d9d88bca27")
    server.answers["GET", "/api/v1/queue"] = (200, [{**item, "runId": run} for run in runs])
    shown = [line.split()[1] for line in swamp("worker", "queue").out.splitlines()]
    assert shown == ["RUN", "01a2272d-5817", "01a2272d-6000"]
    twins = (runs[0], runs[0][:20] + "x")
    server.answers["GET", "/api/v1/queue"] = (200, [{**item, "runId": run} for run in twins])
    shown = [line.split()[1] for line in swamp("worker", "queue").out.splitlines()]
    assert shown == ["RUN", runs[0][:21], twins[1]]


def test_demand_without_a_server_says_what_it_needs(repo: Layout, swamp: Any) -> None:
    refused = swamp("worker", "demand")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("Error: demand needs a server, which alone knows the workers")
    assert "swamp worker queue" in refused.err


def test_a_running_server_is_asked(server: Any, swamp: Any) -> None:
    answer = {"workers": [], "count": 0, "filteredDisconnectedCount": 2}
    server.answers["GET", "/api/v1/workers"] = (200, answer)
    server.answers["GET", "/api/v1/queue"] = (200, [])
    assert swamp("worker", "list").out == "2 disconnected workers not shown; see --all\n"
    assert swamp("worker", "list", "--all", "--json").json == answer
    assert swamp("worker", "queue", "--json").json == []
    assert [path for _, path, _ in server.asked] == [
        "/api/v1/workers", "/api/v1/workers?all=1", "/api/v1/queue"
    ]  # fmt: skip


def test_a_refusal_of_the_server_is_one_line_with_its_code(server: Any, swamp: Any) -> None:
    server.answers["GET", "/api/v1/queue"] = (
        503,
        {"error": "the disk is full", "code": "degraded"},
    )
    result = swamp("worker", "queue")
    assert (result.code, result.err) == (1, "Error: the disk is full\n")
    assert swamp("worker", "queue", "--json").err == (
        '{"error": "the disk is full", "code": "degraded"}\n'
    )


def test_another_server_is_asked_by_url_without_any_repository(swamp: Any) -> None:
    result = swamp("worker", "list", "--server", "http://127.0.0.1:1")
    assert result.code == 1
    assert "no server listens on http://127.0.0.1:1" in result.err
