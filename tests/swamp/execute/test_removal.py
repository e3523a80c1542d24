"""What steps leave is removed, whatever it is, and nothing else is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from swamp.execute.removal import DEEP, remove_tree
from swamp.execute.scratch import take_scratch


def deep(folder: Path, depth: int, mode: int = 0o755) -> None:
    """Folders in one another, with a file in each; no path is that long."""
    opened = [os.open(folder, os.O_RDONLY)]
    for _ in range(depth):
        os.close(os.open("full", os.O_CREAT | os.O_WRONLY, dir_fd=opened[-1]))
        os.mkdir("d", dir_fd=opened[-1])
        opened.append(os.open("d", os.O_RDONLY, dir_fd=opened[-1]))
        if len(opened) > 2:
            one = opened.pop(0)
            os.fchmod(one, mode)
            os.close(one)
    for one in opened:
        os.close(one)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """A folder from outside, with a file, mounted there; skips where nothing can be mounted."""
    at: list[Path] = []

    def mounted(target: Path) -> Path:
        outside = tmp_path / f"outside-{len(at)}"
        (outside / "folder").mkdir(parents=True)
        (outside / "folder" / "file").write_text("of somebody else")
        command = ["mount", "--bind", str(outside), str(target)]
        if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting needs root and the right to mount")
        at.append(target)
        outside.chmod(0o555)
        return outside

    yield mounted
    for target in at:
        subprocess.run(["umount", "-l", str(target)], capture_output=True, check=False)


@pytest.mark.parametrize("depth", [DEEP - 1, DEEP, DEEP + 1, 3000])
def test_folders_of_any_depth_go(tmp_path: Path, depth: int) -> None:
    """Regression: some thousand folders in one another failed the step that left them, ended the
    process that had run it, and no other one could start there."""
    folder = tmp_path / "folder"
    folder.mkdir()
    deep(folder, depth)
    remove_tree(folder)
    assert not folder.exists()


def test_deep_folders_that_are_closed_go(
    tmp_path: Path, permission_bits: Callable[[], AbstractContextManager[None]]
) -> None:
    with permission_bits():
        folder = tmp_path / "folder"
        folder.mkdir()
        deep(folder, 3 * DEEP, 0o000)
        remove_tree(folder)
    assert not folder.exists()


def test_a_process_starts_whatever_a_dead_one_has_left(tmp_path: Path) -> None:
    left = tmp_path / f"scratch-{'0' * 32}"
    left.mkdir()
    deep(left, 1500)
    own = take_scratch(tmp_path)
    assert not left.exists()
    own.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_is_mounted_inside_is_nobodys_to_remove(
    tmp_path: Path, mount: Callable[[Path], Path]
) -> None:
    """Regression: of a step that mounted a folder and failed, all that is in that was removed."""
    folder = tmp_path / "folder"
    (folder / "data" / "below").mkdir(parents=True)
    (folder / "file").write_text("left")
    (folder / "data" / "file").write_text("left")
    outside = mount(folder / "data" / "below")
    for _ in range(2):
        remove_tree(folder)
    assert (outside / "folder" / "file").read_text() == "of somebody else"
    assert outside.stat().st_mode & 0o777 == 0o555
    assert [one.name for one in folder.iterdir()] == ["data"]
    assert [one.name for one in (folder / "data").iterdir()] == ["below"]
    remove_tree(folder / "data" / "below")
    assert (outside / "folder" / "file").exists()


def test_a_link_goes_and_not_what_it_leads_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o555)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "nowhere").symlink_to("there-is-none")
    remove_tree(folder)
    assert not folder.exists()
    (tmp_path / "link").symlink_to(outside)
    remove_tree(tmp_path / "link")
    assert outside.stat().st_mode & 0o777 == 0o555
