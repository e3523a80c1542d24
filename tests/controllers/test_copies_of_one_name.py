"""Two steps of one name would be one record: the run then hung, or said what nobody had done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from run_rig import TASK, Server

from controllers.run import controller
from datastore.definitions.workflow import Step, Workflow, workflow_from_source
from datastore.kinds import LEASES, PENDING, RUNS, STEPS, Counts, KeptCopies, KeptCopy, Outcome
from datastore.kinds.dispatch_name import file_name

GOOD = Outcome(ok=True, reason="completed")


def step(name: str, items: str | None = None, **more: Any) -> dict[str, Any]:
    each = {} if items is None else {"forEach": {"item": "i", "in": f"${{{{ {items} }}}}"}}
    return {"name": name, "task": TASK, "labels": {"pool": "a"}, **each, **more}


async def run_all(server: Server) -> None:
    """Let every step that waits succeed, until none does."""
    while names := [one.name for one in server.store.live(PENDING)]:
        for name in names:
            server.lease(name)
            server.end(name, GOOD)
        await server.look()


def counts_of_failed(server: Server) -> Counts:
    run = server.store.get(RUNS, "r")
    assert run.state == "failed"
    assert run.status is not None
    return run.status.counts


def error_of(server: Server, name: str) -> str:
    status = server.store.get(STEPS, name).status
    assert status is not None
    return str(status.error)


@pytest.mark.parametrize("first", ["s-a", "z-a"])
async def test_a_copy_that_is_called_like_a_step_fails_its_for_each(first: str) -> None:
    """`s-a` is looked at before the `forEach`, `z-a` after it."""
    server = Server()
    template = first[0] + "-${{ self.i }}"
    steps = [step(first), step(template, "['a', 'b']")]
    server.start(jobs=[{"name": "j", "steps": steps}])
    await server.look()
    await run_all(server)
    counts = counts_of_failed(server)
    assert (counts.total, counts.succeeded) == (2, 1)
    failed = next(one for one in server.store.names(STEPS) if one != f"r.j.{first}")
    assert f"makes a step '{first}', and so is another one called" in error_of(server, failed)


@pytest.mark.parametrize("items", ["data.latest('m', 'none')", "['x']"])
async def test_the_name_of_a_for_each_is_its_own_also_where_it_makes_none(items: str) -> None:
    """Regression: one that fails, or is skipped, has a record under its own name."""
    server = Server()
    never = {"dependsOn": [{"step": "z", "condition": {"type": "failed"}}]}
    steps = [step("${{ self.i }}", "['s']"), step("s", items, **never), step("z")]
    server.start(jobs=[{"name": "j", "steps": steps}])
    await server.look()
    await run_all(server)
    counts = counts_of_failed(server)
    assert (counts.failed, counts.skipped, counts.succeeded) == (1, 1, 1)


async def test_long_names_that_would_have_one_record_have_two() -> None:
    """Regression: of a longer name its record keeps a beginning and 32 bits, and those collide."""
    names = two_of_one_record("s/bucket-of-the-company/exports/of-the-last-quarter/part-")
    server = Server()
    server.start(jobs=[{"name": "j", "steps": [step("${{ self.i }}", str(names))]}])
    await server.look()
    await run_all(server)
    assert server.store.get(RUNS, "r").state == "succeeded"
    assert len(server.store.names(STEPS)) == 2


def two_of_one_record(beginning: str) -> list[str]:
    seen: dict[str, str] = {}
    for number in range(1_000_000):
        name = f"{beginning}{number:06}"
        if (other := seen.setdefault(file_name(name), name)) != name:
            return [other, name]
    raise AssertionError("no two names met")


async def one_of_two_has_opened(early_items: str, **more: Any) -> Server:
    """`early` and `late` would share the name `s-a`, and `late`, written first, waits for `a`."""
    server = Server()
    server.outputs.latest["l"] = ["c", "a"]
    after = {n: [{"step": n, "condition": {"type": "succeeded"}}] for n in ("a", "x")}
    late = step("s-${{self.i}}", "['b', 'a']", dependsOn=after["a"])
    early = step("s-${{ self.i }}", early_items, dependsOn=after["x"], **more)
    server.start(jobs=[{"name": "j", "steps": [late, early, step("a"), step("x")]}])
    await server.look()
    server.lease("r.j.x.1")
    server.end("r.j.x.1", GOOD)
    await server.look()
    return server


async def the_other_opens_over_a_restart(server: Server, *, crashes_before: bool) -> None:
    server.lease("r.j.a.1")
    server.end("r.j.a.1", GOOD)
    if not crashes_before:
        await server.look()
    # Of two that have ended, the one that is written first is looked at first now.
    server.restart()
    await server.look()


@pytest.mark.parametrize("crashes_before", [False, True])
@pytest.mark.parametrize("runs", [False, True])
async def test_which_of_two_for_each_has_the_name_stays_over_a_restart(
    *, crashes_before: bool, runs: bool
) -> None:
    server = await one_of_two_has_opened("['a']")
    if runs:
        server.lease("r.j.s-a.1")
        await server.look()
    await the_other_opens_over_a_restart(server, crashes_before=crashes_before)
    if runs:
        server.end("r.j.s-a.1", GOOD)
        await server.look()
    await run_all(server)
    counts = counts_of_failed(server)
    assert (counts.total, counts.succeeded, counts.failed) == (4, 3, 1)
    assert server.store.get(STEPS, "r.j.s-a").state == "succeeded"


@pytest.mark.parametrize("crashes_before", [False, True])
@pytest.mark.parametrize("items", ["['c', 'a']", "data.latest('m', 'l')"])
async def test_who_was_first_has_also_the_names_of_copies_that_have_not_started(
    *, crashes_before: bool, items: str
) -> None:
    """Regression: it was refused after a restart, and what ran of it was nobody's any more."""
    server = await one_of_two_has_opened(items, concurrency=1)
    server.lease("r.j.s-c.1")
    await server.look()
    await the_other_opens_over_a_restart(server, crashes_before=crashes_before)
    server.end("r.j.s-c.1", GOOD)
    await server.look()
    await run_all(server)
    counts = counts_of_failed(server)
    assert (counts.total, counts.succeeded, counts.failed) == (5, 4, 1)
    assert "another one called" in error_of(server, f"r.j.{file_name('s-${{self.i}}')}")


