from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from file_clock import FileClock, rewrite_unseen

from datastore import files
from datastore.desired import UNREADABLE, DesiredTree
from datastore.kinds import LEASES, PENDING, RUNS, TOKENS, WORKERS
from datastore.layout import Layout, create_folders


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    create_folders(made)
    return made


@pytest.fixture
def clock() -> FileClock:
    return FileClock()


@pytest.fixture
def tree(layout: Layout, clock: FileClock) -> DesiredTree:
    return DesiredTree(layout, clock)


def save(layout: Layout, kind: str, text: str, name: str = "w1") -> Path:
    path = layout.desired(kind) / f"{name}.yaml"
    path.write_text(text)
    return path


def asked(tree: DesiredTree, kind: object = WORKERS, name: str = "w1") -> dict[str, object] | None:
    file = tree.current(kind, name)  # type: ignore[arg-type]
    return None if file is None else file.spec


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (WORKERS, "spec: {schedulable: false, note: gone}", {"schedulable": False, "note": "gone"}),
        (WORKERS, "spec: {}", {}),
        (WORKERS, "spec: {note: }", {}),
        (TOKENS, "spec: {maxEnrollments: unlimited}", {"max_enrollments": "unlimited"}),
        (TOKENS, "spec: {expiresAt: 2026-12-01}", {"expires_at": "2026-12-01"}),
        (PENDING, "spec: {priority: 1, queueTimeout: 90}", {"priority": 1, "queue_timeout": 90}),
        (PENDING, "spec: {queueTimeout: 0.5}", {"queue_timeout": 0.5}),
        (LEASES, "spec: {cancel: true}", {"cancel": True}),
        (RUNS, "spec: {cancel: true, cancelReason: no}", {"cancel": True, "cancel_reason": "no"}),
    ],
)
def test_only_the_fields_that_the_file_sets_are_asked_for(
    layout: Layout, tree: DesiredTree, kind: object, text: str, expected: dict[str, object]
) -> None:
    save(layout, kind.folder, text)  # type: ignore[attr-defined]
    assert [change.name for change in tree.scan()] == ["w1"]
    assert asked(tree, kind) == expected
    assert tree.problems() == []


@pytest.mark.parametrize(
    ("folder", "text", "told"),
    [
        ("workers", "schedulable: false", "1:1: unknown key 'schedulable'"),
        ("workers", "kind: Worker", "needs 'spec:'"),
        ("workers", "spec:\n  schedulabel: false", "2:3: unknown field 'schedulabel'"),
        ("workers", "spec:\n  schedulable: no", "2:3: spec.schedulable must be true or false"),
        ("workers", "metadata: {name: w2}\nspec: {}", "1:12: the file name is the record's name"),
        ("workers", "kind: Lease\nspec: {}", "kind must be Worker in this folder"),
        ("workers", "<<<<<<< HEAD\nspec: {}\n=======\n", "merge"),
        ("workers", "", "is empty"),
        ("tokens", "spec: {expiresAt: soon}", "expected a time like"),
        ("tokens", "spec: {maxEnrollments: 0}", "expected a number from 1"),
        ("pending", "spec:\n  priority: 6", "2:3: spec.priority must be from 1 (most urgent) to 5"),
        ("pauses", "spec:\n  labels: {a: 3}", "2:12: spec.labels.a must be a string, found 3"),
        ("pauses", "spec: {labels: {'': x}}", "must name each label: found one without a name"),
        (
            "pending",
            "spec: {queueTimeout: 5m}",
            "spec.queueTimeout must be a plain number",
        ),
        ("steps", "spec: {cancel: true}", "unknown field 'cancel' for Step"),
    ],
)
def test_a_file_that_cannot_be_right_is_told_with_its_position(
    layout: Layout, tree: DesiredTree, folder: str, text: str, told: str
) -> None:
    path = save(layout, folder, text)
    tree.scan()
    (problem,) = tree.problems()
    assert str(problem).startswith(f"datastore/desired/{folder}/w1.yaml") and told in str(problem)
    assert path.read_text() == text


def test_a_broken_file_leaves_the_last_good_version_in_force(
    layout: Layout, tree: DesiredTree
) -> None:
    save(layout, "workers", "spec: {note: good}")
    tree.scan()
    save(layout, "workers", "spec: {note: [}")
    assert tree.scan() == []
    assert asked(tree) == {"note": "good"} and len(tree.problems()) == 1
    save(layout, "workers", "spec: {note: better}")
    assert len(tree.scan()) == 1
    assert asked(tree) == {"note": "better"} and tree.problems() == []


