"""Files are whole at every instant, own writes are known by their stat, no save is ever lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from datastore import files


def left_over(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")]


@pytest.fixture(params=["exchange", "rename"])
def either_platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the exchange of Linux, and as on a system that has none."""
    if request.param == "rename":
        monkeypatch.setattr(files, "_renameat2", None)


@pytest.mark.usefixtures("either_platform")
def test_a_write_is_known_by_the_stat_it_answered(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    for data in (b"one", b"twotwo", b""):
        stat = files.write(path, data)
        assert path.read_bytes() == data
        assert files.stat_of(path) == stat
    assert left_over(tmp_path) == []


@pytest.mark.usefixtures("either_platform")
def test_a_save_after_a_write_has_another_stat(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    stat = files.write(path, b"one")
    path.write_bytes(b"two")
    assert files.stat_of(path) != stat


@pytest.mark.usefixtures("either_platform")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_mode_bits_stay(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"one")
    path.chmod(mode)
    files.write(path, b"two")
    assert path.stat().st_mode & 0o7777 == mode
    assert files.swap_if_unchanged(path, b"three", b"two")
    assert path.stat().st_mode & 0o7777 == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_server_run_by_root_leaves_a_persons_file_theirs(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"one")
    os.chown(path, 1234, 1234)
    assert files.swap_if_unchanged(path, b"two", b"one")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1234)


@pytest.mark.usefixtures("either_platform")
def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "a.yaml"
    folder.mkdir()
    with pytest.raises(OSError):
        files.write(folder, b"one")
    with pytest.raises(FileNotFoundError):
        files.write(tmp_path / "gone" / "a.yaml", b"one")
    assert folder.is_dir()
    assert left_over(tmp_path) == []


@pytest.mark.usefixtures("either_platform")
def test_errors_name_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    there = tmp_path / "folder"
    there.mkdir()
    for path in (tmp_path / "gone" / "a.yaml", there):
        with pytest.raises(OSError) as refused:
            files.write(path, b"x")
        assert (refused.value.filename, refused.value.filename2) == (str(path), None)
    with pytest.raises(FileNotFoundError) as missing:
        files.write_once(tmp_path / "gone" / "a.yaml", b"x")
    assert missing.value.filename == str(tmp_path / "gone" / "a.yaml")


def test_leftovers_of_a_process_with_the_same_pid_are_in_nobodys_way(tmp_path: Path) -> None:
    ahead = next(files._numbers) + 1
    for number in range(ahead, ahead + 3):
        (tmp_path / f".{os.getpid()}-{number}.tmp").write_bytes(b"old")
    files.write(tmp_path / "a.yaml", b"new")
    assert (tmp_path / "a.yaml").read_bytes() == b"new"
    assert len(left_over(tmp_path)) == 3


def test_readers_see_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    whole = {bytes([letter]) * 5000 for letter in b"ab"}
    files.write(path, b"a" * 5000)
    done = threading.Event()

    def write() -> None:
        for turn in range(500):
            files.write(path, (b"a", b"b")[turn % 2] * 5000)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert path.read_bytes() in whole
    writer.join()


def test_write_once_never_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    assert files.write_once(path, b"one")
    assert not files.write_once(path, b"two")
    assert path.read_bytes() == b"one"
    assert left_over(tmp_path) == []


def test_of_many_writers_at_once_exactly_one_is_first(tmp_path: Path) -> None:
    path, start, won = tmp_path / "a.yaml", threading.Barrier(8), []

    def write(number: int) -> None:
        start.wait()
        if files.write_once(path, b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes()] == [b"%d" % number for number in won]


@pytest.mark.usefixtures("either_platform")
def test_swap_if_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"one")
    assert files.swap_if_unchanged(path, b"two", b"one")
    assert path.read_bytes() == b"two"
    assert not files.swap_if_unchanged(path, b"three", b"one")
    assert path.read_bytes() == b"two"
    path.unlink()
    assert not files.swap_if_unchanged(path, b"three", b"two")
    assert os.listdir(tmp_path) == []


def replace(path: Path, data: bytes) -> None:
    beside = path.with_suffix(".saving")
    beside.write_bytes(data)
    os.replace(beside, path)