async def test_of_two_for_each_that_open_together_one_has_the_name() -> None:
    server = Server()
    steps = [step("s-${{ self.i }}", "['a']"), step("s-${{self.i}}", "['b', 'a']")]
    server.start(jobs=[{"name": "j", "steps": steps}])
    await server.look()
    await run_all(server)
    counts = counts_of_failed(server)
    assert (counts.total, counts.succeeded, counts.failed) == (2, 1, 1)


async def test_names_that_an_older_version_kept_twice_are_told_apart() -> None:
    """Regression: of such a run one step never ran, and it never ended."""
    server = Server()
    server.outputs.latest["l"] = ["w"]
    each = step("${{ self.i }}", "data.latest('m', 'l')")
    server.start(jobs=[{"name": "j", "steps": [each]}])
    run = server.store.get(RUNS, "r")
    assert run.status is not None
    kept = KeptCopies(copies=[KeptCopy(name=name, item={"i": 1}) for name in ("w", "v", "w")])
    for_each = {"j/${{ self.i }}": kept}
    server.store.commit([run.with_status(run.status.model_copy(update={"for_each": for_each}))])
    await server.look()
    await run_all(server)
    assert server.store.get(RUNS, "r").state == "succeeded"
    assert set(server.store.names(STEPS)) == {"r.j.w-0", "r.j.v", "r.j.w-2"}


