import json
from pathlib import Path

import pytest
import typer

from datastore.errors import InvalidFile
from swamp.cli.inputs import read_inputs


def test_options_are_text_nested_by_dots_or_json_by_suffix() -> None:
    options = ["a=1", "b.c=x=y", "b.d=", 'hosts:json=["h1", 2]', "b.e:json=null"]
    assert read_inputs(options, None) == {
        "a": "1", "b": {"c": "x=y", "d": "", "e": None}, "hosts": ["h1", 2]
    }  # fmt: skip


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_options_go_over_the_file(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"inputs.{suffix}"
    file.write_text(json.dumps({"a": 1, "b": {"c": 2}}))
    assert read_inputs(["b.c=x", "d=y"], file) == {"a": 1, "b": {"c": "x"}, "d": "y"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["a"], "expected KEY=VALUE"),
        (["=x"], "expected KEY=VALUE"),
        (["a..b=x"], "between dots is empty"),
        ([".a=x"], "between dots is empty"),
        (["a=x", "a.b=y"], "'a' has a value already"),
        (["a:json={"], "not JSON"),
    ],
)
def test_what_is_no_input_is_wrong_usage(options: list[str], said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        read_inputs(options, None)


def test_a_broken_file_is_named_with_the_position(tmp_path: Path) -> None:
    file = tmp_path / "inputs.yaml"
    file.write_text("a: 1\na: 2\n")
    with pytest.raises(InvalidFile, match=r"inputs\.yaml:2:1: "):
        read_inputs([], file)
