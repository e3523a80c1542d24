"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import Repo, opened
from proxy import Proxy
from small_disk import FILES, on_a_small_disk, on_small_blocks


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repo]:
    """A fresh repository; its processes end with the test."""
    with opened(tmp_path) as made:
        yield made


@pytest.fixture
def proxy(repo: Repo) -> Iterator[Proxy]:
    """A way to the server of the repository that can be cut."""
    made = Proxy(repo.port)
    yield made
    made.close()


@pytest.fixture
def small(repo: Repo) -> Iterator[Repo]:
    """A repository on a disk of its own that is soon full."""
    with on_a_small_disk(repo) as made:
        yield made


@pytest.fixture
def blocks(repo: Repo) -> Iterator[Repo]:
    """A repository on a disk of its own that is soon full, and whose blocks are of 1 KB."""
    with on_small_blocks(repo) as made:
        yield made


@pytest.fixture
def of_few_files(repo: Repo) -> Iterator[Repo]:
    """A repository on a disk of its own that has room, but soon no file more."""
    with on_a_small_disk(repo, f"size=200m,nr_inodes={FILES}") as made:
        yield made
