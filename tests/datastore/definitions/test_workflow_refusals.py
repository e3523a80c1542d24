"""Keys and values that a workflow file is refused for: exact words, exact place."""

import pytest
from workflow_texts import TASK, TOP, job, step, steps, task, top

from datastore.definitions import parse_workflow
from datastore.errors import InvalidFile
from datastore.yaml_loader import load

NAME_RULE = (
    "must be at most 64 letters, digits, spaces, '.', '_' and '-', starting with a letter or digit"
)
ID_RULE = (
    "must be at most 64 of a-z, 0-9, '-' and '_', starting with a letter or digit, or '@scope/name'"
)
REMOVED = "it was removed: 'target', 'labels' and 'platform' say where a step runs"
NO_VALUE = "has no value: give it one or remove the key"

BAD = {
    "misspelt labels": (
        step("lables: {pool: x}"),
        "7:9: unknown key 'lables' in step 's': did you mean 'labels'?",
    ),
    "misspelt by case": (
        step("queuetimeout: 1"),
        "7:9: unknown key 'queuetimeout' in step 's': did you mean 'queueTimeout'?",
    ),
    "snake case": (
        step("queue_timeout_s: 1"),
        "7:9: unknown key 'queue_timeout_s' in step 's': did you mean 'queueTimeout'?",
    ),
    "misspelt on the job": (
        job("platfrom: linux"),
        "4:5: unknown key 'platfrom' in job 'j': did you mean 'platform'?",
    ),
    "misspelt on the workflow": (
        top("targett: w"),
        "2:1: unknown key 'targett' in workflow 'w': did you mean 'target'?",
    ),
    "nothing near": (
        step("dependsOn: [{step: a, xyz: 1}]"),
        "7:31: unknown key 'xyz' in dependency of step 's': valid keys are condition, step",
    ),
    "nameless": (
        f"{TOP}jobs: [{{name: j, steps: [{{lables: {{}}, name: '', {TASK}}}]}}]",
        "2:27: unknown key 'lables' in step of job 'j': did you mean 'labels'? "
        "(and 1 more problem)",
    ),
    "placement in the task": (
        task("type: model_method, modelIdOrName: m, methodName: e, labels: {}"),
        "6:69: unknown key 'labels' in task of step 's': it belongs to a step, a job or the "
        "workflow",
    ),
    "arguments in the task": (
        task("type: model_method, modelIdOrName: m, methodName: e, arguments: {}"),
        "6:69: unknown key 'arguments' in task of step 's': arguments of the method go into "
        "'inputs'",
    ),
    "driver": (step("driver: x"), f"7:9: unknown key 'driver' in step 's': {REMOVED}"),
    "driverConfig": (
        job("driverConfig: {}"),
        f"4:5: unknown key 'driverConfig' in job 'j': {REMOVED}",
    ),
    "guard": (step('guard: "${{ true }}"'), "7:9: 'guard' in step 's' is not supported yet"),
    "dataOutputOverrides": (
        step("dataOutputOverrides: []"),
        "7:9: 'dataOutputOverrides' in step 's' is not supported yet",
    ),
    "writes": (job("writes: true"), "4:5: 'writes' in job 'j' is not supported yet"),
    "trigger": (top("trigger: {}"), "2:1: 'trigger' in workflow 'w' is not supported yet"),
    "reports": (top("reports: {}"), "2:1: 'reports' in workflow 'w' is not supported yet"),
    "affinity": (
        top("affinity: 1"),
        "2:1: 'affinity' of workflow 'w' must be true or false, found 1",
    ),
    "globalArgs": (
        task("type: model_method, modelType: t, modelName: m, methodName: e, globalArgs: {}"),
        "6:79: 'globalArgs' in task of step 's' is not supported yet",
    ),
    **{
        kind: (
            task(f"type: {kind}, whatever: 1"),
            f"6:16: 'type' of task of step 's' must be 'model_method': '{kind}' is not "
            "supported yet",
        )
        for kind in ("workflow", "manual_approval", "assert")
    },
    "shell task": (
        task("type: shell, run: ls"),
        "6:16: 'type' of task of step 's' must be 'model_method': for 'shell' use a model "
        "command/shell",
    ),
    "misspelt task type": (
        task("type: model_metod, modelIdOrName: m, methodName: e"),
        "6:16: 'type' of task of step 's' must be 'model_method', found 'model_metod': did you "
        "mean "
        "'model_method'?",
    ),
    "inputs of a task as one expression": (
        task('type: model_method, modelIdOrName: m, methodName: e, inputs: "${{ inputs }}"'),
        "6:69: 'inputs' of task of step 's' as one expression is not supported yet: write a "
        "mapping",
    ),
    "two ways to name the model": (
        task("type: model_method, modelIdOrName: m, modelName: n, methodName: e"),
        "6:9: task of step 's' takes either 'modelIdOrName' or 'modelType' and 'modelName'",
    ),
    "no model": (
        task("type: model_method, modelType: t, methodName: e"),
        "6:9: task of step 's' needs 'modelIdOrName', or 'modelType' and 'modelName'",
    ),
    "no method": (
        task("type: model_method, modelIdOrName: m"),
        "6:9: task of step 's' needs 'methodName'",
    ),
    "no task": (steps("name: a").replace(f", {TASK}", ""), "5:9: step 'a' needs 'task'"),
    "task is a string": (
        step("weight: 0", task="task: build"),
        "6:9: 'task' of step 's' must be a mapping, found 'build'",
    ),
    "label is a number": (
        step("labels: {port: 8080}"),
        "7:18: 'labels.port' of step 's' must be a string, found 8080: quote it",
    ),
    "label is a boolean": (
        job("labels: {gpu: true}"),
        "4:14: 'labels.gpu' of job 'j' must be a string, found true: quote it",
    ),
    "label is a list of numbers": (
        top("labels: {pool: [1, 2]}"),
        "2:10: 'labels.pool' of workflow 'w' must hold at least one value, strings only: quote "
        "them",
    ),
    "label has an unknown rule": (
        top("labels: {pool: {nor: a}}"),
        "2:10: 'labels.pool' of workflow 'w' must be a string, a list of strings, or {not: …}",
    ),
    "label without a value": (
        step("labels: {pool: }"),
        "7:18: 'labels.pool' of step 's' must be a string, found nothing",
    ),
    "label without a name": (
        step('labels: {"": x}'),
        "7:9: 'labels' of step 's' must name each label: found one without a name",
    ),
    "labels without lines": (step("labels:"), f"7:9: 'labels' of step 's' {NO_VALUE}"),
    "target without a value": (top("target:"), f"2:1: 'target' of workflow 'w' {NO_VALUE}"),
    "target is empty": (step("target: ''"), "7:9: 'target' of step 's' must not be empty"),
    "target is a number": (
        step("target: 5"),
        "7:9: 'target' of step 's' must be a string, found 5: quote it",
    ),
    "queueTimeout with a unit": (
        step("queueTimeout: 5m"),
        "7:9: 'queueTimeout' of step 's' must be a plain number, found '5m'",
    ),
    "queueTimeout as an expression": (
        top('queueTimeout: "${{ inputs.t }}"'),
        "2:1: 'queueTimeout' of workflow 'w' must be a plain number, found '${{ inputs.t }}'",
    ),
    "negative queueTimeout": (
        step("queueTimeout: -1"),
        "7:9: 'queueTimeout' of step 's' must be at least 0, found -1",
    ),
    "timeout of zero": (
        step("timeout: 0"),
        "7:9: 'timeout' of step 's' must be more than 0, found 0",
    ),
    "priority too high": (
        step("priority: 6"),
        "7:9: 'priority' of step 's' must be from 1 (most urgent) to 5, found 6",
    ),
    "priority in quotes": (
        step("priority: '3'"),
        "7:9: 'priority' of step 's' must be a whole number, found '3'",
    ),
    "weight with a fraction": (
        step("weight: 1.5"),
        "7:9: 'weight' of step 's' must be a whole number, found 1.5",
    ),
    "negative concurrency": (
        job("concurrency: -1"),
        "4:5: 'concurrency' of job 'j' must be at least 0, found -1",
    ),
    "allowFailure in words": (
        step("allowFailure: yes"),
        "7:9: 'allowFailure' of step 's' must be true or false, found 'yes'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_its_place_and_a_way_out(case: str) -> None:
    text, expected = BAD[case]
    with pytest.raises(InvalidFile) as caught:
        parse_workflow(load(text.encode(), "w.yaml"), "w.yaml")
    assert str(caught.value) == f"w.yaml:{expected}"