def test_a_file_that_was_never_good_asks_for_nothing_and_is_not_missing(
    layout: Layout, tree: DesiredTree
) -> None:
    path = save(layout, "workers", "spec: [")
    tree.scan()
    assert tree.current(WORKERS, "w1") is UNREADABLE
    path.unlink()
    assert len(tree.scan()) == 1
    assert tree.current(WORKERS, "w1") is None and tree.problems() == []


def test_a_file_that_is_too_long_is_told_and_not_read(layout: Layout, tree: DesiredTree) -> None:
    path = save(layout, "workers", "spec: {note: good}")
    tree.scan()
    os.truncate(path, 1 << 40)
    assert tree.scan() == []
    assert asked(tree) == {"note": "good"}
    assert ["is longer than 1048576 bytes" in str(one) for one in tree.problems()] == [True]


def test_a_renamed_file_is_gone_here_and_new_there(layout: Layout, tree: DesiredTree) -> None:
    path = save(layout, "workers", "spec: {note: x}")
    tree.scan()
    path.rename(path.with_name("w2.yaml"))
    assert sorted(change.name for change in tree.scan()) == ["w1", "w2"]
    assert (asked(tree), asked(tree, name="w2")) == (None, {"note": "x"})


def test_a_touched_file_is_no_change(layout: Layout, tree: DesiredTree) -> None:
    path = save(layout, "workers", "spec: {note: x}")
    tree.scan()
    os.utime(path)
    assert tree.scan() == []


