"""A dispatch or lease that somebody cancels by its file: its step ends, and says which file."""

from __future__ import annotations

from run_rig import TASK, Server

from controllers.run.steps import WISH_LOST
from datastore.desired import DesiredFile
from datastore.kinds import LEASES, PENDING, RUNS, STEPS, Outcome

FILE = DesiredFile({"cancel": True}, "d")
PLACED = {"name": "s", "task": TASK, "labels": {"pool": "a"}}
BY_LEASE = "step j/s was cancelled by datastore/desired/leases/r.j.s.1.yaml"
BY_PENDING = "step j/s was cancelled by datastore/desired/pending/r.j.s.1.yaml"


async def one_step() -> Server:
    server = Server()
    server.start(jobs=[{"name": "j", "steps": [PLACED]}])
    await server.look()
    return server


def assert_told(server: Server, error: str) -> None:
    """The step, the run and the events name the file."""
    step, run = server.store.get(STEPS, "r.j.s"), server.store.get(RUNS, "r")
    assert step.status is not None
    assert run.status is not None
    assert (step.state, step.status.error) == ("cancelled", error)
    assert (run.state, run.status.failure) == ("failed", error)
    assert server.said.fields["ended/j/s"]["error"] == error
    assert server.said.fields["run_completed"]["failure"] == error
    assert server.store.find(PENDING, "r.j.s.2") is None


async def test_a_waiting_dispatch() -> None:
    server = await one_step()
    server.store.set_desired(PENDING, "r.j.s.1", FILE)
    await server.look()
    pending = server.store.get(PENDING, "r.j.s.1")
    assert pending.spec.cancel
    server.end_wait("r.j.s.1", "cancelled")
    await server.look()
    assert_told(server, BY_PENDING)


async def test_a_dispatch_that_a_restart_orphaned_before_the_scheduler_looked() -> None:
    server = await one_step()
    server.end_wait("r.j.s.1", "orphaned")
    server.store.set_desired(PENDING, "r.j.s.1", FILE)
    server.restart()
    await server.look()
    assert_told(server, BY_PENDING)


async def test_a_lease_whose_worker_stops_the_runner() -> None:
    server = await one_step()
    server.lease("r.j.s.1")
    server.store.set_desired(LEASES, "r.j.s.1", FILE)
    await server.look()
    assert server.store.get(LEASES, "r.j.s.1").spec.cancel
    server.end("r.j.s.1", Outcome(ok=False, reason="cancelled", error="cancelled"))
    await server.look()
    assert_told(server, BY_LEASE)


async def test_a_lease_whose_worker_is_lost_before_it_stops_is_not_tried_again() -> None:
    """Regression: found by tests/sim, where the step went on as a new episode."""
    server = await one_step()
    server.lease("r.j.s.1")
    server.store.set_desired(LEASES, "r.j.s.1", FILE)
    await server.look()
    server.move("r.j.s.1", state="expired", reason="worker lost: its process died")
    await server.look()
    assert_told(server, BY_LEASE)


async def test_a_step_that_its_worker_stopped_by_a_wish_that_was_lost_says_so() -> None:
    """A Cancel waits for no disk: the server may die before the wish itself is on it."""
    server = await one_step()
    server.lease("r.j.s.1")
    await server.look()
    server.restart()
    server.end("r.j.s.1", Outcome(ok=False, reason="cancelled", error="cancelled"))
    await server.look()
    assert_told(server, WISH_LOST)


async def test_a_lease_whose_worker_is_away_goes_on_without_its_step() -> None:
    """Nobody waits for the worker, but its slot and its model are taken until it is known."""
    server = await one_step()
    server.lease("r.j.s.1")
    server.move("r.j.s.1", state="recovering")
    server.store.set_desired(LEASES, "r.j.s.1", FILE)
    await server.look()
    assert_told(server, f"{BY_LEASE} while worker 'box' was away")
    assert server.store.get(LEASES, "r.j.s.1").live


async def test_the_file_of_a_run_is_its_failure() -> None:
    server = await one_step()
    server.store.set_desired(RUNS, "r", FILE)
    await server.look()
    server.end_wait("r.j.s.1", "cancelled")
    await server.look()
    run = server.store.get(RUNS, "r")
    assert run.status is not None
    assert run.state == "cancelled"
    assert run.status.failure == "cancelled by datastore/desired/runs/r.yaml"
    assert server.said.fields["ended/j/s"].get("error") is None
