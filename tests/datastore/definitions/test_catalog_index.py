"""A start parses no definition that the index knows with this very stat, and all others."""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from file_clock import FileClock, rewrite_unseen

from datastore import yaml_loader
from datastore.definition_index import DefinitionIndex
from datastore.definitions import Catalog, catalog, definition_file
from datastore.errors import InvalidFile
from datastore.files import edition_in
from datastore.index import Index

MODEL = "type: t\nname: {name}\ndescription: {text}\n"
WORKFLOW = (
    "name: {name}\njobs: [{{name: j, steps: [{{name: s, "
    "task: {{type: model_method, modelIdOrName: m, methodName: execute}}}}]}}]\n"
)


class Repository:
    """Definitions and an index; a catalog is opened anew for each start."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FileClock()
        self.parsed: list[str] = []
        self.index = self.open()

    def open(self) -> DefinitionIndex:
        self.real = Index(self.root / "index.db", ("workers",))
        return DefinitionIndex(self.real, threading.Lock())

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def start(self, *, settled: bool = True) -> Catalog:
        """A start of a server, which keeps what it parsed; `parsed` is what it parsed."""
        self.parsed.clear()
        found = Catalog(self.root, clock=self.clock, index=self.index)
        with self.clock.settled(self.root) if settled else nullcontext():
            found.load()
        found.keep()
        return found


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    repository = Repository(tmp_path)

    def counting(data: bytes, path: str) -> Any:
        repository.parsed.append(path)
        return yaml_loader.load(data, path)

    monkeypatch.setattr(definition_file, "load", counting)
    repository.write("models/a.yaml", MODEL.format(name="a", text="é 12:30"))
    repository.write("models/deep/b.yaml", MODEL.format(name="b", text="b"))
    repository.write("workflows/w.yaml", WORKFLOW.format(name="w"))
    yield repository
    repository.real.close()


def test_a_second_start_parses_nothing_and_has_the_same(repo: Repository) -> None:
    first = repo.start()
    assert len(repo.parsed) == 3
    repo.real.close()
    repo.index = repo.open()
    second = repo.start()
    assert repo.parsed == []
    assert [one.source for one in second.models()] == [one.source for one in first.models()]
    assert second.workflow("w") == first.workflow("w")
    assert second.model("b") is second.model(second.model("b").id)
    second.scan()
    assert second.fresh("model", "a").description == "é 12:30"
    assert repo.parsed == []


def test_what_changed_came_or_went_meanwhile_is_as_in_the_files(repo: Repository) -> None:
    repo.start()
    repo.write("models/a.yaml", MODEL.format(name="a2", text="edited"))
    repo.write("models/new.yaml", MODEL.format(name="new", text="x"))
    (repo.root / "models/deep/b.yaml").unlink()
    second = repo.start()
    assert sorted(repo.parsed) == ["models/a.yaml", "models/new.yaml"]
    assert [one.name for one in second.models()] == ["a2", "new"]
    third = repo.start()
    assert repo.parsed == []
    assert [one.name for one in third.models()] == ["a2", "new"]
    assert {row.path for row in repo.index.rows()} == {
        "models/a.yaml",
        "models/new.yaml",
        "workflows/w.yaml",
    }


def test_a_stat_that_is_too_fresh_is_not_kept(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = repo.write("models/a.yaml", MODEL.format(name="a", text="x"))
    tick = edition_in(file.stat())
    for module in (catalog, definition_file):
        monkeypatch.setattr(module, "edition_in", lambda _: tick)
    repo.start(settled=False)
    file.write_text(MODEL.format(name="a", text="y"))
    assert repo.start(settled=False).model("a").description == "y"


def test_a_start_finds_a_rewrite_in_place_that_set_the_mtime_back(repo: Repository) -> None:
    repo.start()
    rewrite_unseen(repo.root / "models/deep/b.yaml", MODEL.format(name="b", text="c"))
    repo.real.close()
    repo.index = repo.open()
    assert repo.start().model("b").description == "c"
    assert repo.parsed == ["models/deep/b.yaml"]
    repo.start()
    assert repo.parsed == [], "and the index knows it as it is"


def test_broken_files_are_never_kept_and_parsed_at_each_start(repo: Repository) -> None:
    repo.start()
    repo.write("models/a.yaml", "type: t\nname: [a]\n")
    for _ in range(2):
        broken = repo.start()
        assert repo.parsed == ["models/a.yaml"]
        assert [problem.path for problem in broken.problems()] == ["models/a.yaml"]
        assert [one.name for one in broken.models()] == ["b"], "as without an index"


def test_of_two_files_with_one_name_a_start_decides_as_without_an_index(repo: Repository) -> None:
    repo.write("models/deep/0.yaml", MODEL.format(name="a", text="second"))
    repo.start()
    second = repo.start()
    assert second.model("a").description == "é 12:30"
    assert [problem.path for problem in second.problems()] == ["models/deep/0.yaml"]
    (repo.root / "models/a.yaml").unlink()
    second.scan()
    assert (second.model("a").description, second.problems()) == ("second", [])
    assert repo.parsed == []


def test_another_version_of_the_code_parses_all_anew(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.start()
    monkeypatch.setattr(catalog, "MEANING", "other")
    monkeypatch.setattr(definition_file, "MEANING", "other")
    repo.start()
    assert len(repo.parsed) == 3
    repo.start()
    assert repo.parsed == []


def test_a_lost_or_broken_index_costs_parsing_and_nothing_else(repo: Repository) -> None:
    repo.start()
    repo.real.close()
    assert len(repo.start().models()) == 2, "it cannot be read, nor written"
    assert len(repo.parsed) == 3
    (repo.root / "index.db").write_bytes(b"no database at all" * 1000)
    repo.index = repo.open()
    repo.start()
    assert len(repo.parsed) == 3
    repo.start()
    assert repo.parsed == []


def test_a_broken_row_is_told_and_breaks_no_other(repo: Repository) -> None:
    repo.start()
    repo.real.close()
    with sqlite3.connect(repo.root / "index.db") as db:
        db.execute("UPDATE definitions SET document = '{' WHERE name = 'a'")
    db.close()
    repo.index = repo.open()
    second = repo.start()
    with pytest.raises(InvalidFile, match=r"^models/a.yaml: what .swamp/index.db has of it is"):
        second.model("a")
    assert second.model("b").description == "b"
    repo.write("models/a.yaml", MODEL.format(name="a", text="mended"))
    assert second.fresh("model", "a").description == "mended"


def test_the_rows_move_along_when_the_index_is_removed(repo: Repository) -> None:
    repo.start()
    (repo.root / "index.db").unlink()
    repo.write("models/a.yaml", MODEL.format(name="a", text="edited"))
    repo.start()
    repo.real.close()
    repo.index = repo.open()
    repo.start()
    assert repo.parsed == []


def test_nothing_is_written_while_nothing_changes(repo: Repository) -> None:
    found = repo.start()
    before = repo.real._db.total_changes
    found.scan()
    found.keep()
    assert repo.real._db.total_changes == before


def test_many_definitions_are_put_away_once_the_index_has_them(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: 20,000 files took 170 MB for as long as the server lived."""
    found = repo.start()
    few = found.objects
    assert found.workflow("w") is found.workflow("w"), "so few stay as they were parsed"
    monkeypatch.setattr(catalog, "PARTS_MOST", 20)
    for number in range(30):
        repo.write(f"workflows/more/{number}.yaml", WORKFLOW.format(name=f"w{number}"))
    with repo.clock.settled(repo.root):
        found.scan()
    before = {name: found.workflow(name) for name in ("w", "w7")}
    source = before["w7"].source
    seen, refs = found.objects, {name: weakref.ref(one) for name, one in before.items()}
    before.clear()
    found.keep()
    assert refs["w7"]() is None
    assert refs["w"]() is not None
    assert few < found.objects < seen
    assert found.workflow("w7").source == source
    assert repo.parsed[-1] == "workflows/more/9.yaml", "not read anew"
    repo.write("workflows/more/7.yaml", WORKFLOW.format(name="w7") + "# changed\n")
    with repo.clock.settled(repo.root):
        found.scan()
    assert found.workflow("w7").source == source


def test_what_the_index_refused_is_put_away_another_time(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it stayed in memory as it was parsed for as long as the server lived."""

    def refuse(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    found = repo.start()
    monkeypatch.setattr(catalog, "PARTS_MOST", 20)
    for number in range(30):
        repo.write(f"workflows/more/{number}.yaml", WORKFLOW.format(name=f"w{number}"))
    with repo.clock.settled(repo.root):
        found.scan()
    parsed = weakref.ref(found.workflow("w7"))
    with monkeypatch.context() as full:
        full.setattr(repo.real, "update_definitions", refuse)
        found.keep()
    assert parsed() is not None
    found.keep()
    assert parsed() is None