def save_in_place(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def interrupt(monkeypatch: pytest.MonkeyPatch, acts: list[Callable[[], object]]) -> None:
    """Have one act happen just before each of the next exchanges."""
    exchange = files._renameat2
    assert exchange is not None

    def interrupted(*arguments: object) -> int:
        if acts:
            acts.pop(0)()
        return exchange(*arguments)

    monkeypatch.setattr(files, "_renameat2", interrupted)


@pytest.mark.parametrize("save", [replace, save_in_place])
@pytest.mark.parametrize("saves", [1, 2, 3, 4])
def test_saves_between_the_exchanges_of_one_swap_are_put_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    save: Callable[[Path, bytes], None],
    saves: int,
) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"read")
    acts = [lambda n=n: save(path, b"save %d" % n) for n in range(saves)]
    interrupt(monkeypatch, acts)

    assert not files.swap_if_unchanged(path, b"ours", b"read")
    assert path.read_bytes() == b"save %d" % (saves - 1)
    assert os.listdir(tmp_path) == ["a.yaml"]


def test_a_file_removed_during_the_undo_stays_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"read")
    interrupt(monkeypatch, [lambda: replace(path, b"save"), path.unlink])

    assert not files.swap_if_unchanged(path, b"ours", b"read")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("save", [replace, save_in_place])
def test_a_save_at_the_same_instant_is_never_lost(
    tmp_path: Path, save: Callable[[Path, bytes], None]
) -> None:
    path = tmp_path / "a.yaml"
    for turn in range(300):
        path.write_bytes(b"read %d" % turn)
        start = threading.Barrier(2)

        def person(turn: int = turn, start: threading.Barrier = start) -> None:
            start.wait()
            save(path, b"save %d" % turn)

        editor = threading.Thread(target=person)
        editor.start()
        start.wait()
        files.swap_if_unchanged(path, b"ours %d" % turn, b"read %d" % turn)
        editor.join()
        assert path.read_bytes() == b"save %d" % turn
    assert os.listdir(tmp_path) == ["a.yaml"]


def test_remove_minds_no_absence(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"one")
    files.remove(path)
    files.remove(path)
    assert os.listdir(tmp_path) == []


def test_scan_lists_regular_yaml_files(tmp_path: Path) -> None:
    stats = {name: files.write(tmp_path / name, name.encode()) for name in ("a.yaml", "b.yaml")}
    for name in (".c.yaml", "d.yml", "e.yaml~", ".f.yaml.swp"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "g.yaml").mkdir()
    (tmp_path / "h.yaml").symlink_to(tmp_path / "a.yaml")

    hidden: list[str] = []
    assert files.scan(tmp_path, hidden=hidden) == stats
    assert sorted(hidden) == [".c.yaml", ".f.yaml.swp"]
    assert files.scan(tmp_path / "gone") == {}
    assert files.stat_of(tmp_path / "g.yaml") is None
    assert files.stat_of(tmp_path / "h.yaml") is None
    assert files.stat_of(tmp_path / "gone.yaml") is None


def test_a_gitignore_that_is_there_stays(tmp_path: Path) -> None:
    folder = tmp_path / "y"
    folder.mkdir()
    files.ensure_ignored(folder, "*\n")
    files.ensure_ignored(folder, "other\n")
    assert (folder / ".gitignore").read_text() == "*\n"
    assert os.listdir(folder) == [".gitignore"]


@pytest.mark.parametrize("with_syncfs", [True, False])
def test_sync_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_syncfs: bool
) -> None:
    if not with_syncfs:
        monkeypatch.setattr(files, "_syncfs", None)
    files.sync_file_system(tmp_path)
    if with_syncfs:
        with pytest.raises(FileNotFoundError):
            files.sync_file_system(tmp_path / "gone")


def test_a_file_is_removed_only_as_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "w1.yaml"
    path.write_bytes(b"two")
    assert not files.remove_if_unchanged(path, b"one")
    assert path.read_bytes() == b"two"
    assert files.remove_if_unchanged(path, b"two")
    assert not files.remove_if_unchanged(path, b"two")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_as_it_should_be_is_not_touched(tmp_path: Path) -> None:
    """Regression: an idle server wrote sixteen temporary files at each rescan."""
    folder = tmp_path / "kind"
    folder.mkdir()
    files.ensure_ignored(folder, "*\n")
    os.utime(folder, ns=(1, 1))
    files.ensure_ignored(folder, "other\n")
    assert folder.stat().st_mtime_ns == 1
    assert (folder / ".gitignore").read_text() == "*\n"
