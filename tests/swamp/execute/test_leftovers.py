"""A folder serves the next execution exactly if nothing was done to it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from swamp.execute import leftovers, processes
from swamp.execute.leftovers import Leftovers, Scratch
from swamp.execute.processes import MARK_VARIABLE, Birth


def there(scratch: Scratch) -> bool:
    return os.path.exists(scratch.path)


def sleeper(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env={MARK_VARIABLE: mark})


def nothing(folder: Path) -> None:
    assert os.listdir(folder) == []


def a_file(folder: Path) -> None:
    (folder / "left").write_text("x")


def a_folder(folder: Path) -> None:
    (folder / "left").mkdir()


def a_file_for_a_moment(folder: Path) -> None:
    a_file(folder)
    os.unlink(folder / "left")


def a_mode(folder: Path) -> None:
    folder.chmod(0o777)


def all_of_it(folder: Path) -> None:
    folder.rmdir()


@pytest.mark.parametrize(
    ("done", "again"),
    [
        (nothing, True),
        (a_file, False),
        (a_folder, False),
        (a_file_for_a_moment, False),
        (a_mode, False),
        (all_of_it, False),
    ],
)
async def test_a_folder_is_used_again_if_it_is_as_it_was_made(
    tmp_path: Path, done: Callable[[Path], None], *, again: bool
) -> None:
    left = Leftovers(tmp_path)
    scratch = await left.new_scratch()
    if not again:
        # A change within the same tick of the file system's clock shows in nothing but the listing.
        next_tick(tmp_path)
    done(Path(scratch.path))
    await left.clear("family.1", scratch, None)
    assert there(scratch) is again
    following = await left.new_scratch()
    assert (following == scratch) is again
    assert os.listdir(following.path) == []


def next_tick(folder: Path) -> None:
    before = os.lstat(folder).st_ctime_ns
    while os.lstat(folder).st_ctime_ns == before:
        folder.chmod(0o700)


async def test_a_file_that_shows_in_no_time_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_look", lambda path: (0, 0, 0, 0))
    left = Leftovers(tmp_path)
    scratch = await left.new_scratch()
    a_file(Path(scratch.path))
    await left.clear("family.1", scratch, None)
    assert not there(scratch)


@pytest.mark.parametrize("mode", [0o555, 0o000])
async def test_a_folder_that_a_step_closed_goes_as_well(
    tmp_path: Path, permission_bits: Callable[[], AbstractContextManager[None]], mode: int
) -> None:
    """Regression: what a step left in folders without write permission, as Go does with its
    modules, stayed there: step by step, until the disk was full."""
    left = Leftovers(tmp_path)
    with permission_bits():
        scratch = await left.new_scratch()
        for name in ("one", "one/two", "three"):
            os.mkdir(f"{scratch.path}/{name}")
            a_file(Path(scratch.path, name))
        os.symlink(tmp_path, f"{scratch.path}/elsewhere")
        kept = os.lstat(tmp_path).st_mode
        for name in ("one/two", "one", "three", ""):
            os.chmod(f"{scratch.path}/{name}", mode)
        await left.clear("family.1", scratch, None)
    assert not there(scratch)
    assert os.lstat(tmp_path).st_mode == kept


async def test_an_old_folder_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_USED_FOR_S", 0.0)
    left = Leftovers(tmp_path)
    scratch = await left.new_scratch()
    await left.clear("family.1", scratch, None)
    assert await left.new_scratch() != scratch


async def test_a_process_that_left_its_group_ends_whoever_else_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Leftovers(tmp_path)
    children = [sleeper("f.0"), sleeper("f.1")]
    monkeypatch.setattr(processes, "_newest_pid", lambda: max(one.pid for one in children))
    first = Birth.of(min(one.pid for one in children) - 1)
    try:
        left.born(first)
        left.born(Birth.of(children[0].pid))
        await left.clear("f.1", await left.new_scratch(), first)
        assert children[1].wait(5) == -9
        assert children[0].poll() is None
    finally:
        for one in children:
            one.kill()
            one.wait()
