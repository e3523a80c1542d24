"""A step that has ended before anybody looked at it while it ran is told like any other."""

from __future__ import annotations

import pytest
from run_rig import AT, TASK, Server

from datastore.kinds import Outcome

STEP = {"name": "s", "task": TASK, "labels": {"pool": "a"}}


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen while it ran", "seen at its end"])
async def test_a_step_is_told_as_dispatched_before_its_end_and_once(is_seen: bool) -> None:
    server = Server()
    server.start(jobs=[{"name": "j", "steps": [STEP]}])
    await server.look()
    server.lease("r.j.s.1")
    if is_seen:
        await server.look()
    server.end("r.j.s.1", Outcome(ok=True, reason="completed"))
    await server.look()
    told = [key for key in server.said.keys if key.startswith(("dispatched/", "ended/"))]
    assert told == ["dispatched/r.j.s.1", "ended/j/s"]
    assert server.said.fields["dispatched/r.j.s.1"]["worker"] == "box"


async def test_a_step_whose_worker_went_before_it_accepted_is_not_told_as_dispatched() -> None:
    server = Server()
    server.start(jobs=[{"name": "j", "steps": [STEP]}])
    await server.look()
    server.lease("r.j.s.1")
    server.move("r.j.s.1", state="recovering", active_at=None, recovering_at=AT)
    await server.look()
    assert "dispatched/r.j.s.1" not in server.said.keys
    server.move("r.j.s.1", state="active", active_at=AT)
    await server.look()
    assert "dispatched/r.j.s.1" in server.said.keys


async def test_a_step_that_is_given_up_is_told_as_dispatched_first() -> None:
    """Regression: where a crash had taken that event, its step ended where it had never begun."""
    server = Server()
    server.start(jobs=[{"name": "j", "steps": [STEP]}])
    await server.look()
    server.lease("r.j.s.1")
    await server.look()
    server.runs.cancel("r", None)
    server.move("r.j.s.1", state="recovering", recovering_at=AT)
    server.restart()
    await server.look()
    told = [key for key in server.said.keys if key.startswith(("dispatched/", "ended/"))]
    assert told == ["dispatched/r.j.s.1", "ended/j/s"]
