"""What cannot be read just now, as no file more may be open, is read later: no run hangs."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from run_rig import TASK, Outputs, Server

from controllers.expression_references import DataRef
from controllers.run import starter
from datastore.kinds import LEASES, PENDING, RUNS, Outcome

FOR_EVER = 1_000_000
GOOD = Outcome(ok=True, reason="completed")
LATEST = "${{ data.latest('m', 'l') }}"


class Refused(Outputs):
    """As many reads as are set are refused."""

    refused = 0

    def read(self, ref: DataRef) -> Any:
        if self.refused:
            self.refused -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().read(ref)


@pytest.fixture
def server() -> Server:
    server = Server()
    server.outputs = Refused()
    server.outputs.latest["l"] = ["a", "b"]
    server.restart()
    return server


def refuse(server: Server, times: int = 2) -> None:
    assert isinstance(server.outputs, Refused)
    server.outputs.refused = times


def each() -> dict[str, Any]:
    loop = {"item": "i", "in": LATEST}
    return {"name": "s-${{ self.i }}", "task": TASK, "labels": {"pool": "a"}, "forEach": loop}


def one(name: str) -> dict[str, Any]:
    task = {**TASK, "inputs": {"x": LATEST}}
    return {"name": name, "task": task, "labels": {"pool": "a"}}


async def until(server: Server, holds: Callable[[], bool]) -> None:
    """Reconcile the run, as often as it asks for it, until something holds."""
    server.runs.queue.add("r")
    while not holds():
        key = await server.runs.queue.get()
        wait = await server.runs.reconcile(key)
        server.runs.queue.done(key)
        if wait is not None:
            server.runs.queue.add_after(key, wait.seconds)


def is_over(server: Server) -> bool:
    """Whether the run has ended; what waits gets a worker, and ends well."""
    for pending in server.store.live(PENDING):
        server.lease(pending.name)
        server.end(pending.name, GOOD)
    return not server.store.get(RUNS, "r").live


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "TRY_AGAIN_S", 0.01)


@pytest.mark.parametrize("concurrency", [None, 1])
@pytest.mark.parametrize("steps", [[each()], [one("p"), one("q")]])
async def test_a_step_whose_outputs_were_refused_starts_later(
    server: Server, steps: list[dict[str, Any]], concurrency: int | None
) -> None:
    """Regression: the step was never looked at again, and its run never ended."""
    limit = {} if concurrency is None else {"concurrency": concurrency}
    server.start(jobs=[{"name": "j", "steps": steps, **limit}])
    refuse(server)
    async with asyncio.timeout(20):
        await until(server, lambda: is_over(server))
    run = server.store.get(RUNS, "r")
    assert (run.state, run.status and run.status.counts.succeeded) == ("succeeded", 2)
    [told] = [key for key in server.said.keys if key.startswith("refused/")]
    assert "open files" in server.said.fields[told]["reason"]


@pytest.mark.parametrize("first", [each(), one("a")])
async def test_a_step_whose_outputs_are_refused_holds_nobody_up(
    server: Server, first: dict[str, Any]
) -> None:
    """Regression: it was tried before all others, again and again, and no cancel ended the run."""
    others = [{"name": name, "task": TASK, "labels": {"pool": "a"}} for name in ("b", "c")]
    server.start(jobs=[{"name": "j", "steps": [first, *others]}])
    refuse(server, FOR_EVER)
    async with asyncio.timeout(20):
        await until(server, lambda: len(server.store.names(PENDING)) == 2)
        assert set(server.store.names(PENDING)) == {"r.j.b.1", "r.j.c.1"}
        totals = server.runs.totals("r")
        assert totals is not None
        assert (totals["total"], totals["waiting"]) == (3, 2)
        server.restart()
        await server.look()
        server.runs.cancel("r", None)
        await server.look()
        for pending in server.store.live(PENDING):
            server.end_wait(pending.name, "cancelled")
        await until(server, lambda: not server.store.get(RUNS, "r").live)
    run = server.store.get(RUNS, "r")
    assert (run.state, run.status and run.status.counts.cancelled) == ("cancelled", 3)


async def test_an_unforeseen_fault_of_one_step_holds_nobody_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised, so that it is logged and the run is looked at again."""

    def broken(ref: DataRef) -> Any:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(server.outputs, "read", broken)
    server.restart()
    b = {"name": "b", "task": TASK, "labels": {"pool": "a"}}
    server.start(jobs=[{"name": "j", "steps": [one("a"), b]}])
    with pytest.raises(RuntimeError, match="unforeseen"):
        await server.look()
    server.runs.queue.done("r")
    await server.look()
    assert server.store.names(PENDING) == ("r.j.b.1",)


async def test_a_restart_takes_on_what_had_started_beside_what_is_refused(server: Server) -> None:
    """Regression: what an earlier process had started was nobody's: a cancel did not reach it."""
    plain: dict[str, Any] = {"task": TASK, "labels": {"pool": "a"}}
    after_x, after_y = ({"dependsOn": [{"step": name}]} for name in ("x", "y"))
    steps: list[dict[str, Any]] = [{"name": name, **plain} for name in ("x", "y")]
    steps += [{**each(), **after_x}, {"name": "z", **plain, **after_y}]
    server.start(jobs=[{"name": "j", "steps": steps}])
    await server.look()
    server.lease("r.j.y.1")
    server.end("r.j.y.1", GOOD)
    await server.look()
    server.lease("r.j.z.1")
    await server.look()
    server.lease("r.j.x.1")
    server.end("r.j.x.1", GOOD)
    server.restart()
    refuse(server, FOR_EVER)
    await server.look()
    server.runs.cancel("r", None)
    await server.look()
    assert server.store.get(LEASES, "r.j.z.1").spec.cancel
    assert server.store.get(RUNS, "r").live


async def test_what_an_older_version_had_started_of_a_refused_step_is_cancelled(
    server: Server,
) -> None:
    """It kept no names of copies: which there are is known once the output can be read again."""
    server.start(jobs=[{"name": "j", "steps": [each()]}])
    await server.look()
    server.lease("r.j.s-a.1")
    await server.look()
    run = server.store.get(RUNS, "r")
    assert run.status is not None
    server.store.load(replace(run, status=run.status.model_copy(update={"for_each": None})))
    server.restart()
    refuse(server, 1)
    server.runs.cancel("r", None)
    with pytest.raises(OSError, match="open files"):
        await server.runs.reconcile(await server.runs.queue.get())
    server.runs.queue.done("r")
    await server.look()
    assert server.store.get(LEASES, "r.j.s-a.1").spec.cancel
    assert server.store.get(RUNS, "r").live


async def test_the_end_of_a_run_is_told_although_its_outputs_are_refused(server: Server) -> None:
    server.start(jobs=[{"name": "j", "steps": [each()]}])
    server.runs.cancel("r", None)
    await server.look()
    run = server.store.get(RUNS, "r")
    assert run.status is not None
    server.store.load(replace(run, status=run.status.model_copy(update={"for_each": None})))
    server.restart()
    refuse(server)
    server.runs.tell_again(["r"])
    await server.look()
    assert server.said.keys[-1] == "run_completed"
