"""`workflow run` and `run …`: what is shown, what is asked of the server, what Ctrl-C does."""

import io
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from datastore.kinds import RUNS, STEPS, Counts, RunSpec, RunStatus, StepSpec, StepStatus
from datastore.layout import Layout
from datastore.record import Record
from datastore.yaml_emitter import emit

AT = "2026-10-10T14:29:06.000Z"
RUN = "0199cd00-run"
VIEW = {
    "id": RUN, "workflowName": "w", "status": "succeeded", "startedAt": AT, "counts": {},
    "jobs": [{"name": "job", "status": "succeeded", "steps": []}],
}  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"kind": "run_started", "run": RUN, "workflow": "w", "jobs": ["job"]},
    {"kind": "job_started", "job": "job"},
    {"kind": "step_started", "job": "job", "step": "s", "model": "m", "method": "execute"},
    {"kind": "step_completed", "job": "job", "step": "s", "durationMs": 1000},
    {"kind": "job_completed", "job": "job", "status": "succeeded", "durationMs": 1000},
    {"kind": "run_completed", "status": "succeeded", "durationMs": 1100},
]


@pytest.fixture
def scripted(server: Any) -> Any:
    """A server on which the run goes well."""
    server.answers["POST", "/api/v1/runs"] = (201, {"id": RUN, "workflow": "w"})
    server.answers["GET", f"/api/v1/runs/{RUN}"] = (200, VIEW)
    server.answers["GET", "/api/v1/runs/0199"] = (200, VIEW)
    cancelled = {"runId": RUN, "workflowName": "w", "status": "cancelling", "reason": "x"}
    server.answers["POST", f"/api/v1/runs/{RUN}/cancel"] = (200, cancelled)
    server.events = [dict(event) for event in EVENTS]
    return server


def posted(server: Any, path: str) -> list[Any]:
    return [body for method, asked, body in server.asked if (method, asked) == ("POST", path)]


def test_a_run_is_started_followed_and_shown_to_its_end(scripted: Any, swamp: Any) -> None:
    result = swamp("workflow", "run", "w", "--input", "a.b=1", "--priority", "5")
    assert result.code == 0
    assert (
        result.out
        == """\
 system │ Starting workflow w · 14:29:06 UTC

    job │ start 14:29:06 UTC
    job │ step s · m · execute · start 14:29:06 UTC
    job │ done s in 1.0s · 14:29:06 UTC
    job │ completed in 1.0s · 14:29:06 UTC

 system │ Completed workflow w succeeded in 1.1s · 14:29:06 UTC
"""
    )
    (body,) = posted(scripted, "/api/v1/runs")
    assert body == {"workflow": "w", "inputs": {"a": {"b": "1"}}, "priority": 5}


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_run_that_does_not_succeed_is_exit_code_1(scripted: Any, swamp: Any, status: str) -> None:
    scripted.events[-1] |= {"status": status, "failure": "because"}
    result = swamp("workflow", "run", "w")
    assert result.code == 1
    assert result.out.endswith("\n\n system │ because\n")


def test_json_prints_the_final_run_alone_and_quiet_its_end_alone(scripted: Any, swamp: Any) -> None:
    assert swamp("workflow", "run", "w", "--json").json == VIEW
    assert swamp("workflow", "run", "w", "--quiet").out == (
        "\n system │ Completed workflow w succeeded in 1.1s · 14:29:06 UTC\n"
    )


def test_without_a_server_watching_names_the_way_out(repo: Layout, swamp: Any) -> None:
    result = swamp("run", "watch", "0193a1")
    assert result.code == 1
    assert result.err == (
        "Error: no server is running here: start `swamp serve`, or name one with --server URL\n"
    )


