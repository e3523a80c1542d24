"""Finished runs go by themselves and on demand, and many of them cost a running step nothing."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Repo

from controllers.manager import Manager, Settings
from controllers.ports import SessionInfo
from controllers.retention import Keep
from controllers.run import controller
from controllers.run.context import RunContext
from datastore import files, index, observed_files, sqlite_journal, store, yaml_loader
from datastore.clock import SystemClock
from datastore.definitions.workflow import workflow_from_source
from datastore.engine import OpenedEngine, open_store
from datastore.events import EventLog
from datastore.ids import uuid7
from datastore.kinds import KINDS, RUNS, Lease, Outcome, Pending, RunSpec
from datastore.layout import Layout, create_folders
from datastore.sqlite_file import to_json
from datastore.yaml_emitter import emit


def logs(repo: Repo) -> list[str]:
    return sorted(path.stem for path in (repo.path / ".swamp" / "events").glob("*.jsonl"))


def stories(repo: Repo) -> int:
    return len(list((repo.path / "datastore" / "history").rglob("*.yaml")))


def belonging(repo: Repo) -> set[str]:
    kinds = ("runs", "steps", "pending", "leases")
    return {name.partition(".")[0] for kind in kinds for name in repo.records(kind)}


def test_runs_go_with_all_that_is_theirs_and_the_stories_stay(repo: Repo) -> None:
    repo.shell_workflow("w", {"one": "true"})
    repo.serve("--keep-runs", "2")
    repo.worker("w1", "--label", "pool=worker")
    for _ in range(4):
        repo.swamp("workflow", "run", "w")
    kept = [run["runId"] for run in repo.json("run", "list")["runs"]]
    assert len(kept) == 2
    repo.until(lambda: belonging(repo) == set(kept), "the files of the others to go")
    repo.until(lambda: logs(repo) == sorted(kept), "the event logs of the others to go")
    assert stories(repo) == 4
    assert repo.json("worker", "list")["count"] == 1


def test_pruning_with_a_server_and_without_one(repo: Repo) -> None:
    go = repo.base / "go"
    repo.shell_workflow("w", {"one": "true"})
    repo.shell_workflow("long", {"one": f"until [ -e {go} ]; do sleep 0.02; done"})
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    for _ in range(3):
        repo.swamp("workflow", "run", "w")
    long = repo.start("workflow", "run", "long", "--quiet")
    repo.until(lambda: len(repo.json("run", "list")["runs"]) == 4)
    live, newest, second, oldest = [run["runId"] for run in repo.json("run", "list")["runs"]]

    assert repo.json("run", "prune", "--older-than", "1d") == {
        "pruned": [], "busy": [], "dryRun": False
    }  # fmt: skip
    would = repo.json("run", "prune", "--keep", "2", "--dry-run")
    assert would == {"pruned": [oldest], "busy": [], "dryRun": True}
    assert len(repo.json("run", "list")["runs"]) == 4
    assert repo.json("run", "prune", "--keep", "2")["pruned"] == [oldest]
    assert [run["runId"] for run in repo.json("run", "list")["runs"]] == [live, newest, second]
    repo.until(lambda: oldest not in belonging(repo), "the files to go")
    assert oldest not in logs(repo)

    go.touch()
    assert long.wait(30) == 0
    server.terminate()
    shown = repo.swamp("run", "prune", "--keep", "1").stdout
    assert shown.splitlines()[:2] == [second, newest] or shown.splitlines()[:2] == [newest, second]
    assert [run["runId"] for run in repo.json("run", "list")["runs"]] == [live]
    assert belonging(repo) == {live}
    assert logs(repo) == [live]
    assert stories(repo) == 4
    assert repo.json("run", "show", oldest)["state"] == "succeeded"


# -- counted work --------------------------------------------------------------------------------

FINISHED = int(os.environ.get("SWAMP_FINISHED_RECORDS", "5000"))
STEPS_OF_A_RUN = 98
AT = "2026-01-01T00:00:00.000Z"


TASK = {"type": "model_method", "modelType": "command/shell", "methodName": "execute"}
WORKFLOW = {
    "id": "11111111-1111-4111-8111-111111111111",
    "name": "w",
    "jobs": [
        {
            "name": "job",
            "steps": [
                {"name": f"s{n}", "task": {**TASK, "modelName": f"m{n}", "inputs": {"run": "true"}}}
                for n in range(3)
            ],
        }
    ],
}


class NoWorkers:
    def session(self, worker: str) -> SessionInfo | None:
        return None

    def dispatch(self, lease: Lease, pending: Pending) -> None:
        raise AssertionError

    def cancel(self, worker: str, dispatch: str) -> None:
        raise AssertionError

    def cut(self, worker: str, reason: str) -> None:
        raise AssertionError


class Here:
    """Ends each local step once the files show that it runs: no write is spared by chance."""

    def __init__(self, opened: store.Store, engine: OpenedEngine, group: asyncio.TaskGroup) -> None:
        self.ended: Callable[[str, Outcome], None] = lambda step, outcome: None
        self.barrier = opened.barrier
        self._engine = engine
        self._group = group

    async def files_follow(self) -> None:
        while self._engine.observed.shown_through() < self._engine.journal.last_seq:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def running(self, step: str) -> bool:
        return True

    def start(self, step: str, call: Any, timeout_s: float | None) -> None:
        async def execute() -> None:
            await self.barrier()
            await self.files_follow()
            self.ended(step, Outcome(ok=True, reason="completed"))

        self._group.create_task(execute())

    def stop(self, step: str) -> None:
        raise AssertionError


def with_finished_records(layout: Layout, count: int) -> None:
    """Records of finished runs, files and index, as a server leaves them."""
    rows = index.Index(layout.index, KINDS)
    made: list[tuple[str, index.IndexRow]] = []

    def add(kind: str, title: str, name: str, spec: Any, status: Any) -> None:
        document = {
            "apiVersion": "swamp/v1",
            "kind": title,
            "metadata": {"name": name, "uid": name, "createdAt": AT},
            "spec": spec,
            "status": status,
        }
        path = layout.record_file(kind, name)
        path.write_text(emit(document))
        stat = files.stat_of(path)
        assert stat is not None
        made.append((kind, index.IndexRow(name, stat, True, to_json(document))))

    for number in range(count):
        run = f"0000{number // (STEPS_OF_A_RUN + 1):06}"
        if number % (STEPS_OF_A_RUN + 1) == 0:
            spec = {"workflow": "w", "workflowId": "x", "definition": {}}
            add("runs", "Run", run, spec, {"state": "failed", "startedAt": AT, "endedAt": AT})
        else:
            step = f"s{number}"
            spec = {"run": run, "workflow": "w", "job": "j", "step": step}
            add("steps", "Step", f"{run}.j.{step}", spec, {"state": "succeeded"})
    rows.update(made)
    rows.close()


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts commits, journal rows, files written, stats, and documents parsed."""
    work: Counter[str] = Counter()

    def count(owner: Any, name: str, what: str, amount: Callable[..., int] = lambda *_: 1) -> None:
        original = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            work[what] += amount(*args)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapper)

    count(store.Store, "commit", "commits")
    count(sqlite_journal, "_row_of", "journal rows")
    # Two commits of the run's own record at its start may end in one write of its file.
    of_steps = lambda path, *_: int(Path(path).parent.name != "runs")  # noqa: E731
    count(observed_files.files, "write", "file writes", of_steps)
    count(files, "stat_of", "stats")
    count(files, "scan", "scans")
    count(store.json, "loads", "parses")
    count(yaml_loader, "load", "parses")
    return work


