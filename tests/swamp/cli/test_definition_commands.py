"""`workflow` and `model`: list, show, validate."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from datastore.layout import Layout
from swamp.cli import main

WORKFLOW = """\
id: fc786c30-fb49-425e-9803-525237cd9c47
name: deploy  # a remark
jobs:
  - name: job
    steps:
      - name: step
        task: {type: model_method, modelIdOrName: build, methodName: execute}
inputs: {target: all}
"""
MODEL = """\
type: command/shell
id: bd83a14c-75bd-43a0-bb96-5186061dd5d5
name: build
methods:
  execute:
    arguments:
      run: "make ${{ inputs.target }}"
"""
OTHER = WORKFLOW.replace("deploy", "other").replace("fc786c30", "ac786c30")


@pytest.fixture
def written(repo: Layout) -> Layout:
    (repo.workflows / "any.yaml").write_text(WORKFLOW)
    folder: Path = repo.models / "command/shell"
    folder.mkdir(parents=True)
    (folder / "any.yaml").write_text(MODEL)
    return repo


def test_nothing_written_yet(repo: Layout, swamp: Any) -> None:
    assert swamp("workflow", "list").out.startswith("No workflows: write one")
    assert swamp("model", "list").out.startswith("No models: write one")
    assert swamp("workflow", "validate").code == 0
    assert swamp("model", "validate", "--json").json["passed"] is True


def test_lists(written: Layout, swamp: Any) -> None:
    assert swamp("workflow", "list").out == (
        "NAME    JOBS  STEPS  DESCRIPTION\ndeploy  1     1      -\n"
    )
    assert swamp("model", "list").out == (
        "NAME   TYPE           METHODS\nbuild  command/shell  execute\n"
    )
    assert swamp("workflow", "list", "--json").json["results"][0]["jobCount"] == 1
    assert swamp("model", "list", "--json").json["results"][0]["type"] == "command/shell"


def test_a_broken_file_is_named_beside_the_list(written: Layout, swamp: Any) -> None:
    (written.workflows / "broken.yaml").write_text("name: a\nname: b\n")
    result = swamp("workflow", "list")
    assert result.code == 0
    assert "deploy" in result.out
    assert result.err.startswith("not in force: workflows/broken.yaml:2:1: ")
    assert "broken" not in swamp("model", "list").err


@pytest.mark.parametrize("name", ["deploy", "fc786c30-fb49-425e-9803-525237cd9c47"])
def test_show_prints_what_is_written_with_its_comments(
    written: Layout, swamp: Any, name: str
) -> None:
    assert swamp("workflow", "show", name).out == f"# workflows/any.yaml\n{WORKFLOW}"
    shown = swamp("workflow", "show", name, "--json").json
    assert (shown["name"], shown["path"]) == ("deploy", "workflows/any.yaml")
    assert swamp("model", "show", "build").out == f"# models/command/shell/any.yaml\n{MODEL}"


@pytest.mark.parametrize("kind", ["workflow", "model"])
def test_an_unknown_name_is_one_line(written: Layout, swamp: Any, kind: str) -> None:
    for verb in ("show", "validate"):
        result = swamp(kind, verb, "nobody")
        assert (result.code, result.out) == (1, "")
        assert result.err == f"Error: no {kind} 'nobody'; see `swamp {kind} list`\n"


def test_what_is_well_passes(written: Layout, swamp: Any) -> None:
    result = swamp("workflow", "validate")
    assert (result.code, result.out) == (0, "1 of 1 workflows are valid\n")
    one = swamp("workflow", "validate", "deploy", "--json").json
    assert (one["workflowName"], one["passed"], one["totalWarnings"]) == ("deploy", True, 0)
    assert {"name": "Unique job names", "passed": True, "path": "workflows/any.yaml"} in one[
        "validations"
    ]
    assert swamp("model", "validate").out == "1 of 1 models are valid\n"


def test_several_workflows_are_checked_and_no_others(written: Layout, swamp: Any) -> None:
    (written.workflows / "other.yaml").write_text(OTHER)
    (written.workflows / "bad.yaml").write_text("a: 1\n\tb: 2\n")
    identity = "fc786c30-fb49-425e-9803-525237cd9c47"
    both = swamp("workflow", "validate", "deploy", "other", identity)
    assert (both.code, both.out) == (0, "2 of 2 workflows are valid\n")
    document = swamp("workflow", "validate", "deploy", "other", "--json").json
    assert [one["workflowName"] for one in document["workflows"]] == ["deploy", "other"]
    refused = swamp("workflow", "validate", "deploy", "nobody")
    assert (refused.code, refused.out) == (1, "")
    assert "no workflow 'nobody'" in refused.err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\n\tb: 2\n", "workflows/bad.yaml:2:1: "),
        (WORKFLOW.replace("jobs:", "jbs:"), "workflows/bad.yaml:3:1: unknown key 'jbs'"),
        (
            OTHER.replace("modelIdOrName: build", "modelIdOrName: biuld"),
            "workflows/bad.yaml:7:36: step 'step' of job 'job': no model 'biuld'; did you mean",
        ),
        (
            OTHER.replace("methodName: execute", "methodName: exec"),
            "workflows/bad.yaml:7:58: step 'step' of job 'job': command/shell has no method",
        ),
        (
            OTHER.replace("execute}", "execute, inputs: {run: '${{ inputs.nope }}'}}"),
            "workflows/bad.yaml:7:88: step 'step' of job 'job': `inputs.nope`: the workflow's",
        ),
    ],
)
def test_a_bad_workflow_is_told_by_file_line_and_column(
    written: Layout, swamp: Any, text: str, line: str
) -> None:
    (written.workflows / "bad.yaml").write_text(text)
    result = swamp("workflow", "validate")
    assert result.code == 1
    assert line in result.out
    assert result.out.endswith("1 of 2 workflows are valid\n")
    document = swamp("workflow", "validate", "--json").json
    assert (document["totalPassed"], document["totalFailed"]) == (1, 1)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("command/shell", "command/shel", "unknown model type 'command/shel'"),
        ("execute:", "excute:", "has no method 'excute'; did you mean 'execute'?"),
        ("run:", "cmd: x\n      run:", "unknown argument 'cmd'"),
        ("run:", "timeout: soon\n      run:", "'timeout' must be a positive whole number"),
        ("name: build", "nam: build", "unknown key 'nam'"),
    ],
)
def test_a_bad_model_is_told_by_file_line_and_column(
    written: Layout, swamp: Any, before: str, after: str, said: str
) -> None:
    file = written.models / "command/shell/any.yaml"
    file.write_text(MODEL.replace(before, after))
    result = swamp("model", "validate")
    assert result.code == 1
    assert said in result.out
    assert result.out.startswith("models/command/shell/any.yaml:")


@pytest.mark.parametrize("kind", ["workflow", "model"])
def test_without_a_server_nobody_knows_which_of_two_with_one_name_is_in_force(
    written: Layout, swamp: Any, kind: str
) -> None:
    folder, text = (written.workflows, WORKFLOW) if kind == "workflow" else (written.models, MODEL)
    first = "workflows/any.yaml" if kind == "workflow" else "models/command/shell/any.yaml"
    (folder / "z.yaml").write_text(text.replace("-43", "-44").replace("-4b", "-4c"))
    undecided = "a server keeps the one that it knew first: rename one of the two"
    result = swamp(kind, "validate")
    assert (result.code, result.out.splitlines()[-1]) == (1, f"0 of 2 {kind}s are valid")
    assert f"{kind}s/z.yaml: {kind} " in result.out
    assert f"{first}: {kind}s/z.yaml has its name or id, too: {undecided}\n" in result.out
    assert "stays in force" not in result.out + swamp(kind, "list").err
    name = "deploy" if kind == "workflow" else "build"
    assert swamp(kind, "show", name).err == (
        f"{first} and {kind}s/z.yaml have one name or id; {undecided}\n"
    )


def test_a_server_says_which_of_two_with_one_name_is_in_force(
    written: Layout, swamp: Any, server: Any
) -> None:
    (written.workflows / "z.yaml").write_text(WORKFLOW)
    problem = "workflow 'deploy' is defined in workflows/z.yaml already, which stays in force"
    server.answers["GET", "/api/v1/problems"] = (
        200, [{"path": "workflows/any.yaml", "line": None, "column": None, "problem": problem}],
    )  # fmt: skip
    result = swamp("workflow", "validate")
    assert result.out == f"workflows/any.yaml: {problem}\n1 of 2 workflows are valid\n"
    shown = swamp("workflow", "show", "deploy")
    assert shown.out.startswith("# workflows/z.yaml\n")
    assert "the server has workflows/z.yaml in force" in shown.err
    assert swamp("workflow", "list").err == f"not in force: workflows/any.yaml: {problem}\n"


@pytest.mark.parametrize("kind", ["workflow", "model"])
def test_an_odd_entry_is_a_problem_of_its_own_and_stops_nothing(
    written: Layout, swamp: Any, kind: str
) -> None:
    folder = written.root / f"{kind}s"
    (folder / "dir.yaml").mkdir()
    (folder / "gone.yaml").symlink_to("nowhere")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    os.mkfifo(folder / "pipe.yaml")
    result = swamp(kind, "validate")
    assert (result.code, result.out.splitlines()) == (
        1,
        [
            f"{kind}s/dir.yaml: is a folder, expected a file",
            f"{kind}s/gone.yaml: is a link to what is not there",
            f"{kind}s/loop.yaml: cannot be read: Too many levels of symbolic links",
            f"{kind}s/pipe.yaml: is no regular file",
            f"1 of 5 {kind}s are valid",
        ],
    )
    listed = swamp(kind, "list")
    assert listed.code == 0
    assert [line.split(":")[1].strip() for line in listed.err.splitlines()] == [
        f"{kind}s/{name}.yaml" for name in ("dir", "gone", "loop", "pipe")
    ]
    name = "deploy" if kind == "workflow" else "build"
    assert swamp(kind, "show", name).code == 0


def test_a_name_that_is_near_is_proposed(written: Layout, swamp: Any) -> None:
    assert "no workflow 'deplyo'; did you mean 'deploy'?" in swamp("workflow", "show", "deplyo").err


def test_an_unknown_argument_of_a_model_is_found_when_its_value_is_an_expression(
    written: Layout, swamp: Any
) -> None:
    file = written.models / "command/shell/any.yaml"
    file.write_text(MODEL.replace("run:", 'rnu: "${{ inputs.target }}"\n      run:'))
    result = swamp("model", "validate")
    assert result.out.startswith("models/command/shell/any.yaml:7:7: ")
    assert "unknown argument 'rnu'" in result.out


def test_a_terminal_that_lacks_a_character_ends_no_command(
    repo: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo.workflows / "w.yaml").write_text(f"description: \u00fcber\n{WORKFLOW}")
    shown = io.BytesIO()
    with io.TextIOWrapper(shown, encoding="ascii", write_through=True) as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(("workflow", "list")) == 0
        assert b"\\xfcber" in shown.getvalue()
