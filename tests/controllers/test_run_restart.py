"""Runs that an earlier process of the server had started: taken on as their records stand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import run_rig
from run_rig import TASK, Server

from controllers.run import telling
from controllers.run.graph import StepKey
from controllers.run.live import LiveRun
from controllers.run.starter import STARTS_AT_ONCE
from controllers.run.steps import StepKeeper
from datastore.clock import SystemClock, parse_stamp
from datastore.kinds import LEASES, PENDING, RUNS, STEPS, Outcome
from datastore.record import Kind
from datastore.sqlite_file import to_json


@asynccontextmanager
async def two_steps_of_which_one_runs() -> AsyncIterator[Server]:
    server = Server()
    steps = [{"name": name, "task": TASK, "labels": {"pool": "a"}} for name in ("s0", "s1")]
    server.start(jobs=[{"name": "j", "steps": steps, "concurrency": 1}])
    await server.look()
    server.lease("r.j.s0.1")
    await server.look()
    yield server


async def test_a_run_cancelled_before_a_restart_cancels_what_runs_and_counts_it() -> None:
    async with two_steps_of_which_one_runs() as server:
        server.runs.cancel("r", None)
        server.restart()
        await server.look()
        assert server.store.get(LEASES, "r.j.s0.1").spec.cancel
        assert server.store.get(RUNS, "r").state == "running"
        server.end("r.j.s0.1", Outcome(ok=False, reason="cancelled", error="cancelled"))
        await server.look()
        run = server.store.get(RUNS, "r")
        assert run.state == "cancelled"
        assert run.status is not None
        assert run.status.counts.cancelled == run.status.counts.total == 2
        assert server.store.get(STEPS, "r.j.s0").state == "cancelled"


async def test_a_step_that_runs_over_a_restart_counts_against_the_limits() -> None:
    server = Server()
    after_d = [{"step": "d", "condition": {"type": "succeeded"}}]
    steps = [
        {"name": "b", "task": TASK, "labels": {"pool": "a"}, "dependsOn": after_d},
        {"name": "c", "task": TASK, "labels": {"pool": "a"}, "dependsOn": after_d},
        {"name": "d", "task": TASK, "labels": {"pool": "a"}},
        {"name": "x", "task": TASK, "labels": {"pool": "a"}},
    ]
    server.start(jobs=[{"name": "j", "steps": steps, "concurrency": 2}])
    await server.look()
    for name in ("r.j.d.1", "r.j.x.1"):
        server.lease(name)
    server.end("r.j.d.1", Outcome(ok=True, reason="completed"))
    await server.look()
    assert server.store.find(PENDING, "r.j.b.1") is not None
    server.restart()
    await server.look()
    # x still runs and b waits: c would be the third.
    assert server.store.find(PENDING, "r.j.c.1") is None
    server.end("r.j.x.1", Outcome(ok=True, reason="completed"))
    await server.look()
    assert server.store.find(PENDING, "r.j.c.1") is not None


FOR_EACH = {
    "name": "s", "task": TASK, "labels": {"pool": "a"}, "concurrency": 1,
    "forEach": {"item": "host", "in": "${{ data.latest('m', 'hosts') }}"},
}  # fmt: skip
GOOD = Outcome(ok=True, reason="completed")


async def test_the_items_of_a_for_each_over_an_output_stay_over_a_restart() -> None:
    """Regression: it was evaluated again, and gave the run other steps."""
    server = Server()
    server.outputs.latest["hosts"] = ["a", "b"]
    server.start(jobs=[{"name": "j", "steps": [FOR_EACH]}])
    await server.look()
    assert server.store.names(PENDING) == ("r.j.s-a.1",)
    server.outputs.latest["hosts"] = ["c"]
    server.restart()
    await server.look()
    for name in ("r.j.s-a.1", "r.j.s-b.1"):
        server.lease(name)
        server.end(name, GOOD)
        await server.look()
    run = server.store.get(RUNS, "r")
    assert run.status is not None
    assert (run.state, run.status.counts.total) == ("succeeded", 2)


async def test_a_for_each_that_gave_nothing_gives_nothing_after_a_restart() -> None:
    server = Server()
    other = {"name": "t", "task": TASK, "labels": {"pool": "a"}}
    server.start(jobs=[{"name": "j", "steps": [FOR_EACH, other]}])
    await server.look()
    assert server.store.get(STEPS, "r.j.s").state == "failed"
    server.outputs.latest["hosts"] = ["a", "b"]
    server.restart()
    await server.look()
    server.lease("r.j.t.1")
    server.end("r.j.t.1", GOOD)
    await server.look()
    assert set(server.store.names(STEPS)) == {"r.j.s", "r.j.t"}
    assert server.store.get(RUNS, "r").state == "failed"


async def test_the_items_of_a_for_each_over_inputs_need_no_keeping() -> None:
    server = Server()
    over = {**FOR_EACH, "forEach": {"item": "host", "in": "${{ [run.workflowName] }}"}}
    server.start(jobs=[{"name": "j", "steps": [over]}])
    await server.look()
    run = server.store.get(RUNS, "r")
    assert run.status is not None
    assert run.status.for_each is None


async def test_the_end_of_a_run_that_nobody_could_tell_is_told_after_the_restart() -> None:
    async with two_steps_of_which_one_runs() as server:
        for step in ("s0", "s1"):
            if step == "s1":
                server.lease("r.j.s1.1")
            server.end(f"r.j.{step}.1", Outcome(ok=True, reason="completed"))
            await server.look()
        assert server.store.get(RUNS, "r").state == "succeeded"
        told = server.said.keys
        server.restart()
        await server.look()
        assert server.said.keys == []
        server.runs.tell_again(["r"])
        await server.look()
        assert server.said.keys[-1] == "run_completed"
        assert {"ended/j/s0", "ended/j/s1", "job_ended/j"} < set(server.said.keys)
        assert set(server.said.keys) < set(told)


@pytest.mark.parametrize(("count", "aside"), [(1_000, 0), (1_001, 1)])
async def test_many_copies_are_named_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, *, count: int, aside: int
) -> None:
    offloaded = []

    async def noted(work: Callable[[], Any]) -> Any:
        offloaded.append(work)
        return work()

    monkeypatch.setattr(run_rig, "inline", noted)
    server = Server()
    loop = {"item": "i", "in": "${{ data.latest('m', 'l') }}"}
    server.outputs.latest["l"] = list(range(count))
    step = {"name": "s", "task": TASK, "labels": {"pool": "a"}, "forEach": loop, "concurrency": 1}
    server.start(jobs=[{"name": "j", "steps": [step]}])
    await server.look()
    named = len(offloaded)
    server.restart()
    await server.look()
    # Once to read the output and name them, and once to keep the names: these after a restart.
    assert (named, len(offloaded) - named) == (1 + aside, aside)


async def test_a_restart_looks_at_each_copy_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: for each copy that had started, it looked at all before it that had not."""
    server = Server()

    def each(name: str, count: int, **more: Any) -> dict[str, Any]:
        loop = {"item": "i", "in": f"${{{{ {list(range(count))} }}}}"}
        return {"name": name, "task": TASK, "labels": {"pool": "a"}, "forEach": loop, **more}

    slow = {"name": "a", "steps": [each("slow", 100, concurrency=1)]}
    server.start(jobs=[slow, {"name": "b", "steps": [each("wide", 50)]}])
    await server.look()
    assert len(server.store.live(PENDING)) == 51
    server.restart()
    looks: list[StepKey] = []
    known = StepKeeper.known

    def counted(keeper: StepKeeper, live: LiveRun, key: StepKey) -> bool:
        looks.append(key)
        return known(keeper, live, key)

    monkeypatch.setattr(StepKeeper, "known", counted)
    await server.look()
    assert len(looks) == len(set(looks)) == 150
    assert len(server.store.live(PENDING)) == 51


