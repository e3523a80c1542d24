"""Dependencies, loops, names, inputs and structure that a workflow file is refused for."""

import pytest
from workflow_texts import TASK, TOP, job, jobs, step, steps, top

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
    "plain dependsOn of a step": (
        step("dependsOn: [build]"),
        "7:21: 'dependsOn[0]' of step 's' must look like "
        "{step: build, condition: {type: succeeded}}, found 'build'",
    ),
    "plain dependsOn of a job": (
        job("dependsOn: [build]"),
        "4:17: 'dependsOn[0]' of job 'j' must look like "
        "{job: build, condition: {type: succeeded}}, found 'build'",
    ),
    "dependsOn is no list": (
        step("dependsOn: build"),
        "7:9: 'dependsOn' of step 's' must be a list, found 'build'",
    ),
    "plain condition": (
        step("dependsOn: [{step: a, condition: succeeded}]"),
        "7:31: 'condition' of dependency of step 's' must look like {type: succeeded}, "
        "found 'succeeded'",
    ),
    "unknown condition": (
        step("dependsOn: [{step: a, condition: {type: success}}]"),
        "7:43: 'type' of condition of dependency of step 's' must be 'always', 'succeeded', "
        "'failed', 'completed', 'skipped', 'and', 'or' or 'not', found 'success': did you mean "
        "'succeeded'?",
    ),
    "and of one": (
        step("dependsOn: [{step: a, condition: {type: and, conditions: [{type: failed}]}}]"),
        "7:31: condition of dependency of step 's' of type 'and' needs 'conditions' with at least "
        "two entries",
    ),
    "not of nothing": (
        step("dependsOn: [{step: a, condition: {type: not}}]"),
        "7:31: condition of dependency of step 's' of type 'not' needs 'condition'",
    ),
    "conditions of a simple one": (
        step("dependsOn: [{step: a, condition: {type: failed, conditions: []}}]"),
        "7:57: 'conditions' of condition of dependency of step 's' has no place in a condition of "
        "type 'failed'",
    ),
    "forEach without an expression": (
        step("forEach: {item: h, in: hosts}"),
        "7:28: 'in' of forEach of step 's' must be one expression such as \"${{ inputs.hosts }}\", "
        "found 'hosts'",
    ),
    "forEach over a list": (
        step("forEach: {item: h, in: [a]}"),
        "7:28: 'in' of forEach of step 's' must be a string, found a list",
    ),
    "forEach item": (
        step('forEach: {item: a-b, in: "${{ x }}"}'),
        "7:19: 'item' of forEach of step 's' must be a name such as 'host', found 'a-b'",
    ),
    "forEach key": (
        step('forEach: {itm: a, item: a, in: "${{ x }}"}'),
        "7:19: unknown key 'itm' in forEach of step 's': did you mean 'item'?",
    ),
    "expression in a name without forEach": (
        step("weight: 0", name="s-${{ inputs.x }}"),
        "5:9: 'name' of step 's-${{ inputs.x }}' may hold an expression only with 'forEach'",
    ),
    "step name with a slash": (
        step("weight: 0", name="a/b"),
        f"5:9: 'name' of step 'a/b' {NAME_RULE}, found 'a/b'",
    ),
    "step name with a slash beside an expression": (
        step('forEach: {item: a, in: "${{ x }}"}', name="a/${{ self.a }}"),
        f"5:9: 'name' of step 'a/${{{{ self.a }}}}' {NAME_RULE}, found 'a/a'",
    ),
    "job name too long": (
        jobs(f"name: {'j' * 65}"),
        f"3:6: 'name' of job '{'j' * 65}' {NAME_RULE}, found '{'j' * 40}…'",
    ),
    "step name is a number": (
        step("weight: 0", name="5"),
        "5:9: 'name' of step of job 'j' must be a string, found 5: quote it",
    ),
    "no steps": (
        f"{TOP}jobs: [{{name: j, steps: []}}]",
        "2:18: 'steps' of job 'j' must not be empty",
    ),
    "no jobs": (TOP, "1:1: workflow 'w' needs 'jobs'"),
    "jobs is a mapping": (
        f"{TOP}jobs: {{a: 1}}",
        "2:1: 'jobs' of workflow 'w' must be a list, found a mapping",
    ),
    "job is a string": (
        f"{TOP}jobs: [a]",
        "2:8: 'jobs[0]' of workflow 'w' must be a mapping, found 'a'",
    ),
    "no name": (
        f"jobs: [{{name: j, steps: [{{name: s, {TASK}}}]}}]",
        "1:1: the workflow needs 'name'",
    ),
    "capital letters": (
        top("tags: {}").replace("name: w\n", "name: Deploy\n"),
        f"1:1: 'name' of workflow 'Deploy' {ID_RULE}, found 'Deploy'",
    ),
    "name with dots": (
        top("tags: {}").replace("name: w\n", "name: ../w\n"),
        f"1:1: 'name' of workflow '../w' {ID_RULE}, found '../w'",
    ),
    "id": (top("id: 12"), "2:1: 'id' of workflow 'w' must be a string, found 12: quote it"),
    "id is no uuid": (top("id: abc"), "2:1: 'id' of workflow 'w' must be a UUID, found 'abc'"),
    "version": (
        top("version: '1'"),
        "2:1: 'version' of workflow 'w' must be a whole number, found '1'",
    ),
    "tag": (
        top("tags: {a: 1}"),
        "2:8: 'tags.a' of workflow 'w' must be a string, found 1: quote it",
    ),
    "input key": (
        top("inputs: {host: {typ: string}}"),
        "2:17: unknown key 'typ' in input 'host': did you mean 'type'?",
    ),
    "input key, object form": (
        top("inputs: {properties: {host: {typ: string}}}"),
        "2:30: unknown key 'typ' in input 'host': did you mean 'type'?",
    ),
    "input rule that is not built": (
        top("inputs: {host: {type: array, minItems: 1}}"),
        "2:30: 'minItems' in input 'host' is not supported yet",
    ),
    "input type": (
        top("inputs: {host: {type: strng}}"),
        "2:17: 'type' of input 'host' must be 'string', 'number', "
        "'integer', 'boolean', 'array' or 'object', found 'strng': did you mean 'string'?",
    ),
    "input default of another type": (
        top("inputs: {n: {type: integer, default: many}}"),
        "2:29: 'default' of input 'n' must be a whole number, found 'many'",
    ),
    "required input that is not declared": (
        top("inputs: {properties: {host: {}}, required: [hots]}"),
        "2:34: 'required' of inputs of workflow 'w' names 'hots', which is not declared: did you "
        "mean 'host'?",
    ),
    "input name": (
        top("inputs: {a b: 1}"),
        "2:10: 'properties.a b' of inputs of workflow 'w' must be a name of letters, digits, '-' "
        "and '_'",
    ),
    "duplicate jobs": (
        jobs("name: a\nname: b\nname: a"),
        "5:6: job 'a' is there 2 times: names must be unique",
    ),
    "duplicate steps": (
        steps("name: a\nname: a"),
        "6:10: step 'a' is there 2 times in job 'j': names must be unique",
    ),
    "jobs of one record": (
        jobs("name: a.b\nname: a-b-2e7336dc"),
        "4:6: the records of job 'a-b-2e7336dc' would be called like those of job 'a.b': rename "
        "one of them",
    ),
    "steps of one record": (
        steps("name: a.b\nname: a-b-2e7336dc"),
        "6:10: the records of step 'a-b-2e7336dc' would be called like those of step 'a.b' in job "
        "'j': rename one of them",
    ),
    "unknown job": (
        jobs("name: build\nname: b, dependsOn: [{job: biuld}]"),
        "4:28: job 'b' depends on job 'biuld': did you mean 'build'?",
    ),
    "unknown step": (
        steps("name: a, dependsOn: [{step: zzz}]"),
        "5:32: step 'a' depends on step 'zzz' in job 'j': there is no such step",
    ),
    "job cycle": (
        jobs(
            "name: a, dependsOn: [{job: c}]\nname: b, dependsOn: [{job: a}]\n"
            "name: c, dependsOn: [{job: b}]"
        ),
        "4:15: jobs wait for each other: a -> b -> c -> a",
    ),
    "step waits for itself": (
        steps("name: a, dependsOn: [{step: a}]"),
        "5:19: steps wait for each other in job 'j': a -> a",
    ),
    "two problems": (
        step("lables: {}\n        weight: x"),
        "7:9: unknown key 'lables' in step 's': did you mean 'labels'? (and 1 more problem)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_its_place_and_a_way_out(case: str) -> None:
    text, expected = BAD[case]
    with pytest.raises(InvalidFile) as caught:
        parse_workflow(load(text.encode(), "w.yaml"), "w.yaml")
    assert str(caught.value) == f"w.yaml:{expected}"