def test_a_second_save_with_the_same_stat_is_found(
    layout: Layout, tree: DesiredTree, clock: FileClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of a file system ticks: two saves within a tick differ in nothing but bytes."""
    path = save(layout, "workers", "spec: {note: x}")
    tick = files.edition_in(path.stat())
    monkeypatch.setattr(files, "edition_in", lambda _: tick)
    tree.scan()
    path.write_text("spec: {note: y}")
    tree.scan()
    assert asked(tree) == {"note": "y"}
    with clock.settled(layout.root):
        tree.scan()
    assert tree.changed() == [], "a file that has settled is told by its stat alone"


def test_a_rewrite_in_place_that_sets_the_mtime_back_is_found(
    layout: Layout, tree: DesiredTree, clock: FileClock
) -> None:
    path = save(layout, "workers", "spec: {note: x}")
    with clock.settled(layout.root):
        tree.scan()
    rewrite_unseen(path, "spec: {note: y}")
    assert tree.changed() == [path]
    assert [change.name for change in tree.refresh([path])] == ["w1"]
    assert asked(tree) == {"note": "y"}


def test_a_file_that_cannot_be_read_for_a_while(
    layout: Layout, tree: DesiredTree, permission_bits: Callable[[], AbstractContextManager[None]]
) -> None:
    path = save(layout, "workers", "spec: {note: x}")
    tree.scan()
    path.chmod(0)
    save(layout, "workers", "spec: {note: y}", name="w2")
    with permission_bits():
        tree.scan()
    (problem,) = tree.problems()
    assert "cannot be read: Permission denied" in str(problem)
    assert asked(tree) == {"note": "x"} and asked(tree, name="w2") == {"note": "y"}
    path.chmod(0o600)
    tree.scan()
    assert tree.problems() == []


def test_other_files_in_the_folder_are_none(layout: Layout, tree: DesiredTree) -> None:
    folder = layout.desired("workers")
    for name in (".w1.yaml.swp", ".w1.yaml", "w1.yaml~", ".w1.yml", "w1.yml~", "4913", "README.md"):
        (folder / name).write_text("spec: {note: x}")
    assert tree.scan() == tree.refresh(folder.iterdir()) == [] and tree.problems() == []


def test_what_lies_there_and_is_not_read_is_told_until_it_is_gone(
    layout: Layout, tree: DesiredTree
) -> None:
    folder = layout.desired("workers")
    for path in ("workers/b.yml", "workers/b.yaml", "workers/c.YAML", "w1.yaml", "notes.md"):
        layout.desired(path).write_text("spec: {note: x}")
    (folder / "a.yml").write_text("spec: {note: x}")
    (folder / "link.yaml").symlink_to(folder / "b.yaml")
    (folder / "more").mkdir()
    (layout.desired("worker")).mkdir()
    (layout.desired("queue")).mkdir()
    assert [change.name for change in tree.scan()] == ["b"]
    told = {problem.path.removeprefix("datastore/desired/"): problem for problem in tree.problems()}
    expected = {
        "queue": "kinds are workers, tokens",
        "w1.yaml": "move it into the folder of its kind",
        "worker": "did you mean 'workers'?",
        "workers/a.yml": "rename it to a.yaml",
        "workers/b.yml": "b.yaml beside it is: keep one of the two",
        "workers/c.YAML": "rename it to c.yaml",
        "workers/link.yaml": "is a link",
        "workers/more": "is a folder",
    }
    assert list(told) == list(expected)
    for path, words in expected.items():
        assert words in told[path].problem
    assert tree.scan() == []
    assert [problem.path for problem in tree.problems()] == [one.path for one in told.values()]

    (folder / "a.yml").rename(folder / "a.yaml")
    (folder / "link.yaml").unlink()
    (folder / "link.yaml").write_text("spec: {}")
    changed = tree.refresh([folder / "a.yml", folder / "a.yaml", folder / "link.yaml"])
    assert [change.name for change in changed] == ["a", "link"]
    left = {problem.path.removeprefix("datastore/desired/") for problem in tree.problems()}
    assert left == expected.keys() - {"workers/a.yml", "workers/link.yaml"}
    # A link in place of a file: what the file asked for last stays in force, and that is told.
    (folder / "a.yaml").unlink()
    (folder / "a.yaml").symlink_to(folder / "b.yaml")
    tree.refresh([folder / "a.yaml"])
    assert asked(tree, name="a") is None
    assert any(problem.path.endswith("workers/a.yaml") for problem in tree.problems())


@pytest.mark.parametrize("folder", ["", "workers"])
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("loop", "Too many levels of symbolic links"),
        ("n" * 300, "File name too long"),
        ("w1.yaml/x", "Not a directory"),
    ],
)
def test_a_link_that_nobody_can_follow_is_one_problem(
    layout: Layout, tree: DesiredTree, folder: str, target: str, words: str
) -> None:
    (layout.desired(folder) / "w1.yaml").write_text("spec: {note: x}")
    save(layout, "tokens", "spec: {note: x}", name="t1")
    link = layout.desired(folder) / "loop"
    link.symlink_to(target)
    assert [change.name for change in tree.scan() if change.kind is TOKENS] == ["t1"]
    told = [problem for problem in tree.problems() if problem.path.endswith("/loop")]
    assert len(told) == 1
    assert "is a link" in told[0].problem
    assert folder or words in told[0].problem
    link.unlink()
    tree.refresh([link])
    assert not any(problem.path.endswith("/loop") for problem in tree.problems())


@pytest.mark.parametrize("target", ["loop.yaml", "n" * 300])
def test_such_a_link_in_the_place_of_a_file_too(
    layout: Layout, tree: DesiredTree, target: str
) -> None:
    link = layout.desired("workers") / "loop.yaml"
    link.symlink_to(target)
    assert tree.refresh([link, Path(f"{link}/below.yaml")]) == [] == tree.scan()
    assert [problem.path for problem in tree.problems()] == ["datastore/desired/workers/loop.yaml"]


def test_a_folder_that_cannot_be_listed_hides_nothing_of_the_others(
    layout: Layout,
    tree: DesiredTree,
    permission_bits: Callable[[], AbstractContextManager[None]],
) -> None:
    path = save(layout, "workers", "spec: {note: x}")
    tree.scan()
    path.parent.chmod(0)
    save(layout, "tokens", "spec: {note: x}", name="t1")
    try:
        with permission_bits():
            assert [change.name for change in tree.scan()] == ["t1"]
            assert tree.refresh([path]) == []
    finally:
        path.parent.chmod(0o755)
    assert asked(tree) == {"note": "x"}, "what it asked for stays in force"
    told = {problem.path: problem.problem for problem in tree.problems()}
    assert "cannot be listed: Permission denied" in told["datastore/desired/workers"]
    tree.scan()
    assert tree.problems() == [] and asked(tree) == {"note": "x"}


def test_a_kind_whose_folder_is_none_is_told(layout: Layout, tree: DesiredTree) -> None:
    shutil.rmtree(layout.desired("workers"))
    layout.desired("workers").symlink_to("workers")
    tree.scan()
    assert [problem.path for problem in tree.problems()] == ["datastore/desired/workers"]
    assert "is no folder" in tree.problems()[0].problem


def test_names_that_differ_in_case_are_two_records(layout: Layout, tree: DesiredTree) -> None:
    save(layout, "workers", "spec: {note: lower}")
    save(layout, "workers", "spec: {note: upper}", name="W1")
    tree.scan()
    assert (asked(tree), asked(tree, name="W1")) == ({"note": "lower"}, {"note": "upper"})
    assert tree.problems() == []
