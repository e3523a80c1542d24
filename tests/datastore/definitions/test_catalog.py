"""The catalog finds definitions by the name inside their files, at once and without re-parsing."""

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from file_clock import FileClock, rewrite_unseen

from datastore import yaml_loader
from datastore.definitions import Catalog, definition_file
from datastore.errors import NotFound
from datastore.files import edition_in
from datastore.yaml_loader import MAX_BYTES

ID_A = "fc786c30-fb49-425e-9803-525237cd9c47"
ID_B = "2c786c30-fb49-425e-9803-525237cd9c48"


def workflow(name: str, description: str = "x", id: str | None = None) -> str:
    first = f"id: {id}\n" if id else ""
    return (
        f"{first}name: {name}\ndescription: {description}\njobs: [{{name: j, steps: [{{name: s, "
        "task: {type: model_method, modelIdOrName: m, methodName: execute}}]}]\n"
    )


def model(name: str) -> str:
    return f"type: command/shell\nname: {name}\nmethods: {{execute: {{arguments: {{run: ls}}}}}}\n"


class Repository:
    """A repository on disk, its catalog, and how many files were parsed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FileClock()
        self.catalog = Catalog(root, clock=self.clock)
        self.parsed: list[str] = []

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def settle(self) -> None:
        """Have the stat of every file trusted."""
        with self.clock.settled(self.root):
            self.catalog.scan()
        self.parsed.clear()

    def names(self) -> list[str]:
        return [one.name for one in self.catalog.workflows()]

    def problems(self) -> list[str]:
        return [str(problem) for problem in self.catalog.problems()]


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    repository = Repository(tmp_path)

    def counting(data: bytes, path: str) -> Any:
        repository.parsed.append(path)
        return yaml_loader.load(data, path)

    monkeypatch.setattr(definition_file, "load", counting)
    return repository


def test_names_and_ids_are_found_whatever_the_files_are_called(repo: Repository) -> None:
    repo.write(f"workflows/{ID_B}.yaml", workflow("b"))
    repo.write("workflows/team/x.yaml", workflow("a", id=ID_A))
    repo.write("models/command/shell/y.yaml", model("a"))
    repo.write("workflows/.hidden.yaml", workflow("hidden"))
    repo.write("workflows/.git/x.yaml", workflow("hidden-too"))
    repo.write("workflows/notes.txt", workflow("no"))
    repo.catalog.scan()
    assert repo.names() == ["a", "b"]
    assert repo.catalog.workflow("a") is repo.catalog.workflow(ID_A)
    assert [one.name for one in repo.catalog.models()] == ["a"]
    assert repo.catalog.model("a").type == "command/shell"
    assert repo.problems() == []


def test_a_file_with_another_extension_is_told_and_not_read(repo: Repository) -> None:
    misnamed = repo.write("workflows/team/x.yml", workflow("a"))
    repo.write("models/M.YAML", model("m"))
    repo.catalog.scan()
    assert repo.names() == []
    assert repo.problems() == [
        "models/M.YAML: is not read: its name must be M.yaml",
        "workflows/team/x.yml: is not read: its name must be x.yaml",
    ]
    renamed = misnamed.rename(misnamed.with_suffix(".yaml"))
    repo.catalog.refresh([misnamed, renamed])
    assert (repo.names(), len(repo.problems())) == (["a"], 1)


def test_of_a_file_that_is_too_long_no_more_is_read_than_tells_so(repo: Repository) -> None:
    """Regression: all of it was read, in quadratic time where it grew meanwhile: a log that was
    written into the folder kept the interpreter for minutes."""
    file = repo.write("workflows/log.yaml", workflow("a"))
    os.truncate(file, 1 << 40)
    assert len(definition_file._read(str(file), 10)) == MAX_BYTES + 1, "it has grown since its stat"
    repo.catalog.refresh([file])
    why = f"workflows/log.yaml: is longer than {MAX_BYTES} bytes: make it shorter, or split it"
    assert (repo.names(), repo.problems()) == ([], [why])
    os.truncate(file, len(workflow("a")))
    repo.catalog.refresh([file])
    assert (repo.names(), repo.problems()) == (["a"], [])


def test_a_linked_folder_is_told_and_not_followed(repo: Repository) -> None:
    """Regression: it was passed over without a word, while linked files are read."""
    file = repo.write("elsewhere/x.yaml", workflow("a"))
    folder = repo.write("workflows/team/y.yaml", workflow("b")).parent
    (folder / "file.yaml").symlink_to(file)
    (repo.root / "models").symlink_to(repo.root / "elsewhere")
    link = folder / "dd"
    link.symlink_to(file.parent)
    (folder / "up").symlink_to("..")
    (folder / "self").symlink_to("self")
    (folder / "notes").symlink_to("nowhere")
    (folder / ".git").symlink_to(file.parent)
    repo.catalog.refresh([link])
    assert repo.names() == ["a", "b"]
    why = (
        "is a link to a folder, and those are not followed: move the folder here, or link its files"
    )
    told = [one for one in repo.problems() if one.startswith("workflows/")]
    assert told == [f"workflows/team/dd: {why}", f"workflows/team/up: {why}"]
    link.unlink()
    repo.catalog.refresh([link])
    assert [one for one in repo.problems() if "/dd" in one] == []


def test_a_folder_called_as_a_file_is_told_once_and_until_it_is_gone(repo: Repository) -> None:
    """Regression: it was told twice, and until the next rescan once a file was in its place."""
    repo.write("workflows/team/x.yaml", workflow("a"))
    folder = repo.root / "workflows" / "b.yaml"
    folder.mkdir()
    repo.catalog.refresh([folder])
    assert repo.problems() == ["workflows/b.yaml: is a folder, expected a file"]
    folder.rmdir()
    repo.catalog.refresh([folder])
    assert repo.problems() == []
    folder.mkdir()
    repo.catalog.refresh([folder])
    folder.rmdir()
    repo.write("workflows/b.yaml", workflow("b"))
    repo.catalog.refresh([folder])
    assert (repo.names(), repo.problems()) == (["a", "b"], [])


def test_an_empty_repository_has_nothing_and_no_problem(repo: Repository) -> None:
    repo.catalog.scan()
    assert (repo.names(), repo.problems()) == ([], [])
    with pytest.raises(NotFound, match=r"^no model 'x'; see `swamp model list`$"):
        repo.catalog.fresh("model", "x")


def test_a_scan_parses_only_what_changed(repo: Repository) -> None:
    for name in "abc":
        repo.write(f"workflows/{name}.yaml", workflow(name))
    repo.settle()
    repo.catalog.scan()
    assert repo.parsed == []
    repo.write("workflows/b.yaml", workflow("b", "y"))
    repo.catalog.scan()
    assert repo.parsed == ["workflows/b.yaml"]
    assert repo.catalog.workflow("b").description == "y"


def test_a_touched_file_is_not_parsed_again(repo: Repository) -> None:
    file = repo.write("workflows/a.yaml", workflow("a"))
    repo.settle()
    before = repo.catalog.workflow("a")
    os.utime(file)
    repo.catalog.scan()
    file.chmod(0o600)
    repo.catalog.scan()
    assert repo.parsed == []
    assert repo.catalog.workflow("a") is before


def test_fresh_sees_a_write_of_the_same_size_in_the_same_tick(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = repo.write("workflows/a.yaml", workflow("a", "x"))
    tick = edition_in(file.stat())
    monkeypatch.setattr(definition_file, "edition_in", lambda _: tick)
    repo.catalog.scan()
    repo.write("workflows/a.yaml", workflow("a", "y"))
    assert repo.catalog.fresh("workflow", "a").description == "y"


def test_a_rewrite_in_place_that_sets_the_mtime_back_is_found(repo: Repository) -> None:
    file = repo.write("workflows/a.yaml", workflow("a", "x"))
    repo.settle()
    rewrite_unseen(file, workflow("a", "y"))
    assert repo.catalog.fresh("workflow", "a").description == "y"
    repo.settle()
    rewrite_unseen(file, workflow("a", "z"))
    repo.catalog.refresh([file])
    assert repo.catalog.workflow("a").description == "z"


def test_fresh_sees_an_edit_a_swap_a_new_file_and_a_rename(repo: Repository) -> None:
    repo.write("workflows/a.yaml", workflow("a"))
    repo.settle()
    repo.write("workflows/a.yaml", workflow("a", "edited"))
    assert repo.catalog.fresh("workflow", "a").description == "edited"
    os.replace(repo.write("workflows/tmp", workflow("a", "swaped")), repo.root / "workflows/a.yaml")
    assert repo.catalog.fresh("workflow", "a").description == "swaped"
    repo.write("workflows/deep/er/n.yaml", workflow("n"))
    assert repo.catalog.fresh("workflow", "n").name == "n"
    repo.write("workflows/a.yaml", workflow("z"))
    assert repo.catalog.fresh("workflow", "z").name == "z"
    with pytest.raises(NotFound):
        repo.catalog.fresh("workflow", "a")


def test_fresh_finds_who_takes_over_a_name(repo: Repository) -> None:
    first = repo.write("workflows/a.yaml", workflow("x", "one"))
    repo.write("workflows/b.yaml", workflow("x", "two"))
    repo.settle()
    first.unlink()
    repo.write("workflows/b.yaml", workflow("x", "three"))
    assert repo.catalog.fresh("workflow", "x").description == "three"
    assert repo.problems() == []


def test_fresh_costs_no_parse_while_nothing_changes(repo: Repository) -> None:
    for number in range(20):
        repo.write(f"workflows/{number}.yaml", workflow(f"w{number}"))
    repo.settle()
    unrelated = repo.write("workflows/new.yaml", workflow("new"))
    repo.catalog.fresh("workflow", "w7")
    assert repo.parsed == []
    unrelated.unlink()
    with pytest.raises(NotFound):
        repo.catalog.fresh("workflow", "nobody")
    assert repo.parsed == []


def test_refresh_takes_files_folders_and_foreign_paths(repo: Repository) -> None:
    file = repo.write("workflows/a.yaml", workflow("a"))
    repo.catalog.refresh([file, repo.root / "other.yaml", Path("/elsewhere.yaml")])
    assert repo.names() == ["a"]
    moved = repo.write("workflows/team/b.yaml", workflow("b"))
    repo.catalog.refresh([moved.parent])
    assert repo.names() == ["a", "b"]
    moved.unlink()
    moved.parent.rmdir()
    file.unlink()
    repo.catalog.refresh([moved.parent, file])
    assert repo.names() == []


def test_a_vanished_file_ends_being_found(repo: Repository) -> None:
    file = repo.write("models/a.yaml", model("a"))
    repo.catalog.scan()
    file.unlink()
    repo.catalog.scan()
    with pytest.raises(NotFound):
        repo.catalog.model("a")


def test_a_broken_file_keeps_its_last_good_version_and_tells(repo: Repository) -> None:
    repo.write("workflows/a.yaml", workflow("a", "good"))
    repo.write("workflows/b.yaml", workflow("b"))
    repo.catalog.scan()
    repo.write("workflows/a.yaml", workflow("a", "[bad]"))
    repo.catalog.scan()
    assert repo.catalog.workflow("a").description == "good"
    assert repo.catalog.fresh("workflow", "a").description == "good"
    expected = "'description' of workflow 'a' must be a string, found a list"
    assert repo.problems() == [f"workflows/a.yaml:2:1: {expected}"]
    repo.write("workflows/a.yaml", workflow("a", "mended"))
    repo.catalog.scan()
    assert (repo.catalog.workflow("a").description, repo.problems()) == ("mended", [])


def test_a_broken_file_is_named_to_who_asks_for_what_it_may_define(repo: Repository) -> None:
    repo.write("workflows/x.yaml", workflow("long-c", "[bad]"))
    repo.catalog.scan()
    with pytest.raises(NotFound) as caught:
        repo.catalog.workflow("long-c")
    assert str(caught.value) == (
        "no workflow 'long-c'; a file that may define it has a problem: workflows/x.yaml:2:1: "
        "'description' of workflow 'long-c' must be a string, found a list"
    )
    with pytest.raises(NotFound, match=r"^no workflow 'long'; see `swamp workflow list`$"):
        repo.catalog.workflow("long")


def test_a_miss_names_what_is_near(repo: Repository) -> None:
    for name in ("long-a", "long-b", "other"):
        repo.write(f"workflows/{name}.yaml", workflow(name))
    repo.catalog.scan()
    with pytest.raises(
        NotFound, match=r"^no workflow 'long-c'; did you mean 'long-b' or 'long-a'\?$"
    ):
        repo.catalog.workflow("long-c")


def test_of_two_files_with_one_name_the_first_stays(repo: Repository) -> None:
    first = repo.write("workflows/z.yaml", workflow("a", "first"))
    repo.catalog.scan()
    repo.write("workflows/b.yaml", workflow("a", "second"))
    repo.catalog.scan()
    assert repo.catalog.workflow("a").description == "first"
    assert repo.problems() == [
        "workflows/b.yaml: workflow 'a' is defined in workflows/z.yaml already, which stays in "
        "force: "
        "rename one of them"
    ]
    repo.write("workflows/z.yaml", workflow("a", "edited"))
    repo.catalog.scan()
    assert repo.catalog.workflow("a").description == "edited"
    first.unlink()
    repo.catalog.scan()
    assert (repo.catalog.workflow("a").description, repo.problems()) == ("second", [])


def test_a_copy_with_the_same_id_is_not_in_force(repo: Repository) -> None:
    repo.write("workflows/b.yaml", workflow("b", id=ID_A))
    repo.catalog.scan()
    repo.write("workflows/a.yaml", workflow("a", id=ID_A))
    repo.catalog.scan()
    assert repo.catalog.workflow(ID_A).name == "b"
    expected = (
        "workflows/a.yaml: workflow 'a' has the id of 'b' in workflows/b.yaml, which stays in "
        "force: "
        "give it an id of its own"
    )
    assert repo.problems() == [expected]
    with pytest.raises(NotFound, match="has the id of 'b'"):
        repo.catalog.workflow("a")


def test_an_unreadable_file_or_folder_is_a_problem_of_its_own(
    repo: Repository, permission_bits: Callable[[], AbstractContextManager[None]]
) -> None:
    file = repo.write("workflows/a.yaml", workflow("a"))
    repo.write("workflows/b.yaml", workflow("b"))
    folder = repo.write("models/closed/m.yaml", model("m")).parent
    repo.catalog.scan()
    repo.write("workflows/a.yaml", workflow("a", "unseen"))
    file.chmod(0)
    folder.chmod(0)
    try:
        with permission_bits():
            repo.catalog.scan()
        assert repo.names() == ["a", "b"]
        assert repo.catalog.model("m")
        assert repo.problems() == [
            "models/closed: cannot be listed: Permission denied",
            "models/closed/m.yaml: cannot be read: Permission denied",
            "workflows/a.yaml: cannot be read: Permission denied",
        ]
    finally:
        file.chmod(0o600)
        folder.chmod(0o700)
    repo.catalog.scan()
    assert (repo.catalog.workflow("a").description, repo.problems()) == ("unseen", [])


def test_a_file_that_cannot_be_read_keeps_its_last_good_version(repo: Repository) -> None:
    file = repo.write("workflows/a.yaml", workflow("a"))
    repo.catalog.scan()
    file.unlink()
    file.symlink_to(file)
    repo.catalog.scan()
    assert repo.catalog.fresh("workflow", "a").name == "a"
    (problem,) = repo.problems()
    assert problem.startswith("workflows/a.yaml: cannot be read: Too many levels")


@pytest.mark.parametrize("ends_broken", [False, True])
def test_a_slow_reader_never_puts_an_older_version_back(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, ends_broken: bool
) -> None:
    repo.write("workflows/a.yaml", workflow("a", "zero"))
    repo.settle()
    parse, has_read, may_go_on = definition_file._parsed, threading.Event(), threading.Event()

    def slow(data: bytes, *rest: Any) -> Any:
        if b"one" in data and not has_read.is_set():
            has_read.set()
            assert may_go_on.wait(10)
        return parse(data, *rest)

    monkeypatch.setattr(definition_file, "_parsed", slow)
    one = workflow("a", "[one]" if ends_broken else "one")
    repo.write("workflows/a.yaml", one)
    scanning = threading.Thread(target=repo.catalog.scan)
    scanning.start()
    assert has_read.wait(10)
    assert repo.catalog.workflow("a").description == "zero"
    repo.write("workflows/a.yaml", workflow("a", "two"))
    assert repo.catalog.fresh("workflow", "a").description == "two"
    if ends_broken:
        repo.write("workflows/a.yaml", one)
    may_go_on.set()
    scanning.join(10)
    assert repo.catalog.workflow("a").description == "two"
    assert len(repo.problems()) == ends_broken


def test_a_version_that_is_refused_is_told_of_the_one_in_force(repo: Repository) -> None:
    catalog = repo.catalog
    repo.write("workflows/a.yaml", workflow("a"))
    catalog.scan()
    assert catalog.newer_refused("workflow", "a") is None
    repo.write("workflows/a.yaml", workflow("a") + "jops: 1\n")
    catalog.scan()
    assert catalog.workflow("a").name == "a"
    refused = catalog.newer_refused("workflow", "a")
    assert refused is not None
    assert str(refused).startswith("workflows/a.yaml:4:1: unknown key 'jops'")
    assert catalog.newer_refused("workflow", "b") is None
