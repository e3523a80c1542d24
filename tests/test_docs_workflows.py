"""The examples of docs/workflows.md load, and its table names every key."""

from __future__ import annotations

import re
from pathlib import Path

from datastore.definitions import check_workflow, parse_model, parse_workflow
from datastore.definitions.workflow import Job, Step, Workflow
from datastore.yaml_loader import load

PAGE = (Path(__file__).parents[1] / "docs" / "workflows.md").read_text(encoding="utf-8")
WORKFLOW, MODEL = (
    load(block.encode(), "docs/workflows.md")
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
)


def test_the_example_of_a_workflow_is_valid() -> None:
    workflow = parse_workflow(WORKFLOW, "docs/workflows.md")
    assert [step.name for step in workflow.jobs[0].steps] == ["test-${{ self.host }}", "report"]
    assert all(finding.passed for finding in check_workflow(WORKFLOW, "docs/workflows.md"))


def test_the_example_of_a_model_is_valid() -> None:
    assert parse_model(MODEL, "docs/workflows.md").concurrency == 0


def test_every_key_of_a_workflow_is_in_the_table() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", PAGE, re.MULTILINE)
    named = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    fields = (
        field.alias or name
        for kind in (Workflow, Job, Step)
        for name, field in kind.model_fields.items()
    )
    structure = {"id", "version", "jobs", "steps", "task"}
    assert {key for key in fields if key not in structure} <= named
