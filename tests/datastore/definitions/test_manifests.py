"""Every example that people are told to copy loads, without a warning."""

from pathlib import Path

import pytest

from datastore.definitions import check_workflow, parse_model, parse_workflow, resolve_inputs
from datastore.yaml_loader import load

MANIFESTS = Path(__file__).parents[3] / "manifests"
FILES = sorted(path.relative_to(MANIFESTS).as_posix() for path in MANIFESTS.rglob("*.yaml"))


def of(folder: str) -> list[str]:
    return [file for file in FILES if file.startswith(folder)]


@pytest.mark.parametrize("file", of("workflows/"))
def test_a_workflow_passes_every_check(file: str) -> None:
    document = load((MANIFESTS / file).read_bytes(), file)
    findings = check_workflow(document, file)
    assert [one for one in findings if one.error or one.warning] == []
    assert parse_workflow(document, file).source == document.value


@pytest.mark.parametrize("file", of("models/"))
def test_a_model_loads_and_lies_in_the_folder_of_its_type(file: str) -> None:
    model = parse_model(load((MANIFESTS / file).read_bytes(), file), file)
    assert file == f"models/{model.type}/{model.name}.yaml"


@pytest.mark.parametrize("file", of("vaults/"))
def test_a_vault_has_the_expected_keys(file: str) -> None:
    vault = load((MANIFESTS / file).read_bytes(), file).value
    assert list(vault) == ["id", "name", "type", "config", "createdAt"]
    assert file == f"vaults/{vault['type']}/{vault['name']}.yaml"


def test_the_fan_out_takes_the_inputs_that_its_comment_shows() -> None:
    file = "workflows/fan-out.yaml"
    workflow = parse_workflow(load((MANIFESTS / file).read_bytes(), file), file)
    values = resolve_inputs(workflow, {"hosts": '["web-1","web-2"]'})
    assert values == {"hosts": ["web-1", "web-2"], "depth": "quick"}


def test_every_definition_is_in_the_table_of_the_readme() -> None:
    readme = (MANIFESTS / "README.md").read_text()
    listed = of("workflows/") + of("models/") + of("vaults/")
    assert [file for file in listed if f"]({file})" not in readme] == []
    assert listed
