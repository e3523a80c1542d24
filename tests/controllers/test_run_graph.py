"""The graph of a run against a naive evaluator that looks at everything each time."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.run.graph import RunGraph, StepKey
from datastore.definitions.conditions import holds
from datastore.definitions.workflow import Workflow, workflow_from_source

TASK = {"type": "model_method", "modelIdOrName": "m", "methodName": "execute"}
CONDITIONS = ("always", "succeeded", "failed", "completed", "skipped")
ENDS = ("succeeded", "failed", "cancelled")


@st.composite
def workflows(draw: st.DrawFn) -> Workflow:
    jobs = []
    for number in range(draw(st.integers(1, 3))):
        job: dict[str, Any] = {"name": f"j{number}", "steps": _steps(draw)}
        job["dependsOn"] = _dependencies(draw, "job", [f"j{i}" for i in range(number)])
        job["concurrency"] = draw(st.integers(0, 2))
        jobs.append(job)
    source = {"name": "w", "jobs": jobs, "concurrency": draw(st.integers(0, 3))}
    return workflow_from_source(source)


def _steps(draw: st.DrawFn) -> list[dict[str, Any]]:
    return [
        {
            "name": f"s{number}",
            "task": TASK,
            "dependsOn": _dependencies(draw, "step", [f"s{i}" for i in range(number)]),
            "concurrency": draw(st.integers(0, 2)),
            "weight": draw(st.integers(0, 2)),
        }
        for number in range(draw(st.integers(1, 4)))
    ]


def _dependencies(draw: st.DrawFn, what: str, names: list[str]) -> list[dict[str, Any]]:
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=2)) if names else []
    made = []
    for name in chosen:
        condition = draw(st.sampled_from((None, *CONDITIONS)))
        made.append({what: name, **({"condition": {"type": condition}} if condition else {})})
    return made


class Naive:
    """What should be, worked out anew from the ends of steps so far."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.copies: dict[StepKey, list[str]] = {}
        self.ended: dict[StepKey, str] = {}
        self.allowed: set[StepKey] = set()

    def step(self, job: Any, step: Any) -> str | None:
        """How a step as written ended; None while it may still do something."""
        if self.job_skipped(job):
            return "skipped"
        if not self.job_may_start(job):
            return None
        states = [self.step(job, self._step(job, one.step)) for one in step.depends_on]
        if None in states:
            return None
        pairs = zip(step.depends_on, states, strict=True)
        if not all(holds(one.condition, state) for one, state in pairs):  # type: ignore[arg-type]
            return "skipped"
        names = self.copies.get((job.name, step.name))
        if names is None or any((job.name, name) not in self.ended for name in names):
            return None
        ends = [self.ended[job.name, name] for name in names]
        return "failed" if "failed" in ends else "cancelled" if "cancelled" in ends else "succeeded"

    def may_open(self, job: Any, step: Any) -> bool:
        if self.job_skipped(job) or not self.job_may_start(job):
            return False
        states = [self.step(job, self._step(job, one.step)) for one in step.depends_on]
        pairs = zip(step.depends_on, states, strict=True)
        return None not in states and all(
            holds(one.condition, state)  # type: ignore[arg-type]
            for one, state in pairs
        )

    def job(self, job: Any) -> str | None:
        if self.job_skipped(job):
            return "skipped"
        states = [self.step(job, step) for step in job.steps]
        if not self.job_may_start(job) or None in states:
            return None
        if any(self._failed_hard(job, step) for step in job.steps):
            return "failed"
        return "cancelled" if "cancelled" in states else "succeeded"

    def _failed_hard(self, job: Any, step: Any) -> bool:
        keys = [(job.name, name) for name in self.copies.get((job.name, step.name), [])]
        return any(self.ended.get(key) == "failed" and key not in self.allowed for key in keys)

    def job_may_start(self, job: Any) -> bool:
        states = [self.job(self._job(one.job)) for one in job.depends_on]
        return None not in states and not self.job_skipped(job)

    def job_skipped(self, job: Any) -> bool:
        states = [self.job(self._job(one.job)) for one in job.depends_on]
        pairs = zip(job.depends_on, states, strict=True)
        return None not in states and not all(
            holds(one.condition, state)  # type: ignore[arg-type]
            for one, state in pairs
        )

    def _job(self, name: str) -> Any:
        return next(job for job in self.workflow.jobs if job.name == name)

    @staticmethod
    def _step(job: Any, name: str) -> Any:
        return next(step for step in job.steps if step.name == name)


