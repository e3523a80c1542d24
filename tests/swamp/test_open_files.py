"""The limit of open files is raised as far as the machine allows, and never lowered."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from swamp.open_files import may_open, raise_limit


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit; the soft one is 256 meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_the_limit_is_raised_and_never_lowered(hard: int) -> None:
    assert raise_limit(400) == limit() == 400
    assert raise_limit(300) == limit() == 400
    assert raise_limit(hard + 1) == limit() == hard


def test_what_may_not_be_raised_stays(hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(resource, "setrlimit", refuse)
        assert raise_limit(400) == 256
    assert limit() == 256


def test_whether_more_may_be_opened_is_tried_and_leaves_nothing_open() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    for one in taken:
        os.close(one)
    # These numbers are free, and no others below the limit.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, before[1]))
    try:
        found = [may_open(many) for many in (3, 4, 3)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found == [True, False, True]
