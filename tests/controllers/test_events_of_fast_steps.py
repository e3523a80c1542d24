"""A step that has ended before anybody looked at it while it ran is told like any other."""

from __future__ import annotations

from datetime import datetime

import pytest
from run_rig import AT, TASK, Server

from controllers.run.steps import LOST_MOST
from datastore.clock import SystemClock
from datastore.kinds import STEPS, Outcome
from swamp.views import milliseconds

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


async def test_a_step_that_lost_its_worker_too_often_says_so() -> None:
    """Regression: the reason of its event was `not_started`."""
    server = Server()
    server.start(jobs=[{"name": "j", "steps": [STEP]}])
    for episode in range(1, LOST_MOST + 1):
        await server.look()
        server.lease(f"r.j.s.{episode}")
        await server.look()
        server.move(f"r.j.s.{episode}", state="expired", reason="worker lost: it died")
    await server.look()
    assert server.store.get(STEPS, "r.j.s").state == "failed"
    assert server.said.fields["ended/j/s"]["reason"] == "worker_lost"


async def test_a_step_that_found_no_worker_again_was_not_started() -> None:
    server = Server()
    server.start(jobs=[{"name": "j", "steps": [STEP]}])
    await server.look()
    server.lease("r.j.s.1")
    await server.look()
    server.move("r.j.s.1", state="expired", reason="worker lost: it died")
    await server.look()
    server.end_wait("r.j.s.2", "timed_out")
    await server.look()
    assert server.said.fields["ended/j/s"]["reason"] == "not_started"


async def test_a_clock_that_was_set_back_makes_no_duration_negative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    server.start(jobs=[{"name": "j", "steps": [STEP]}])
    await server.look()
    server.lease("r.j.s.1")
    await server.look()
    early = datetime.fromisoformat("2020-01-01T00:00:00+00:00")
    monkeypatch.setattr(SystemClock, "now", lambda self: early)
    server.end("r.j.s.1", Outcome(ok=True, reason="completed"))
    await server.look()
    durations = [said["durationMs"] for said in server.said.fields.values() if "durationMs" in said]
    assert durations == [0, 0, 0]
    assert milliseconds(AT, early) == 0
