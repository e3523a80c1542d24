"""What many restarts leave of a run that waits all the while, and what is shown meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from run_rig import AT, TASK, Server

from controllers.run import episodes
from datastore.clock import SystemClock, parse_stamp
from datastore.journal import Put, Remove
from datastore.kinds import LEASES, PENDING, RUNS, STEPS, Counts, Outcome

GOOD = Outcome(ok=True, reason="completed")


async def waiting(*names: str) -> Server:
    server = Server()
    steps = [{"name": name, "task": TASK, "labels": {"pool": "a"}} for name in names]
    server.start(jobs=[{"name": "j", "steps": steps}])
    await server.look()
    return server


async def restart(server: Server) -> None:
    """As the boot sweep does it, then the run goes on."""
    for pending in server.store.live(PENDING):
        server.end_wait(pending.name, "orphaned")
    server.restart()
    await server.look()


def dispatches(server: Server) -> set[str]:
    return {name.removeprefix("r.j.") for name in server.store.names(PENDING)}


async def test_of_many_restarts_the_last_orphan_of_each_step_is_kept() -> None:
    """Regression: each left one more record, file and parse of every step that waited."""
    server = await waiting("a", "b")
    for episode in range(1, 8):
        await restart(server)
        now, before = episode + 1, episode
        assert dispatches(server) == {f"{s}.{n}" for s in "ab" for n in (before, now)}
        for step in "ab":
            assert server.store.get(PENDING, f"r.j.{step}.{before}").state == "orphaned"
            assert server.store.get(PENDING, f"r.j.{step}.{now}").spec.episode == now


async def test_the_orphans_that_an_older_version_kept_go() -> None:
    server = await waiting("a")
    first = server.store.get(PENDING, "r.j.a.1")
    server.end_wait("r.j.a.1", "orphaned")
    for episode in (2, 3, 4):
        spec = first.spec.model_copy(update={"episode": episode})
        name = f"r.j.a.{episode}"
        server.store.commit([replace(first, name=name, uid=name, revision=0, spec=spec)])
        server.end_wait(name, "orphaned")
    server.restart()
    await server.look()
    assert dispatches(server) == {"a.4", "a.5"}
    assert server.store.get(PENDING, "r.j.a.5").spec.asked_at == first.created_at


async def test_what_had_a_lease_stays() -> None:
    server = await waiting("a")
    server.lease("r.j.a.1")
    server.move("r.j.a.1", state="expired", ended_at=AT, reason="worker lost: gone")
    await server.look()
    for _ in range(3):
        await restart(server)
    assert dispatches(server) == {"a.1", "a.4", "a.5"}
    assert server.store.get(LEASES, "r.j.a.1").state == "expired"


async def test_a_restart_before_the_run_went_on_changes_nothing() -> None:
    server = await waiting("a")
    await restart(server)
    await restart(server)
    server.end_wait("r.j.a.3", "orphaned")
    for _ in range(3):
        server.restart()
    await server.look()
    assert dispatches(server) == {"a.3", "a.4"}
    await server.look()
    assert dispatches(server) == {"a.3", "a.4"}


async def test_an_orphan_goes_in_the_commit_of_the_new_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All or none of it, also after a crash: no number is ever given twice."""
    server = await waiting("a")
    await restart(server)
    commits: list[tuple[Any, ...]] = []
    append = server.store._journal.append

    def seen(ops: tuple[Any, ...], on_durable: Any = None) -> None:
        commits.append(ops)
        append(ops, on_durable)

    monkeypatch.setattr(server.store._journal, "append", seen)
    await restart(server)
    made = next(ops for ops in commits if any(isinstance(op, Remove) for op in ops))
    assert [op.record.name for op in made if isinstance(op, Put)] == ["r.j.a.3"]
    assert [op.name for op in made if isinstance(op, Remove)] == ["r.j.a.1"]


async def test_a_step_has_lasted_since_it_first_asked_over_many_restarts() -> None:
    server = await waiting("a")
    at = "2026-01-01T12:00:00.000Z"
    server.store.load(replace(server.store.get(PENDING, "r.j.a.1"), created_at=at))
    for _ in range(4):
        await restart(server)
    assert "a.1" not in dispatches(server)
    server.lease("r.j.a.5")
    server.end("r.j.a.5", GOOD)
    await server.look()
    passed = SystemClock().now() - parse_stamp(at)
    for event in ("ended/j/a", "job_ended/j"):
        told_s = server.said.fields[event]["durationMs"] / 1000
        assert told_s == pytest.approx(passed.total_seconds(), abs=60)
    status = server.store.get(STEPS, "r.j.a").status
    assert status is not None
    assert status.episodes == 5


async def test_others_get_their_turn_while_names_are_gone_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await waiting(*(f"s{i}" for i in range(40)))
    monkeypatch.setattr(episodes, "LEARNED_AT_ONCE", 2)
    learning, turns = asyncio.ensure_future(episodes.Episodes(server.store).learn("r")), 0
    while not learning.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 40 / 2


async def shown_while_taken_on(server: Server) -> list[Counts]:
    """The counts of the run that the API shows, at every turn of the loop."""

    def shown() -> Counts:
        totals = server.runs.totals("r")
        status = server.store.get(RUNS, "r").status
        assert status is not None
        return status.counts if totals is None else Counts(**totals)

    going, seen = asyncio.ensure_future(server.look()), [shown()]
    while not going.done():
        await asyncio.sleep(0)
        seen.append(shown())
    return seen


def ended(seen: Iterable[Counts]) -> list[int]:
    return [one.succeeded + one.failed + one.skipped for one in seen]


async def test_while_a_restart_takes_a_run_on_the_last_durable_counts_are_shown() -> None:
    """Regression: `{total: 1}` for about a second, then `0/20000`."""
    server = Server()
    loop = {"item": "i", "in": f"${{{{ {list(range(90))} }}}}"}
    each = {"name": "s", "task": TASK, "labels": {"pool": "a"}, "forEach": loop}
    needs = [{"step": "ok", "condition": {"type": "failed"}}]
    ok = {"name": "ok", "task": TASK, "labels": {"pool": "a"}}
    server.start(
        jobs=[{"name": "j", "steps": [each, ok, {**ok, "name": "no", "dependsOn": needs}]}]
    )
    await server.look()
    for name in [*server.store.names(PENDING)]:
        if name.endswith(("2.1", "3.1", "ok.1")):
            server.lease(name)
            server.end(name, GOOD)
    await server.look()
    for pending in server.store.live(PENDING):
        server.end_wait(pending.name, "orphaned")
    # The last rewrite of the counts may be a second old.
    run = server.store.get(RUNS, "r")
    assert run.status is not None
    counts = server.runs.totals("r")
    assert counts is not None
    durable = Counts(**{**counts, "succeeded": counts["succeeded"] - 3})
    server.store.commit([run.with_status(run.status.model_copy(update={"counts": durable}))])
    server.restart()
    seen = await shown_while_taken_on(server)
    assert seen[0] == durable
    assert seen[-1] == Counts(**counts)
    assert all(one in (durable, Counts(**counts)) for one in seen), seen
    assert ended(seen) == sorted(ended(seen))


async def test_while_a_restart_takes_a_run_on_no_demand_of_it_is_told_twice() -> None:
    """Its steps wait already, as dispatches."""
    server = await waiting(*(f"s{i}" for i in range(60)))
    server.restart()
    going = asyncio.ensure_future(server.look())
    while not going.done():
        await asyncio.sleep(0)
        assert not any(sum(found.values()) for found in server.runs.upcoming())
