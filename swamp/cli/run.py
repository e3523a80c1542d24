"""`swamp run list | show | watch | cancel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from datastore.errors import NotFound
from swamp.cli import prune
from swamp.cli.command import Help, Server, command, group
from swamp.cli.completion import run_ids
from swamp.cli.console import Console
from swamp.cli.desired_files import STAYS
from swamp.cli.durations import show_duration
from swamp.cli.follow import OnInterrupt
from swamp.cli.options import AT_MOST, number
from swamp.cli.run_story import RunStory, find_story, watch_story
from swamp.cli.table import table
from swamp.limits import RUNS_MOST

if TYPE_CHECKING:
    from datastore.kinds import Run
    from datastore.layout import Layout
    from swamp.client import Client


class NoSuchRun(NotFound):
    """No run of that id, or several that begin so."""

    code = "run_not_found"
    """As a server says it."""


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
        int,
        typer.Option(
            parser=number("--limit", 1, RUNS_MOST),
            metavar="N",
            help=f"How many at most, from 1 to {RUNS_MOST}.",
        ),
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
    view: dict[str, Any] | RunStory | None
    if client is None:
        layout = console.layout()
        view = _recorded_run(layout, run) or find_story(layout, run)
    else:
        view = _told_run(console, client, run)
    if view is None:
        raise NoSuchRun(f"no run '{run}'; see `swamp run list`")
    if isinstance(view, RunStory):
        console.show(view.document, view.text.splitlines())
        return
    console.show(view, _view_lines(view))
    console.recorded(view["status"] == "running")


@command(
    app,
    "watch",
    Help(
        "Follow a run to its end, from its first event or any other.\n\n"
        "Leaves with 0 only if the run succeeded. With --json only the run as it ended is printed;"
        " each event is a line of GET /api/v1/runs/ID/events?follow=1.",
        ("swamp run watch 0193a1", "swamp run watch 0193a1 --from 120"),
    ),
)
def watch(
    console: Console,
    run: RunId,
    first: Annotated[
        int,
        typer.Option(
            "--from",
            parser=number("--from", 1),
            metavar="N",
            help=f"Begin with event number N, {AT_MOST}.",
        ),
    ] = 1,
    server: Server = None,
    on_interrupt: Annotated[
        OnInterrupt, typer.Option(help="What Ctrl-C does to the run.")
    ] = OnInterrupt.DETACH,
) -> None:
    from swamp.cli.follow import Watch, follow
    from swamp.cli.run_lines import RunLines

    _path(run)
    client = console.server(server)
    # How one that is over has ended is told without a server as well.
    if client is None and (story := find_story(console.layout(), run)) is not None:
        watch_story(console, story)
        return
    client = client or console.needed_server(server)
    view = _told_run(console, client, run)
    if isinstance(view, RunStory):
        watch_story(console, view)
        return
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
    client = console.server(server)
    body = {} if reason is None else {"reason": reason}
    if client is None:
        answer = _ended_run(console.layout(), run)
    else:
        answer = _or_story(console, client, run, lambda: client.post(f"{path}/cancel", body))
    if isinstance(answer, RunStory):
        console.show(answer.answer(), [f"{answer.named} has already ended: {answer.ended}"])
        return
    console.show(answer, [f"Run {answer['runId']} ({answer['workflowName']}): {answer['status']}"])


def _path(run: str) -> str:
    """Where the API has the run; a usage error for no id."""
    if not run.strip():
        raise typer.BadParameter("ID is empty: give the run's id, see `swamp run list`")
    return f"/api/v1/runs/{quote(run, safe='')}"


def _told_run(console: Console, client: Client, run: str) -> dict[str, Any] | RunStory:
    """What the server tells of the run; its story if that is all there is."""
    return _or_story(console, client, run, lambda: client.get(_path(run)))


def _or_story(
    console: Console, client: Client, run: str, ask: Callable[[], dict[str, Any]]
) -> dict[str, Any] | RunStory:
    """The server's answer; the run's story where its records have gone and that is here."""
    from swamp.client import ServerError

    try:
        return ask()
    except ServerError as error:
        is_gone = error.code == "run_not_found" and client.is_local
        story = find_story(console.layout(), run) if is_gone else None
        if story is None:
            raise
        return story


def _recorded_runs(
    layout: Layout, workflow: str | None, status: str | None, limit: int
) -> dict[str, Any]:
    from datastore.kinds import RUNS
    from datastore.reader import read_records
    from swamp.run_views import run_list

    runs = read_records(layout, RUNS)
    return run_list(runs, workflow=workflow, status=status, limit=limit)


def _ended_run(layout: Layout, prefix: str) -> dict[str, Any] | RunStory:
    """A run that needs no cancelling any more; Unreachable, with the way out, for another."""
    from swamp.client import Unreachable

    run = _found_run(layout, prefix)
    if run is None:
        story = find_story(layout, prefix)
        if story is None:
            raise NoSuchRun(f"no run '{prefix}'; see `swamp run list`")
        return story
    if not run.live:
        return {"runId": run.name, "workflowName": run.spec.workflow, "status": run.state}
    if run.spec.own_process:
        then = "the next `swamp workflow run` or `swamp serve` ends it"
    else:
        file = layout.shown(layout.desired("runs") / f"{run.name}.yaml")
        then = f"start `swamp serve`, which goes on with it unless {file} has `cancel: true`"
    raise Unreachable(
        f"run {run.name} is recorded as running, but nobody serves this repository: {then}"
    )


def _recorded_run(layout: Layout, prefix: str) -> dict[str, Any] | None:
    """The run with that id, or the only one whose id begins so."""
    from datastore.kinds import LEASES, PENDING, STEPS
    from datastore.reader import read_records
    from swamp.run_views import run_view

    run = _found_run(layout, prefix)
    if run is None:
        return None
    return run_view(
        run,
        [step for step in read_records(layout, STEPS) if step.spec.run == run.name],
        [pending for pending in read_records(layout, PENDING) if pending.spec.run == run.name],
        [lease for lease in read_records(layout, LEASES) if lease.spec.run == run.name],
    )


def _found_run(layout: Layout, prefix: str) -> Run | None:
    from datastore.kinds import RUNS
    from datastore.reader import read_records

    runs = [run for run in read_records(layout, RUNS) if run.name.startswith(prefix) and run.status]
    exact = [run for run in runs if run.name == prefix] or runs
    if len(exact) > 1:
        ids = ", ".join(run.name for run in exact[:3])
        raise NoSuchRun(f"'{prefix}' begins {len(exact)} run ids ({ids}, …); give more of it")
    return exact[0] if exact else None


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
    took = f" in {_took(view)}" if _took(view) else ""
    steps = [(job["name"], step) for job in view["jobs"] for step in job["steps"]]
    lines = [
        f"Run {view['id']}",
        f"Workflow {view['workflowName']} {view['status']}{took}, started {view['startedAt']}",
        "",
        *table(_STEP_COLUMNS, (_step_row(job, step) for job, step in steps)),
    ]
    if view["status"] == "cancelled":
        lines += _unlisted(view["counts"]["cancelled"], [step["status"] for _, step in steps])
    if view.get("failureReason"):
        lines += ["", view["failureReason"]]
    if view.get("desiredFile") == "missing":
        lines += ["", f"Its file in datastore/desired/runs/ is missing: {STAYS}"]
    return lines


def _unlisted(cancelled: int, listed: list[str]) -> list[str]:
    """A word on those of a cancelled run that have no record, as they were never started."""
    count = cancelled - listed.count("cancelled") - listed.count("pending")
    if count < 1:
        return []
    what = (
        "1 step that never started is" if count == 1 else f"{count:,} steps that never started are"
    )
    return ["", f"{what} counted as cancelled, not listed."]


def _step_row(job: str, step: dict[str, Any]) -> tuple[str, ...]:
    why = step.get("error") or (step.get("reason") if step["status"] != "succeeded" else None)
    status = step["status"] + (" (allowed)" if step.get("allowedFailure") else "")
    waited = show_duration(step["waitedS"]) if "waitedS" in step else ""
    return (job, step["name"], status, step.get("worker", ""), waited, _took(step), why or "")


def _took(view: dict[str, Any]) -> str:
    took_ms = view.get("durationMs")
    return "" if took_ms is None else show_duration(took_ms / 1000)


prune.declare(app)


def declare(parent: typer.Typer) -> None:
    """Add the group to another one."""
    parent.add_typer(app, name="run")
