"""`swamp run list | show | watch | cancel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from datastore.errors import NotFound
from swamp.cli.command import Help, Server, command, group
from swamp.cli.completion import run_ids
from swamp.cli.console import Console
from swamp.cli.desired_files import STAYS
from swamp.cli.durations import show_duration
from swamp.cli.follow import OnInterrupt
from swamp.cli.options import number
from swamp.cli.table import table

if TYPE_CHECKING:
    from datastore.layout import Layout
    from swamp.client import Client

app = group("Runs are executions of workflows. They belong to the server and survive its clients.")

STATUSES = ("running", "succeeded", "failed", "cancelled")
_RUN_COLUMNS = ("RUN", "WORKFLOW", "STATUS", "STARTED", "TOOK", "STEPS", "FAILURE")
_STEP_COLUMNS = ("JOB", "STEP", "STATUS", "WORKER", "WAITED", "TOOK", "WHY")

RunId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The run's id, or the beginning of it if unique.",
        autocompletion=run_ids,
    ),
]


@command(
    app,
    "list",
    Help(
        "Show runs, newest first.",
        ("swamp run list", "swamp run list --workflow deploy --status failed --limit 5"),
    ),
)
def list_runs(
    console: Console,
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    status: Annotated[
        str | None, typer.Option(help=f"Only runs in this status: {', '.join(STATUSES)}.")
    ] = None,
    limit: Annotated[
        int, typer.Option(parser=number("--limit", 1), metavar="N", help="How many at most.")
    ] = 50,
    server: Server = None,
) -> None:
    if status not in (None, *STATUSES):
        raise typer.BadParameter(f"--status '{status}': expected one of {', '.join(STATUSES)}")
    client = console.server(server)
    if client is None:
        document = _recorded_runs(console.layout(), workflow, status, limit)
    else:
        document = client.get("/api/v1/runs", workflow=workflow, status=status, limit=limit)
    runs = document["runs"]
    if runs or not (workflow or status):
        console.show(document, _run_lines(runs))
    else:
        chosen = " and ".join([f"of workflow '{workflow}'"] * bool(workflow)
                              + [f"in status {status}"] * bool(status))  # fmt: skip
        console.show(document, [f"No run {chosen}; see `swamp run list`"])
    console.recorded(any(run["status"] == "running" for run in runs))


@command(
    app,
    "show",
    Help(
        "Show one run: its steps, where each ran, how long it waited and how it ended.",
        ("swamp run show 0193a1", "swamp run show 0193a1 --json"),
    ),
)
def show(console: Console, run: RunId, server: Server = None) -> None:
    _path(run)
    client = console.server(server)
    if client is None:
        view = _recorded_run(console.layout(), run)
    else:
        view = _told_run(console, client, run)
    if view is None:
        _show_story(console, console.layout(), run)
        return
    console.show(view, _view_lines(view))
    console.recorded(view["status"] == "running")


@command(
    app,
    "watch",
    Help(
        "Follow a run to its end, from its first event or any other.\n\n"
        "Leaves with 0 only if the run succeeded.",
        ("swamp run watch 0193a1", "swamp run watch 0193a1 --from 120"),
    ),
)
def watch(
    console: Console,
    run: RunId,
    first: Annotated[
        int,
        typer.Option(
            "--from", parser=number("--from", 1), metavar="N", help="Begin with event number N."
        ),
    ] = 1,
    server: Server = None,
    on_interrupt: Annotated[
        OnInterrupt, typer.Option(help="What Ctrl-C does to the run.")
    ] = OnInterrupt.DETACH,
) -> None:
    from swamp.cli.follow import Watch, follow
    from swamp.cli.run_lines import RunLines

    path = _path(run)
    client = console.needed_server(server)
    view = client.get(path)
    jobs = tuple(job["name"] for job in view["jobs"])
    lines = RunLines(view["workflowName"], jobs, verbose=console.verbose)
    follow(console, Watch(client, view["id"], first - 1, on_interrupt, server), lines)


@command(
    app,
    "cancel",
    Help(
        "Cancel a run: what waits ends at once, what runs is stopped.",
        ("swamp run cancel 0193a1 --reason 'wrong branch'",),
    ),
)
def cancel(
    console: Console,
    run: RunId,
    reason: Annotated[str | None, typer.Option(help="Why, for those who look later.")] = None,
    server: Server = None,
) -> None:
    path = _path(run)
    client = console.needed_server(server)
    body = {} if reason is None else {"reason": reason}
    answer = client.post(f"{path}/cancel", body)
    console.show(answer, [f"Run {answer['runId']} ({answer['workflowName']}): {answer['status']}"])


def _path(run: str) -> str:
    """Where the API has the run; a usage error for no id."""
    if not run.strip():
        raise typer.BadParameter("ID is empty: give the run's id, see `swamp run list`")
    return f"/api/v1/runs/{quote(run, safe='')}"


def _told_run(console: Console, client: Client, run: str) -> dict[str, Any] | None:
    """What the server tells of the run; None if its records have gone and its story is here."""
    from datastore.reader import read_story
    from swamp.client import ServerError

    try:
        view: dict[str, Any] = client.get(_path(run))
    except ServerError as error:
        is_gone = error.code == "run_not_found" and client.is_local
        if not is_gone or read_story(console.layout(), run) is None:
            raise
        return None
    return view


def _recorded_runs(
    layout: Layout, workflow: str | None, status: str | None, limit: int
) -> dict[str, Any]:
    from datastore.kinds import RUNS
    from datastore.reader import read_records
    from swamp.views import run_list

    runs = read_records(layout, RUNS)
    return run_list(runs, workflow=workflow, status=status, limit=limit)


def _recorded_run(layout: Layout, prefix: str) -> dict[str, Any] | None:
    """The run with that id, or the only one whose id begins so."""
    from datastore.kinds import LEASES, PENDING, RUNS, STEPS
    from datastore.reader import read_records
    from swamp.views import run_view

    runs = [run for run in read_records(layout, RUNS) if run.name.startswith(prefix) and run.status]
    exact = [run for run in runs if run.name == prefix] or runs
    if len(exact) > 1:
        ids = ", ".join(run.name for run in exact[:3])
        raise NotFound(f"'{prefix}' begins {len(exact)} run ids ({ids}, …); give more of it")
    if not exact:
        return None
    run = exact[0]
    return run_view(
        run,
        [step for step in read_records(layout, STEPS) if step.spec.run == run.name],
        [pending for pending in read_records(layout, PENDING) if pending.spec.run == run.name],
        [lease for lease in read_records(layout, LEASES) if lease.spec.run == run.name],
    )


def _show_story(console: Console, layout: Layout, run: str) -> None:
    """A run whose records have gone is told by its file in `datastore/history/`."""
    from datastore.reader import read_story
    from datastore.yaml_loader import load

    text = read_story(layout, run)
    if text is None:
        raise NotFound(f"no run '{run}'; see `swamp run list`")
    document = load(text.encode(), f"history of run {run}", max_bytes=len(text.encode())).value
    console.show(document, text.splitlines())


def _run_lines(runs: list[dict[str, Any]]) -> list[str]:
    if not runs:
        return ["No runs. Start one: swamp workflow run <workflow>"]
    return table(_RUN_COLUMNS, (_run_row(run) for run in runs))


def _run_row(run: dict[str, Any]) -> tuple[str, ...]:
    counts = run["counts"]
    ended = sum(counts[state] for state in ("succeeded", "failed", "skipped", "cancelled"))
    return (
        run["runId"],
        run["workflowName"],
        run["status"],
        run["startedAt"],
        _took(run),
        f"{ended}/{counts['total']}",
        run.get("failureReason", ""),
    )


def _view_lines(view: dict[str, Any]) -> list[str]:
    took = f" in {_took(view)}" if "durationMs" in view else ""
    steps = [(job["name"], step) for job in view["jobs"] for step in job["steps"]]
    lines = [
        f"Run {view['id']}",
        f"Workflow {view['workflowName']} {view['status']}{took}, started {view['startedAt']}",
        "",
        *table(_STEP_COLUMNS, (_step_row(job, step) for job, step in steps)),
    ]
    if view.get("failureReason"):
        lines += ["", view["failureReason"]]
    if view.get("desiredFile") == "missing":
        lines += ["", f"Its file in datastore/desired/runs/ is missing: {STAYS}"]
    return lines


def _step_row(job: str, step: dict[str, Any]) -> tuple[str, ...]:
    why = step.get("error") or (step.get("reason") if step["status"] != "succeeded" else None)
    status = step["status"] + (" (allowed)" if step.get("allowedFailure") else "")
    waited = show_duration(step["waitedS"]) if "waitedS" in step else ""
    return (job, step["name"], status, step.get("worker", ""), waited, _took(step), why or "")


def _took(view: dict[str, Any]) -> str:
    return show_duration(view["durationMs"] / 1000) if "durationMs" in view else ""
