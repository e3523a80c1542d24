"""The checks of a workflow file, as `workflow validate` lists them, and parsing on top of them.

A file is in force only if every check passes; warnings do not keep it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from datastore.definitions.placement import placement_of
from datastore.definitions.problems import Problem, find_problems, invalid
from datastore.definitions.suggest import did_you_mean
from datastore.definitions.workflow import Job, Placed, Workflow
from datastore.errors import Position
from datastore.kinds.dispatch_name import file_name
from datastore.yaml_loader import Document

_SCHEMA = "Schema validation"
_Keys = tuple[str | int, ...]
_DEPTH = {"workflow": 0, "job": 2, "step": 4}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; a check that found several things has several findings."""

    check: str
    passed: bool
    path: str
    error: str | None = None
    warning: str | None = None
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class _Graph:
    """Named things that depend on each other: the jobs, or the steps of one job."""

    noun: str
    where: str
    names: list[str]
    dependencies: list[list[str]]
    place: Callable[..., Position]
    """Position of `(index, *keys)` inside the list of things."""

    def duplicates(self) -> Iterator[Problem]:
        counts = Counter(self.names)
        seen: set[str] = set()
        for index, name in enumerate(self.names):
            if name in seen:
                text = f"{self.noun} '{name}' is there {counts[name]} times{self.where}"
                yield Problem(f"{text}: names must be unique", self.place(index, "name"))
            seen.add(name)
        yield from self._alike()

    def _alike(self) -> Iterator[Problem]:
        """Names that are written in another way where they are parts of the names of records."""
        first: dict[str, str] = {}
        for index, name in enumerate(self.names):
            other = first.setdefault(file_name(name), name)
            if other != name:
                text = f"the records of {self.noun} '{name}' would be called like those of"
                yield Problem(
                    f"{text} {self.noun} '{other}'{self.where}: rename one of them",
                    self.place(index, "name"),
                )

    def dangling(self) -> Iterator[Problem]:
        known = set(self.names)
        for index, name in enumerate(self.names):
            for number, other in enumerate(self.dependencies[index]):
                if other not in known:
                    others = known - {name}
                    advice = did_you_mean(other, others) or f"there is no such {self.noun}"
                    yield Problem(
                        f"{self.noun} '{name}' depends on {self.noun} '{other}'{self.where}: "
                        f"{advice}",
                        self.place(index, "dependsOn", number, self.noun),
                    )

    def cycles(self) -> Iterator[Problem]:
        graph = dict(zip(self.names, self.dependencies, strict=True))
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            cycle: list[str] = error.args[1]
            text = f"{self.noun}s wait for each other{self.where}: {' -> '.join(cycle)}"
            # Each comes before the next, so the second one is who depends on the first.
            index = self.names.index(cycle[1])
            yield Problem(text, self.place(index, "dependsOn"))


def check_workflow(document: Document, path: str) -> list[Finding]:
    """Every check with its result, the failed ones with their position in the file."""
    workflow, problems = find_problems(Workflow, document)
    findings = _findings(_SCHEMA, path, problems)
    if workflow is not None:
        for check, found in _structure(workflow, document):
            findings += _findings(check, path, found)
        findings += _warnings(workflow, document, path)
    return findings


def parse_workflow(document: Document, path: str) -> Workflow:
    """The workflow of a file; InvalidFile with the first problem and a count of the others."""
    workflow, problems = find_problems(Workflow, document)
    if workflow is not None:
        problems = [one for _, found in _structure(workflow, document) for one in found]
    if workflow is None or problems:
        raise invalid(path, problems)
    workflow._source = document.value
    return workflow


def _findings(check: str, path: str, problems: Sequence[Problem]) -> list[Finding]:
    if not problems:
        return [Finding(check, True, path)]
    return [Finding(check, False, path, one.text, position=one.position) for one in problems]


def _structure(workflow: Workflow, document: Document) -> Iterator[tuple[str, list[Problem]]]:
    jobs = _job_graph(workflow, document)
    steps = [
        (job.name, _step_graph(job, index, document)) for index, job in enumerate(workflow.jobs)
    ]
    yield "Unique job names", list(jobs.duplicates())
    for name, graph in steps:
        yield f"Unique step names in job '{name}'", list(graph.duplicates())
    yield "Valid job dependency references", list(jobs.dangling())
    for name, graph in steps:
        yield f"Valid step dependency references in job '{name}'", list(graph.dangling())
    yield "No cyclic job dependencies", list(jobs.cycles())
    for name, graph in steps:
        yield f"No cyclic step dependencies in job '{name}'", list(graph.cycles())


def _job_graph(workflow: Workflow, document: Document) -> _Graph:
    return _Graph(
        noun="job",
        where="",
        names=[job.name for job in workflow.jobs],
        dependencies=[[one.job for one in job.depends_on] for job in workflow.jobs],
        place=lambda *keys: document.position("jobs", *keys),
    )


def _step_graph(job: Job, index: int, document: Document) -> _Graph:
    return _Graph(
        noun="step",
        where=f" in job '{job.name}'",
        names=[step.name for step in job.steps],
        dependencies=[[one.step for one in step.depends_on] for step in job.steps],
        place=lambda *keys: document.position("jobs", index, "steps", *keys),
    )


def _warnings(workflow: Workflow, document: Document, path: str) -> Iterator[Finding]:
    """Queue timeouts that can never matter: no step under them asks for a worker."""
    layers: list[tuple[_Keys, str, Placed]] = [((), "the workflow", workflow)]
    useful: set[_Keys] = set()
    for j, job in enumerate(workflow.jobs):
        layers.append((("jobs", j), f"job '{job.name}'", job))
        for s, step in enumerate(job.steps):
            keys: _Keys = ("jobs", j, "steps", s)
            layers.append((keys, f"step '{step.name}'", step))
            placement = placement_of(workflow, job, step)
            if placement.active and placement.queue_timeout_from is not None:
                useful.add(keys[: _DEPTH[placement.queue_timeout_from]])
    for keys, label, layer in layers:
        if layer.queue_timeout_s is not None and keys not in useful:
            yield Finding(
                check=f"queueTimeout without placement for {label}",
                passed=True,
                path=path,
                warning=f"the queueTimeout of {label} has no effect: no step that it applies to "
                "has a target, labels or a platform",
                position=document.position(*keys, "queueTimeout"),
            )
    yield from _affinity_warnings(workflow, document, path)


def _affinity_warnings(workflow: Workflow, document: Document, path: str) -> Iterator[Finding]:
    """Affinity that holds nothing together: no step under it asks for a worker."""
    wholes: list[tuple[_Keys, str, bool, tuple[Job, ...]]] = [
        ((), "the workflow", workflow.affinity, workflow.jobs)
    ]
    wholes += [
        (("jobs", j), f"job '{job.name}'", job.affinity, (job,))
        for j, job in enumerate(workflow.jobs)
    ]
    for keys, label, wanted, jobs in wholes:
        placed = (placement_of(workflow, job, step) for job in jobs for step in job.steps)
        if wanted and not any(placement.active for placement in placed):
            yield Finding(
                check=f"affinity without placement for {label}",
                passed=True,
                path=path,
                warning=f"the affinity of {label} has no effect: none of its steps has a target, "
                "labels or a platform",
                position=document.position(*keys, "affinity"),
            )
