"""What one edit costs does not depend on how many definitions there are. Counted, never timed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from file_clock import FileClock

from datastore import yaml_loader
from datastore.definitions import Catalog, definition_file
from datastore.definitions import catalog as catalog_module
from datastore.definitions.definition_file import DefinitionFile, oddity
from datastore.definitions.view import View
from datastore.errors import NotFound
from datastore.files import edition_in

MODEL = "type: t\nname: m{number}\ndescription: {text}\n"


def work_of_one_edit(root: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What a repository of so many definitions counts: an edit, and a look-up that finds it."""
    folder = root / "models"
    folder.mkdir(parents=True)
    for number in range(count):
        file = folder / f"{number:08x}.yaml"
        file.write_text(MODEL.format(number=number, text="old"))
    clock = FileClock()
    catalog = Catalog(root, clock=clock)
    with clock.settled(root):
        catalog.scan()
    edited = folder / "00000007.yaml"
    edited.write_text(MODEL.format(number="-edited", text="new"))
    found: Counter[str] = Counter()

    def load(data: bytes, path: str) -> Any:
        found["parses"] += 1
        return yaml_loader.load(data, path)

    def stat(status: os.stat_result) -> Any:
        found["stats"] += 1
        return edition_in(status)

    def odd(path: str) -> str | None:
        found["stats"] += 1
        return oddity(path)

    update, concerned = View.update, View._concerned

    def counted_update(self: View, changes: Mapping[str, DefinitionFile | None]) -> None:
        found["updates of the view"] += 1
        update(self, changes)

    def counted_concerned(self: View, changes: Mapping[str, DefinitionFile | None]) -> set[str]:
        files = concerned(self, changes)
        found["files that the view looked at"] += len(files)
        return files

    with monkeypatch.context() as counting:
        counting.setattr(definition_file, "load", load)
        counting.setattr(definition_file, "edition_in", stat)
        counting.setattr(catalog_module, "edition_in", stat)
        counting.setattr(definition_file, "oddity", odd)
        counting.setattr(View, "update", counted_update)
        counting.setattr(View, "_concerned", counted_concerned)
        catalog.refresh([edited, folder / "4913", folder / "sedAbCdEf"])
        assert catalog.fresh("model", "m-edited").description == "new"
    with pytest.raises(NotFound):
        catalog.model("m7")
    return found


def test_an_edit_costs_the_same_among_2000_definitions_as_among_20(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = work_of_one_edit(tmp_path / "few", 20, monkeypatch)
    many = work_of_one_edit(tmp_path / "many", 2_000, monkeypatch)
    assert few == many
    assert few["parses"] == 1
    assert few["updates of the view"] == few["files that the view looked at"] == 1
