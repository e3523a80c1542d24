"""What cannot be read just now, as no file more may be open, is read later: no run hangs."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import Any

import pytest
from run_rig import TASK, Outputs, Server

from controllers.expression_references import DataRef
from datastore.kinds import LEASES, PENDING, RUNS, Outcome

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


def refuse(server: Server) -> None:
    assert isinstance(server.outputs, Refused)
    server.outputs.refused = 1


def each() -> dict[str, Any]:
    loop = {"item": "i", "in": LATEST}
    return {"name": "s-${{ self.i }}", "task": TASK, "labels": {"pool": "a"}, "forEach": loop}


def one(name: str) -> dict[str, Any]:
    task = {**TASK, "inputs": {"x": LATEST}}
    return {"name": name, "task": task, "labels": {"pool": "a"}}


async def refused_look(server: Server) -> None:
    """One look that fails; the next one comes with the key's back-off."""
    server.runs.queue.add("r")
    key = await server.runs.queue.get()
    with pytest.raises(OSError, match="open files"):
        await server.runs.reconcile(key)
    server.runs.queue.done(key)


@pytest.mark.parametrize("concurrency", [None, 1])
@pytest.mark.parametrize("steps", [[each()], [one("p"), one("q")]])
async def test_a_step_whose_outputs_were_refused_starts_later(
    server: Server, steps: list[dict[str, Any]], concurrency: int | None
) -> None:
    """Regression: the step was never looked at again, and its run never ended."""
    limit = {} if concurrency is None else {"concurrency": concurrency}
    server.start(jobs=[{"name": "j", "steps": steps, **limit}])
    refuse(server)
    await refused_look(server)
    for _ in range(2):
        await server.look()
        for pending in server.store.live(PENDING):
            server.lease(pending.name)
            server.end(pending.name, GOOD)
        assert len(server.store.names(PENDING)) >= 1
    await server.look()
    run = server.store.get(RUNS, "r")
    assert (run.state, run.status and run.status.counts.succeeded) == ("succeeded", 2)


async def test_what_a_restart_was_refused_is_taken_on_later(server: Server) -> None:
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
    refuse(server)
    await refused_look(server)
    server.runs.cancel("r", None)
    await server.look()
    assert server.store.get(LEASES, "r.j.z.1").spec.cancel
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
