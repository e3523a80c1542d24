"""Workflow files: what is taken, and the exact words and place of what is refused."""

import json

import pytest
from workflow_texts import TOP, job, step, steps, top

from datastore.definitions import check_workflow, parse_workflow, workflow_from_source
from datastore.yaml_loader import load

SEED = """\
id: fc786c30-fb49-425e-9803-525237cd9c47
name: long-a
tags: {}
jobs:
  - name: long-job
    steps:
      - name: long-step
        task:
          type: model_method
          modelIdOrName: long-step-a
          methodName: execute
        labels:
          pool: worker
        dependsOn: []
        weight: 0
    dependsOn: []
    weight: 0
version: 1
"""

FULL = """\
id: 3f0a6a0e-0000-4000-8000-000000000001
name: full
description: all keys
version: 2
tags: {team: x}
inputs: {hosts: [a, b]}
concurrency: 0
priority: 5
timeout: 900
target: "${{ inputs.hosts[0] }}"
labels: {pool: ci}
platform: linux
queueTimeout: 0
jobs:
  - name: Job one.a_b-c
    description: first
    weight: -1
    concurrency: 2
    priority: 1
    timeout: 1.5
    target: w1
    labels: {}
    platform: linux
    queueTimeout: 10
    steps:
      - name: probe ${{ self.host }}
        description: probes
        forEach: {item: host, in: "${{ inputs.hosts }}"}
        task:
          type: model_method
          modelType: command/shell
          modelName: probe-${{ self.host }}
          methodName: execute
          inputs: {run: "echo ${{ self.host }}", n: 1, flag: null}
        allowFailure: true
        concurrency: 3
        priority: 2
        timeout: 60
        weight: 4
        target: w2
        labels: {pool: "${{ self.host }}"}
        platform: darwin
        queueTimeout: 1.5
      - name: after
        dependsOn: [{step: "probe ${{ self.host }}", condition: {type: completed}}]
        task: {type: model_method, modelIdOrName: x, methodName: execute}
  - name: two
    dependsOn: [{job: Job one.a_b-c, condition: {type: not, condition: {type: failed}}}]
    steps: [{name: s, task: {type: model_method, modelIdOrName: x, methodName: execute}}]
"""


@pytest.mark.parametrize("text", [SEED, FULL], ids=["seed", "full"])
def test_a_good_file_is_taken_and_rebuilt_from_what_was_written(text: str) -> None:
    document = load(text.encode(), "w.yaml")
    workflow = parse_workflow(document, "w.yaml")
    assert workflow.source == document.value
    stored = json.loads(json.dumps(workflow.source))
    assert workflow_from_source(stored) == workflow


def test_the_seed_reads_as_it_means() -> None:
    workflow = parse_workflow(load(SEED.encode(), "w.yaml"), "w.yaml")
    step = workflow.jobs[0].steps[0]
    assert (workflow.name, workflow.id) == ("long-a", "fc786c30-fb49-425e-9803-525237cd9c47")
    assert step.labels == {"pool": "worker"}
    assert step.task.model_id_or_name == "long-step-a"
    assert (step.weight, step.allow_failure, step.for_each) == (0, False, None)


def test_a_workflow_without_an_id_always_gets_the_same() -> None:
    text = SEED.partition("\n")[2]
    one = parse_workflow(load(text.encode(), "a.yaml"), "a.yaml")
    other = parse_workflow(load(text.encode(), "b.yaml"), "b.yaml")
    renamed = parse_workflow(load(text.replace("long-a", "b").encode(), "b.yaml"), "b.yaml")
    assert one.id == other.id != renamed.id


def test_scoped_names_are_names() -> None:
    text = SEED.replace("name: long-a", 'name: "@team/deploy/web"')
    assert parse_workflow(load(text.encode(), "w"), "w").name == "@team/deploy/web"


def findings(text: str) -> list[tuple[str, bool, str | None]]:
    return [
        (one.check, one.passed, one.error or one.warning)
        for one in check_workflow(load(text.encode(), "w.yaml"), "w.yaml")
    ]


def test_every_check_is_listed_by_its_name() -> None:
    assert findings(SEED) == [
        ("Schema validation", True, None),
        ("Unique job names", True, None),
        ("Unique step names in job 'long-job'", True, None),
        ("Valid job dependency references", True, None),
        ("Valid step dependency references in job 'long-job'", True, None),
        ("No cyclic job dependencies", True, None),
        ("No cyclic step dependencies in job 'long-job'", True, None),
    ]


def test_all_problems_are_found_in_the_order_of_the_file() -> None:
    found = findings(step("lables: {}\n        weight: x").replace(TOP, "name: W\n"))
    assert [check for check, _, _ in found] == ["Schema validation"] * 3
    assert [(error or "").split(" ")[0] for _, _, error in found] == [
        "'name'",
        "unknown",
        "'weight'",
    ]


def test_a_structural_problem_fails_its_own_check_only() -> None:
    text = steps("name: a, dependsOn: [{step: x}, {step: y}]")
    failed = [check for check, passed, _ in findings(text) if not passed]
    assert failed == ["Valid step dependency references in job 'j'"] * 2


def test_a_long_chain_of_steps_is_no_problem() -> None:
    names = "\n".join(f"name: s{n}, dependsOn: [{{step: s{n - 1}}}]" for n in range(1, 2_000))
    workflow = parse_workflow(
        load(steps(f"name: s0\n{names}").encode(), "w", max_bytes=1 << 24), "w"
    )
    assert len(workflow.jobs[0].steps) == 2_000


NO_PLACEMENT = "has no effect: no step that it applies to has a target, labels or a platform"
WARNINGS = {
    "on the step": (step("queueTimeout: 5"), ["7:9 the queueTimeout of step 's'"]),
    "step with placement": (step("queueTimeout: 5\n        platform: linux"), []),
    "placement from the job": (job("queueTimeout: 5\n    labels: {a: b}"), []),
    "placement from the workflow": (top("queueTimeout: 5\ntarget: w1"), []),
    "job clears it": (
        job("queueTimeout: 5\n    labels: {}").replace(TOP, f"{TOP}labels: {{a: b}}\n"),
        ["5:5 the queueTimeout of job 'j'"],
    ),
    "workflow without placement": (
        top("queueTimeout: 5"),
        ["2:1 the queueTimeout of the workflow"],
    ),
    "empty labels are no placement": (
        top("queueTimeout: 5\nlabels: {}"),
        ["2:1 the queueTimeout of the workflow"],
    ),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_a_queue_timeout_that_cannot_matter_is_a_warning(case: str) -> None:
    text, expected = WARNINGS[case]
    found = [one for one in check_workflow(load(text.encode(), "w"), "w") if one.warning]
    told = [
        f"{one.position.line}:{one.position.column} {one.warning}" for one in found if one.position
    ]
    assert told == [f"{line} {NO_PLACEMENT}" for line in expected]
    assert all(
        one.passed and one.check.startswith("queueTimeout without placement") for one in found
    )
    parse_workflow(load(text.encode(), "w"), "w")
