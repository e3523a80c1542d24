"""A small disk of a test's own, and how to fill it."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from harness import Repo

SIZE_MB, BLOCKS_MB = 24, 48
FILES = 200


def mounted(target: Path, *arguments: str) -> bool:
    if os.geteuid() != 0:
        return False
    done = subprocess.run(
        ["mount", *arguments, str(target)], capture_output=True, check=False, text=True
    )
    refused = ("permission denied", "not permitted", "superuser", "loop device")
    assert not done.returncode or any(word in done.stderr.lower() for word in refused), done.stderr
    return done.returncode == 0


def unmount(target: Path) -> None:
    subprocess.run(["umount", "-l", str(target)], capture_output=True, check=False)


@contextmanager
def on_a_small_disk(repo: Repo, most: str = f"size={SIZE_MB}m") -> Iterator[Repo]:
    """The repository, begun anew on a disk that is soon full; skips where none can be mounted."""
    if not mounted(repo.path, "-t", "tmpfs", "-o", most, "none"):
        pytest.skip("mounting a small disk needs root and the right to mount")
    yield from _begun_anew(repo)


@contextmanager
def on_small_blocks(repo: Repo) -> Iterator[Repo]:
    """As `on_a_small_disk`, with what mkfs.ext4 chooses for small disks: blocks of 1 KB."""
    mount_small_blocks(repo.base / "blocks.img", repo.path)
    yield from _begun_anew(repo)


def mount_small_blocks(image: Path, target: Path) -> None:
    """A small ext4 of blocks of 1 KB in the file `image`; skips where none can be mounted."""
    make = shutil.which("mkfs.ext4")
    if make is None:
        pytest.skip("there is no mkfs.ext4")
    image.touch()
    os.truncate(image, BLOCKS_MB << 20)
    subprocess.run([make, "-q", "-F", "-b", "1024", str(image)], check=True)
    if not mounted(target, "-o", "loop", str(image)):
        pytest.skip("mounting an image needs root, the right to mount and a loop device")


def _begun_anew(repo: Repo) -> Iterator[Repo]:
    repo.swamp("init")
    yield repo
    repo.close()
    unmount(repo.path)


def fill(repo: Repo) -> Path:
    """Take every byte that is left on the repository's disk."""
    return fill_folder(repo.path)


def fill_folder(folder: Path) -> Path:
    """Take every byte that is left on the disk of the folder."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            while True:
                try:
                    if file.write(b"x" * size) < size:
                        break
                except OSError:
                    break
    return ballast


def take_all_files(repo: Repo) -> Path:
    """Leave no file to be made on the repository's disk, though there is room in those it has."""
    ballast = repo.path / "ballast"
    ballast.mkdir()
    with suppress(OSError):
        for number in itertools.count():
            (ballast / str(number)).touch()
    return ballast