def test_without_a_server_a_run_is_not_cancelled_and_what_becomes_of_it_is_said(
    repo: Layout, swamp: Any
) -> None:
    on_disk(repo, a_run("r-1"))
    on_disk(repo, a_run("r-2", "running"))
    ended = swamp("run", "cancel", "r-1", "--json")
    assert (ended.code, ended.json["status"]) == (0, "failed")
    live = swamp("run", "cancel", "r-2")
    assert (live.code, live.out) == (1, "")
    assert live.err == (
        "Error: run r-2 is recorded as running, but nobody serves this repository: start"
        " `swamp serve`, which goes on with it unless datastore/desired/runs/r-2.yaml has"
        " `cancel: true`\n"
    )
    assert swamp("run", "cancel", "r-3").err == "Error: no run 'r-3'; see `swamp run list`\n"


def test_a_refused_run_is_told_in_the_servers_words(scripted: Any, swamp: Any) -> None:
    refusal = {"error": "no workflow 'w'", "code": "workflow_not_found"}
    scripted.answers["POST", "/api/v1/runs"] = (404, refusal)
    result = swamp("workflow", "run", "w", "--json")
    assert (result.code, result.out) == (1, "")
    assert result.err == '{"error": "no workflow \'w\'", "code": "workflow_not_found"}\n'


def test_watch_joins_at_any_event(scripted: Any, swamp: Any) -> None:
    result = swamp("run", "watch", "0199", "--from", "4")
    assert result.code == 0
    assert result.out.splitlines()[0] == "    job │ done s in 1.0s · 14:29:06 UTC"
    assert (
        "GET", f"/api/v1/runs/{RUN}/events?after=3&follow=1", None
    ) in scripted.asked  # fmt: skip


# -- Ctrl-C --------------------------------------------------------------------------------------


@pytest.fixture
def interrupted(scripted: Any) -> Any:
    """A run during which Ctrl-C is pressed; it is over only once it was cancelled."""
    over = threading.Event()
    handle = scripted.handle

    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        over.wait(5)

    def cancels(request: Any) -> None:
        handle(request)
        if request.path.endswith("/cancel"):
            scripted.events[-1]["status"] = "cancelled"
            over.set()

    scripted.on_events = press
    scripted.handle = cancels
    yield scripted
    over.set()


def test_ctrl_c_without_a_terminal_leaves_the_run_and_says_how_to_watch(
    interrupted: Any, swamp: Any
) -> None:
    result = swamp("workflow", "run", "w")
    assert result.code == 130
    assert result.err == f"The run goes on. Watch it: swamp run watch {RUN}\n"
    assert posted(interrupted, f"/api/v1/runs/{RUN}/cancel") == []


def test_ctrl_c_may_mean_cancel_and_the_end_is_still_shown(interrupted: Any, swamp: Any) -> None:
    result = swamp("workflow", "run", "w", "--on-interrupt", "cancel")
    assert result.code == 1
    assert posted(interrupted, f"/api/v1/runs/{RUN}/cancel") == [
        {"reason": "interrupted by Ctrl-C"}
    ]
    assert "Cancelled workflow w after 1.1s" in result.out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code"), [("y\n", 1), ("n\n", 130), ("\n", 130), ("", 130)])