async def test_copies_that_would_be_called_like_each_other_all_run() -> None:
    server = Server()
    server.start(jobs=[{"name": "j", "steps": [step("${{ self.i }}", "['w', 'w', 'w-0']")]}])
    await server.look()
    await run_all(server)
    run = server.store.get(RUNS, "r")
    assert run.state == "succeeded"
    assert set(server.store.names(STEPS)) == {"r.j.w-0", "r.j.w-1", "r.j.w-0-2"}


def keep_nothing_of_for_each(server: Server) -> None:
    """Of two that read inputs alone, an older version did not keep that they were opened."""
    run = server.store.get(RUNS, "r")
    assert run.status is not None
    server.store.commit([run.with_status(run.status.model_copy(update={"for_each": None}))])


@pytest.mark.parametrize("items", ["['a', 'b']", "[]"])
async def test_a_cancel_reaches_what_an_older_version_made_of_two_for_each(items: str) -> None:
    """Regression: such a run was over at once after the update, and its steps went on."""
    server = Server()
    after = [{"step": "${{ self.i }}-1", "condition": {"type": "succeeded"}}]
    steps = [
        step("${{ self.i }}-1", items),
        step("${{ self.i }}-2", "['a']"),
        step("x", dependsOn=after),
    ]
    server.start(jobs=[{"name": "j", "steps": steps}])
    await server.look()
    if items != "[]":
        for name in ("r.j.a-1.1", "r.j.b-1.1"):
            server.lease(name)
            server.end(name, GOOD)
        await server.look()
    server.lease("r.j.x.1")
    keep_nothing_of_for_each(server)
    server.runs.cancel("r", None)
    server.restart()
    await server.look()
    assert server.store.get(RUNS, "r").live
    assert server.store.get(PENDING, "r.j.a-2.1").spec.cancel
    assert server.store.get(LEASES, "r.j.x.1").spec.cancel


@pytest.mark.parametrize("crashes_before", [False, True])
async def test_of_two_for_each_of_an_older_version_whoever_was_first_has_the_name(
    *, crashes_before: bool
) -> None:
    server = await one_of_two_has_opened("['a']")
    keep_nothing_of_for_each(server)
    await the_other_opens_over_a_restart(server, crashes_before=crashes_before)
    await run_all(server)
    counts = counts_of_failed(server)
    assert (counts.total, counts.succeeded, counts.failed) == (4, 3, 1)
    assert "another one called" in error_of(server, f"r.j.{file_name('s-${{self.i}}')}")


async def test_the_end_of_what_an_older_version_made_is_told_again() -> None:
    server = Server()
    steps = [step("${{ self.i }}-1", "['a']"), step("${{ self.i }}-2", "['a']")]
    server.start(jobs=[{"name": "j", "steps": steps}])
    await server.look()
    await run_all(server)
    run = server.store.get(RUNS, "r")
    assert run.status is not None
    status = run.status.model_copy(update={"for_each": None})
    server.store.load(replace(run, status=status))
    server.restart()
    server.runs.tell_again(["r"])
    await server.look()
    assert {"ended/j/a-1", "ended/j/a-2"} < set(server.said.keys)


class Counted(tuple[Step, ...]):
    """Steps of a job that count how often somebody goes through them."""

    times = 0

    def __iter__(self) -> Iterator[Step]:
        self.times += 1
        return super().__iter__()


async def test_to_open_a_step_is_not_to_look_at_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: to start 5,000 steps took ten times as long, and a restart stood for seconds."""
    steps = Counted()

    def counted(source: dict[str, Any]) -> Workflow:
        nonlocal steps
        workflow = workflow_from_source(source)
        (job,) = workflow.jobs
        steps = Counted(job.steps)
        return workflow.model_copy(update={"jobs": (job.model_copy(update={"steps": steps}),)})

    monkeypatch.setattr(controller, "workflow_from_source", counted)
    server = Server()
    server.start(jobs=[{"name": "j", "steps": [step(f"s-{number}") for number in range(50)]}])
    await server.look()
    assert len(server.store.live(PENDING)) == 50
    assert steps.times < 10
