"""Drawn workflows: chains, diamonds, fan-outs, conditions, limits; placed steps and others."""

from __future__ import annotations

import random
from typing import Any

from datastore.definitions.workflow import Workflow, workflow_from_source
from sim.models import MODELS
from sim.worker import Machine

POOLS = ("a", "b")
CONDITIONS = ("always", "succeeded", "failed", "completed", "skipped")
TASK = {"type": "model_method", "modelIdOrName": "m", "methodName": "execute"}


def draw_machines(rng: random.Random) -> list[Machine]:
    """Two to five machines; every pool has one."""
    count = rng.randint(2, 5)
    return [
        Machine(f"box{i}", {"pool": POOLS[i % len(POOLS)]}, rng.choice((1, 1, 2, 3)))
        for i in range(count)
    ]


def draw_workflow(rng: random.Random, name: str, models: random.Random | None = None) -> Workflow:
    """A workflow of one to three jobs with one to five steps each.

    Its steps call one model without a limit, or, with `models`, one of several with limits.
    """
    jobs = [_job(rng, f"j{i}") for i in range(rng.choice((1, 1, 2, 3)))]
    for number, job in enumerate(jobs[1:]):
        if rng.random() < 0.5:
            job["dependsOn"] = [{"job": f"j{number}", **_condition(rng)}]
    source: dict[str, Any] = {"name": name, "jobs": jobs}
    if rng.random() < 0.2:
        source["concurrency"] = rng.randint(1, 3)
    if rng.random() < 0.3:
        source["priority"] = rng.randint(1, 5)
    if rng.random() < 0.3:
        source["labels"] = {"pool": rng.choice(POOLS)}
    for step in [step for job in jobs for step in job["steps"] if models is not None]:
        assert models is not None
        step["task"] = {**TASK, "modelIdOrName": models.choice(tuple(MODELS))}
    # The model validates lists where it declares tuples, as it does for a parsed file.
    return workflow_from_source(source)


def is_placed(workflow: Workflow) -> dict[str, bool]:
    """By `job/step` as written: whether some layer names a placement."""
    return {
        f"{job.name}/{step.name}": any(
            layer.labels or layer.target or layer.platform for layer in (workflow, job, step)
        )
        for job in workflow.jobs
        for step in job.steps
    }


def _job(rng: random.Random, name: str) -> dict[str, Any]:
    count = rng.randint(1, 5)
    job: dict[str, Any] = {"name": name, "steps": [_step(rng, i) for i in range(count)]}
    if rng.random() < 0.2:
        job["concurrency"] = rng.randint(1, 2)
    return job


def _step(rng: random.Random, number: int) -> dict[str, Any]:
    step: dict[str, Any] = {"name": f"s{number}", "task": TASK}
    before = [f"s{i}" for i in range(number)]
    if before and rng.random() < 0.5:
        chosen = rng.sample(before, rng.randint(1, min(2, len(before))))
        step["dependsOn"] = [{"step": one, **_condition(rng)} for one in sorted(chosen)]
    if rng.random() < 0.25:
        step["forEach"] = {"item": "host", "in": "${{ inputs.hosts }}"}
    _place(rng, step)
    if rng.random() < 0.2:
        step["allowFailure"] = True
    if rng.random() < 0.15:
        step["timeout"] = rng.choice((2, 10, 40))
    if rng.random() < 0.15:
        step["concurrency"] = rng.randint(1, 2)
    return step


def _place(rng: random.Random, step: dict[str, Any]) -> None:
    kind = rng.random()
    if kind < 0.65:
        step["labels"] = {"pool": rng.choice(POOLS)}
        if rng.random() < 0.2:
            step["queueTimeout"] = rng.choice((0, 5, 30))
    elif kind < 0.75:
        step["platform"] = "linux"
    elif kind < 0.8:
        # Nobody has this label: it waits until its time is over.
        step["labels"] = {"pool": "nowhere"}
        step["queueTimeout"] = rng.choice((3, 20))


def _condition(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.6:
        return {}
    return {"condition": {"type": rng.choice(CONDITIONS)}}