async def one_run(layout: Layout, work: Counter[str]) -> Counter[str]:
    """What one run of three steps costs in a started server."""
    opened, engine, _ = await asyncio.to_thread(open_store, layout)
    engine.start(asyncio.get_running_loop())
    events = EventLog(layout.events, SystemClock(), opened.after_barrier)
    async with asyncio.TaskGroup() as group:
        here = Here(opened, engine, group)
        manager = managed(opened, events, here)
        group.create_task(manager.run())
        await asyncio.sleep(0.3)  # What is due at a start has been looked at.
        work.clear()
        workflow = workflow_from_source(WORKFLOW)
        spec = RunSpec(workflow="w", workflow_id="x", definition=workflow.source)
        manager.runs.create(workflow, spec, "ffff")
        ended = asyncio.Event()
        opened.watch(RUNS, lambda name: ended.set() if opened.is_finished(RUNS, name) else None)
        async with asyncio.timeout(20):
            await ended.wait()
            await opened.barrier()
            await here.files_follow()
        seen = Counter(work)
        manager.stop()
    await asyncio.to_thread(events.close)
    await asyncio.to_thread(engine.close)
    return seen


def managed(opened: store.Store, events: EventLog, here: Here) -> Manager:
    clock, rng = SystemClock(), random.Random(1)
    context = RunContext(
        clock=clock,
        events=events,
        executor=here,
        new_uid=lambda: uuid7(clock.now(), rng),
        offload=asyncio.to_thread,
        find_model=lambda name: pytest.fail(name),
        check_call=lambda call: None,
    )
    settings = Settings(keep=Keep(runs=FINISHED))
    manager = Manager(opened, NoWorkers(), context, settings, rng, events.forget)
    here.ended = manager.runs.local_ended
    return manager


def test_a_run_among_many_finished_records_costs_what_it_costs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for name, finished in (("empty", 0), ("full", FINISHED)):
        layout = Layout(tmp_path / name)
        layout.root.mkdir()
        create_folders(layout)
        with_finished_records(layout, finished)
        with monkeypatch.context() as patched:
            # How often counts are renewed depends on the time that passes, not on the work.
            patched.setattr(controller, "COUNTS_EVERY_S", 1e12)
            results.append(asyncio.run(one_run(layout, counted(patched))))
    empty, full = results
    assert empty["commits"] > 0
    assert full == empty