async def reads_of_a_restart(steps: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many records are parsed where each of ten jobs had so many steps."""
    server = Server()
    step = {"task": TASK, "labels": {"pool": "a"}}
    jobs: list[dict[str, Any]] = [
        {"name": f"j{number}", "steps": [{"name": f"s{i}", **step} for i in range(steps)]}
        for number in range(10)
    ]
    for before, job in pairwise(jobs):
        job["dependsOn"] = [{"job": before["name"]}]
    server.start(jobs=jobs)
    await server.look()
    while (waits := server.store.live(PENDING))[0].spec.job != "j9":
        for pending in waits:
            server.lease(pending.name)
            server.end(pending.name, Outcome(ok=True, reason="completed"))
        await server.look()
    kinds: tuple[Kind[Any, Any], ...] = (STEPS, PENDING, LEASES)
    for kind in kinds:
        ended = [one for one in server.store.names(kind) if server.store.is_finished(kind, one)]
        stored = {name: to_json(server.store.get(kind, name).document()) for name in ended}
        server.store.load_finished(kind, stored)
    server.restart()
    reads = 0
    load = Kind.load

    def counted(kind: Kind[Any, Any], document: Any, **more: Any) -> Any:
        nonlocal reads
        reads += 1
        return load(kind, document, **more)

    monkeypatch.setattr(Kind, "load", counted)
    await server.look()
    monkeypatch.undo()
    assert len(server.store.live(PENDING)) == steps
    return reads


async def test_a_restart_reads_a_record_not_once_more_for_each_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: 200 jobs of ten steps each held everybody up for half a minute."""
    for steps in (1, 5):
        assert await reads_of_a_restart(steps, monkeypatch) <= 80 * steps


async def test_others_get_their_turn_while_a_restart_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: a job of 10,000 steps held everybody up for 0.6 s."""
    server = Server()
    steps = [{"name": f"s{i}", "task": TASK, "labels": {"pool": "a"}} for i in range(40)]
    server.start(jobs=[{"name": "j", "steps": steps}])
    await server.look()
    server.restart()
    monkeypatch.setattr(telling, "READ_AT_ONCE", 2)
    reading, turns = asyncio.ensure_future(server.look()), 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 40 / 2


async def test_others_get_their_turn_while_a_restart_takes_steps_on() -> None:
    """Regression: 4,000 steps as written held everybody up for 0.3 s."""
    server = Server()
    steps = [{"name": f"s{i}", "task": TASK, "labels": {"pool": "a"}} for i in range(90)]
    server.start(jobs=[{"name": "j", "steps": steps}])
    await server.look()
    server.restart()
    taking, turns = asyncio.ensure_future(server.runs.reconcile("r")), 0
    while not taking.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 90 / STARTS_AT_ONCE


async def test_a_job_has_lasted_since_its_first_step_was_recorded_also_over_a_restart() -> None:
    server = Server()
    steps = [{"name": name, "task": TASK, "labels": {"pool": "a"}} for name in "ab"]
    server.start(jobs=[{"name": "j", "steps": steps}])
    await server.look()
    for name, at in (("r.j.a.1", "2026-01-01T12:00:07Z"), ("r.j.b.1", "2026-01-01T12:00:00Z")):
        server.store.load(replace(server.store.get(PENDING, name), created_at=at))
    server.restart()
    await server.look()
    for name in ("r.j.a.1", "r.j.b.1"):
        server.lease(name)
        server.end(name, Outcome(ok=True, reason="completed"))
    await server.look()
    passed = SystemClock().now() - parse_stamp("2026-01-01T12:00:00Z")
    lasted_s = server.said.fields["job_ended/j"]["durationMs"] / 1000
    # That of `a` was recorded seven seconds later.
    assert abs(passed.total_seconds() - lasted_s) < 5
