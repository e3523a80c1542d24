"""Definitions that people write, workflows and models, and the catalog that finds them by name.

They are no records: the files are theirs, nothing here writes them, and one that ends being there
ends being found.
"""

from __future__ import annotations

from datastore.definitions.catalog import Catalog
from datastore.definitions.checks import Finding, check_workflow, parse_workflow
from datastore.definitions.conditions import Condition, holds
from datastore.definitions.inputs import InputError
from datastore.definitions.model import ModelDefinition, model_from_source, parse_model
from datastore.definitions.placement import PlacementTemplate, placement_of, priority_of
from datastore.definitions.workflow import (
    ForEach,
    Job,
    JobDependency,
    Step,
    StepDependency,
    Task,
    Workflow,
    resolve_inputs,
    workflow_from_source,
)

__all__ = [
    "Catalog",
    "Condition",
    "Finding",
    "ForEach",
    "InputError",
    "Job",
    "JobDependency",
    "ModelDefinition",
    "PlacementTemplate",
    "Step",
    "StepDependency",
    "Task",
    "Workflow",
    "check_workflow",
    "holds",
    "model_from_source",
    "parse_model",
    "parse_workflow",
    "placement_of",
    "priority_of",
    "resolve_inputs",
    "workflow_from_source",
]