class Walk:
    """Drives graph and evaluator side by side."""

    def __init__(self, workflow: Workflow, draw: Any) -> None:
        self.graph = RunGraph(workflow)
        self.naive = Naive(workflow)
        self.draw = draw
        self.active: list[StepKey] = []
        self.skipped: set[StepKey] = set()

    def run(self) -> None:
        while not self.graph.done:
            self._open_all()
            while (key := self.graph.take_ready()) is not None:
                assert key not in self.active
                assert key not in self.naive.ended
                self.active.append(key)
            self._compare()
            if self.active:
                self._end_one()
            else:
                assert self.graph.done, "nothing runs, and the run is not over"
        self._open_all()
        self._compare()
        jobs = [self.naive.job(job) for job in self.naive.workflow.jobs]
        failed = "failed" in jobs or "cancelled" in jobs
        assert self.graph.outcome == ("failed" if failed else "succeeded")

    def _open_all(self) -> None:
        while (unit := self.graph.take_opening()) is not None:
            assert self.naive.may_open(unit.job, unit.step)
            names = [f"{unit.step.name}-{i}" for i in range(self.draw(st.integers(0, 3)))]
            self.naive.copies[unit.key] = names
            self.graph.open(unit.key, names, names)
        while (skip := self.graph.take_skip()) is not None:
            assert skip.key not in self.skipped
            self.skipped.add(skip.key)

    def _end_one(self) -> None:
        key = self.active.pop(self.draw(st.integers(0, len(self.active) - 1)))
        state = self.draw(st.sampled_from(ENDS))
        allowed = state == "failed" and self.draw(st.booleans())
        if allowed:
            self.naive.allowed.add(key)
        self.naive.ended[key] = state
        self.graph.finish(key, state, allowed=allowed)  # type: ignore[arg-type]

    def _compare(self) -> None:
        naive = self.naive
        for job in naive.workflow.jobs:
            state = self.graph.jobs[job.name]
            assert (None if state in ("pending", "running") else state) == naive.job(job)
            for step in job.steps:
                opened = (job.name, step.name) in naive.copies
                assert opened == naive.may_open(job, step)
                is_skipped = naive.step(job, step) == "skipped"
                assert ((job.name, step.name) in self.skipped) == is_skipped
        self._limits_hold_and_are_used()

    def _limits_hold_and_are_used(self) -> None:
        workflow = self.naive.workflow
        limit = workflow.concurrency or 100
        assert len(self.active) == self.graph.active <= limit
        for job in workflow.jobs:
            of_job = [key for key in self.active if key[0] == job.name]
            assert len(of_job) <= (job.concurrency or 100)
            for step in job.steps:
                names = self.naive.copies.get((job.name, step.name), [])
                running = [key for key in of_job if key[1] in names]
                ready = [n for n in names if (job.name, n) not in (*self.naive.ended, *of_job)]
                assert len(running) <= (step.concurrency or 100)
                full = (
                    len(self.active) == limit
                    or len(of_job) == (job.concurrency or 100)
                    or len(running) == (step.concurrency or 100)
                )
                assert full or not ready


@settings(max_examples=200, deadline=None)
@given(workflow=workflows(), data=st.data())
def test_the_graph_does_what_a_naive_evaluator_says(workflow: Workflow, data: Any) -> None:
    Walk(workflow, data.draw).run()


@settings(max_examples=50, deadline=None)
@given(workflow=workflows(), data=st.data())
def test_a_stopped_graph_starts_nothing_and_is_done_with_its_last_step(
    workflow: Workflow, data: Any
) -> None:
    walk = Walk(workflow, data.draw)
    walk._open_all()
    while (key := walk.graph.take_ready()) is not None:
        walk.active.append(key)
    walk.graph.stop()
    assert walk.graph.take_opening() is None
    while walk.active:
        assert not walk.graph.done
        walk._end_one()
        assert walk.graph.take_ready() is None
    assert walk.graph.done
    assert walk.graph.outcome == "cancelled"