def test_ctrl_c_asks_on_a_terminal(
    interrupted: Any, swamp: Any, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    errors = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", errors)
    assert swamp("workflow", "run", "w").code == code
    assert "Cancel the run? [y/N]" in errors.getvalue()
    assert bool(posted(interrupted, f"/api/v1/runs/{RUN}/cancel")) is (code == 1)


def test_a_second_ctrl_c_leaves_at_once(
    interrupted: Any, swamp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pressed(Terminal):
        def readline(self, *_: Any) -> str:
            raise KeyboardInterrupt

    errors = Terminal()
    monkeypatch.setattr("sys.stdin", Pressed())
    monkeypatch.setattr("sys.stderr", errors)
    assert swamp("workflow", "run", "w").code == 130
    assert errors.getvalue().endswith(f"\nThe run goes on. Watch it: swamp run watch {RUN}\n")
    assert posted(interrupted, f"/api/v1/runs/{RUN}/cancel") == []


# -- list, show, cancel --------------------------------------------------------------------------


def on_disk(repo: Layout, record: Record[Any, Any]) -> None:
    repo.record_file(record.kind.folder, record.name).write_text(emit(record.document()))


def a_run(name: str, state: str = "failed") -> Record[Any, Any]:
    spec = RunSpec(
        workflow="w",
        workflow_id="id",
        definition={"name": "w", "jobs": [{"name": "job", "steps": [{"name": "s"}]}]},
    )
    status = RunStatus(
        state=state,  # type: ignore[arg-type]
        started_at=AT,
        ended_at=AT,
        duration_ms=1500,
        counts=Counts(total=1, failed=1),
        jobs={"job": "failed"},
        failure="it broke",
    )
    return Record(RUNS, name, "u", AT, spec, status)


def test_runs_are_read_from_records_without_a_server(repo: Layout, swamp: Any) -> None:
    assert swamp("run", "list").out == "No runs. Start one: swamp workflow run <workflow>\n"
    on_disk(repo, a_run("r-1"))
    assert swamp("run", "list").out == (
        "RUN  WORKFLOW  STATUS  STARTED                   TOOK  STEPS  FAILURE\n"
        f"r-1  w         failed  {AT}  1.5s  1/1    it broke\n"
    )
    assert swamp("run", "list", "--status", "succeeded", "--json").json == {"runs": []}


def test_one_run_is_shown_by_the_beginning_of_its_id(repo: Layout, swamp: Any) -> None:
    on_disk(repo, a_run("0199-a"))
    spec = StepSpec(run="0199-a", workflow="w", job="job", step="s")
    status = StepStatus(state="failed", error="exited with code 7", worker="t1", waited_s=2)
    on_disk(repo, Record(STEPS, "0199-a.job.s", "u", AT, spec, status))
    assert (
        swamp("run", "show", "0199").out
        == f"""\
Run 0199-a
Workflow w failed in 1.5s, started {AT}

JOB  STEP  STATUS  WORKER  WAITED  TOOK  WHY
job  s     failed  t1      2.0s    -     exited with code 7

it broke
"""
    )
    assert swamp("run", "show", "0199", "--json").json["failureReason"] == "it broke"
    on_disk(repo, a_run("0199-b"))
    result = swamp("run", "show", "0199")
    assert result.code == 1
    assert "'0199' begins 2 run ids (0199-a, 0199-b, …); give more of it" in result.err
    assert swamp("run", "show", "0199-b").code == 0


def test_a_run_whose_records_have_gone_is_told_by_its_story(repo: Layout, swamp: Any) -> None:
    story: Path = repo.story_file("w", "old")
    story.parent.mkdir()
    story.write_text("kind: RunStory\nrun: old\n")
    assert swamp("run", "show", "old").out == "kind: RunStory\nrun: old\n"
    assert swamp("run", "show", "old", "--json").json == {"kind": "RunStory", "run": "old"}
    assert swamp("run", "show", "new").err == "Error: no run 'new'; see `swamp run list`\n"


def test_a_running_server_shows_and_cancels(scripted: Any, swamp: Any) -> None:
    item = {
        "runId": RUN, "workflowName": "w", "status": "running", "startedAt": AT,
        "counts": {"total": 2, "succeeded": 1, "failed": 0, "skipped": 0, "cancelled": 0},
    }  # fmt: skip
    scripted.answers["GET", "/api/v1/runs"] = (200, {"runs": [item]})
    listed = swamp("run", "list", "--workflow", "w", "--limit", "3")
    assert listed.out.splitlines()[1].split() == [RUN, "w", "running", AT, "-", "1/2", "-"]
    assert scripted.asked[-1][1] == "/api/v1/runs?workflow=w&limit=3"
    assert swamp("run", "show", "0199", "--json").json == VIEW
    cancelled = swamp("run", "cancel", RUN, "--reason", "wrong branch")
    assert cancelled.out == f"Run {RUN} (w): cancelling\n"
    assert posted(scripted, f"/api/v1/runs/{RUN}/cancel") == [{"reason": "wrong branch"}]


def test_a_run_that_was_pruned_is_told_by_its_story_also_by_a_server(
    scripted: Any, repo: Layout, swamp: Any
) -> None:
    gone = {"error": "no run 'old'; see `swamp run list`", "code": "run_not_found"}
    scripted.answers["GET", "/api/v1/runs/old"] = (404, gone)
    assert swamp("run", "show", "old").err == f"Error: {gone['error']}\n"
    story: Path = repo.story_file("w", "old")
    story.parent.mkdir()
    story.write_text("kind: RunStory\nrun: old\n")
    assert swamp("run", "show", "old").out == "kind: RunStory\nrun: old\n"


STORY = (
    "kind: RunStory\nrun: old\nworkflow: w\nstate: {state}\nendedAt: 2026-11-29T12:00:00.000Z\n"
    "durationMs: 3000\n"
)
GONE = {"error": "no run 'old'; see `swamp run list`", "code": "run_not_found"}


def test_prune_names_the_runs_that_have_to_stay(scripted: Any, swamp: Any) -> None:
    document = {"pruned": ["r1"], "busy": ["r2"], "dryRun": False}
    scripted.answers["POST", "/api/v1/runs/prune"] = (200, document)
    told = swamp("run", "prune", "--keep", "0")
    assert "Removed the records of 1 run;" in told.out
    assert "Run r2 is due, and stays for now: it was cancelled while a worker was away" in told.out
    assert swamp("run", "prune", "--keep", "0", "--json").json == document
    scripted.answers["POST", "/api/v1/runs/prune"] = (200, {**document, "pruned": []})
    assert swamp("run", "prune", "--keep", "0").out.startswith("Run r2 is due, and stays")


def pruned(repo: Layout, state: str, more: str = "") -> str:
    """How a run ended of which only the story is left."""
    story: Path = repo.story_file("w", "old")
    story.parent.mkdir(exist_ok=True)
    story.write_text(STORY.format(state=state) + more)
    return f"{state} at 2026-11-29T12:00:00.000Z after 3.0s; its story is in {repo.shown(story)}"


def test_a_run_that_was_pruned_is_watched_to_its_end(
    scripted: Any, repo: Layout, swamp: Any
) -> None:
    """Regression: `run watch` said that there was no such run."""
    scripted.answers["GET", "/api/v1/runs/old"] = (404, GONE)
    assert swamp("run", "watch", "old").err == f"Error: {GONE['error']}\n"
    end = pruned(repo, "succeeded")
    watched = swamp("run", "watch", "old")
    assert (watched.code, watched.out) == (0, f"Run old (w) has ended: {end}\n")
    end = pruned(repo, "failed", "failure: exited with code 7\n")
    watched = swamp("run", "watch", "old")
    assert (watched.code, watched.out) == (
        1, f"Run old (w) has ended: {end}\nexited with code 7\n"
    )  # fmt: skip
    told = swamp("run", "watch", "old", "--json").json
    assert told["state"] == told["status"] == "failed"
    assert (told["id"], told["workflowName"]) == ("old", "w")
    assert told["story"] == "datastore/history/w/old.yaml"


def test_a_run_that_is_over_is_watched_to_its_end_without_a_server(
    repo: Layout, swamp: Any
) -> None:
    end = pruned(repo, "succeeded")
    watched = swamp("run", "watch", "old")
    assert (watched.code, watched.out) == (0, f"Run old (w) has ended: {end}\n")


@pytest.mark.parametrize("served", [True, False])
def test_a_run_that_was_pruned_needs_no_cancelling(
    request: pytest.FixtureRequest, repo: Layout, swamp: Any, served: bool
) -> None:
    if served:
        scripted = request.getfixturevalue("scripted")
        scripted.answers["POST", "/api/v1/runs/old/cancel"] = (404, GONE)
    assert swamp("run", "cancel", "old").err == f"Error: {GONE['error']}\n"
    end = pruned(repo, "failed")
    cancelled = swamp("run", "cancel", "old")
    assert (cancelled.code, cancelled.out) == (0, f"Run old (w) has already ended: {end}\n")
    told = swamp("run", "cancel", "old", "--json").json
    assert (told["status"], told["story"]) == ("failed", "datastore/history/w/old.yaml")


@pytest.mark.parametrize("verb", ["show", "cancel"])
def test_an_unknown_run_has_the_same_code_without_a_server(
    repo: Layout, swamp: Any, verb: str
) -> None:
    """Regression: it was `not_found`, and `run_not_found` with one."""
    result = swamp("run", verb, "nowhere", "--json")
    assert (result.code, json.loads(result.err)["code"]) == (1, "run_not_found")


@pytest.mark.parametrize("verb", ["show", "watch", "cancel"])
def test_an_empty_id_is_wrong_usage(scripted: Any, swamp: Any, verb: str) -> None:
    result = swamp("run", verb, "")
    assert (result.code, scripted.asked) == (2, [])
    assert "ID is empty: give the run's id, see `swamp run list`" in result.err


def test_no_run_of_that_workflow_is_not_no_run_at_all(repo: Layout, swamp: Any) -> None:
    on_disk(repo, a_run("r-1"))
    assert swamp("run", "list", "--workflow", "nnn").out == (
        "No run of workflow 'nnn'; see `swamp run list`\n"
    )
    both = swamp("run", "list", "--workflow", "nnn", "--status", "running")
    assert both.out == "No run of workflow 'nnn' and in status running; see `swamp run list`\n"


def test_records_that_say_running_are_no_word_of_a_server(repo: Layout, swamp: Any) -> None:
    on_disk(repo, a_run("r-1"))
    assert swamp("run", "list").err == ""
    on_disk(repo, a_run("r-2", "running"))
    remark = (
        "no server is running: this is what the records say, what is live in them goes on or ends"
        " at the next start\n"
    )
    assert swamp("run", "list").err == remark
    assert swamp("run", "show", "r-2").err == remark
    assert swamp("run", "show", "r-1").err == ""
    assert swamp("run", "list", "--json").err == swamp("run", "list", "-q").err == ""


def test_a_server_that_stays_away_leaves_the_run_and_the_command_says_so(
    scripted: Any, swamp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swamp.client.PATIENCE_S", 0.0)
    del scripted.events[3:]
    result = swamp("workflow", "run", "w")
    assert result.code == 1
    assert result.err.endswith(f" The run {RUN} lives on. Watch it: swamp run watch {RUN}\n")
    error = json.loads(swamp("workflow", "run", "w", "--json").err)
    assert (error["code"], error["runId"]) == ("unreachable", RUN)
    assert "lives on" in error["error"]


def test_watching_from_beyond_the_end_says_how_many_events_there_are(
    scripted: Any, swamp: Any
) -> None:
    result = swamp("run", "watch", "0199", "--from", "9999")
    assert (result.code, result.out) == (1, "")
    assert result.err == "Error: the run has 6 events and is over: none is number 9999\n"


def test_a_file_that_is_not_in_force_is_warned_of(scripted: Any, swamp: Any) -> None:
    problem = "workflows/w.yaml:3:1: unknown key 'jops' (not in force: the last good version runs)"
    started = {"id": RUN, "workflow": "w", "status": "running", "warnings": [problem]}
    scripted.answers["POST", "/api/v1/runs"] = (201, started)
    result = swamp("workflow", "run", "w")
    assert result.code == 0
    assert result.err == f"Warning: {problem}\n"
    scripted.events = [dict(event) for event in EVENTS]
    result = swamp("workflow", "run", "w", "--json")
    assert result.json == VIEW
    assert json.loads(result.err) == {"kind": "warning", "message": problem}
