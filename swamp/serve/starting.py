"""A new run, from what a client asked for: checked, its definitions kept, created.

Nothing is created for a request that is wrong in any part.
"""

from __future__ import annotations

import asyncio
from typing import Any

from controllers.run.preflight import preflight
from datastore.definitions.catalog import Catalog
from datastore.definitions.inputs import InputError
from datastore.definitions.workflow import Workflow, resolve_inputs
from datastore.errors import InvalidFile, NotFound
from datastore.kinds import Run, RunSpec
from swamp.execute.calls import check_written
from swamp.serve.answers import ApiError
from swamp.serve.served import Served


async def start_run(served: Served, body: dict[str, Any], name: str) -> Run:
    """A run called `name` of the workflow that `body` names, with its inputs.

    ApiError, InputError, InvalidFile. `body` has `workflow`, and perhaps `inputs` and `priority`.
    """
    given = body.get("inputs", {})
    priority = body.get("priority")
    if not isinstance(given, dict):
        raise ApiError(400, "bad_request", "inputs must be an object")
    if priority is not None and (type(priority) is not int or not 1 <= priority <= 5):
        raise ApiError(400, "bad_request", "priority must be a number from 1 to 5")
    try:
        workflow, inputs, models = await asyncio.to_thread(_taken, served, body["workflow"], given)
    except InvalidFile as error:
        raise ApiError(422, "workflow_invalid", str(error)) from None
    except InputError as error:
        raise ApiError(422, "input_invalid", str(error)) from None
    spec = RunSpec(
        workflow=workflow.name,
        workflow_id=str(workflow.id),
        inputs=inputs,
        priority=priority,
        definition=workflow.source,
        models=models,
        own_process=None if served.only_run is None else True,
    )
    return served.manager.runs.create(workflow, spec, name)


def refused_of(catalog: Catalog, run: Run) -> list[str]:
    """Of the definitions that the run took, those whose files have a problem by now, a line each.

    Their last good version runs.
    """
    refused = [catalog.newer_refused("workflow", run.spec.workflow)]
    refused += [catalog.newer_refused("model", name) for name in run.spec.models]
    return [f"{one} (not in force: the last good version runs)" for one in refused if one]


def _taken(
    served: Served, name: str, given: dict[str, Any]
) -> tuple[Workflow, dict[str, Any], dict[str, Any]]:
    """The workflow as its file is now, the run's inputs, the models that it names. Blocks."""
    try:
        workflow = served.catalog.fresh("workflow", name)
    except NotFound as error:
        raise ApiError(404, "workflow_not_found", str(error)) from None
    inputs = resolve_inputs(workflow, given)
    try:
        return workflow, inputs, _models_of(served, workflow)
    except NotFound as error:
        raise ApiError(404, "model_not_found", str(error)) from None


def _models_of(served: Served, workflow: Workflow) -> dict[str, dict[str, Any]]:
    """The definitions that the workflow names; ApiError for what could not run. Blocks."""
    models = served.manager.runs.planner.models_of(workflow)
    found = preflight(workflow, lambda name: served.catalog.fresh("model", name), check_written)
    trouble = next(found, None)
    if trouble is not None:
        advice = f"see `swamp workflow validate {workflow.name}`"
        raise ApiError(422, "workflow_invalid", f"{trouble.text} ({advice})")
    return models
