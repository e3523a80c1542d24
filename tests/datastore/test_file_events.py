from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from datastore import file_events
from datastore.file_events import FileEvents


def events(*folders: Path) -> FileEvents:
    return FileEvents(folders, debounce_ms=20, step_ms=10)


async def test_what_was_named_is_handed_out_in_lots_and_each_path_once() -> None:
    some = events()
    some.add(["a", "b"])
    some.add(["b", "c", "a"])
    assert some.waiting
    assert await some.named(2) == ["a", "b"]
    assert await some.named(2) == ["c"]
    assert not some.waiting


async def test_a_path_that_is_named_again_is_handed_out_again() -> None:
    some = events()
    some.add(["a"])
    assert await some.named(5) == ["a"]
    waiting = asyncio.ensure_future(some.named(5))
    await asyncio.sleep(0)
    assert not waiting.done()
    some.add(["a"])
    assert await waiting == ["a"]


async def test_events_are_taken_while_nobody_asks_for_them(tmp_path: Path) -> None:
    some, stop = events(tmp_path), asyncio.Event()
    following = asyncio.ensure_future(some.follow(stop))
    await asyncio.sleep(0.1)
    for number in range(200):
        (tmp_path / f"{number}.yaml").touch()
    missing = {str(tmp_path / f"{number}.yaml") for number in range(200)}
    while missing:
        missing -= set(await asyncio.wait_for(some.named(50), 10))
    stop.set()
    await asyncio.wait_for(following, 10)


async def test_a_folder_whose_name_is_no_text_is_left_out_and_all_others_are_followed(
    tmp_path: Path,
) -> None:
    """Regression: one such folder turned the events of the whole repository off."""
    bad = tmp_path / os.fsdecode(b"d\xff")
    for folder in (bad, tmp_path / "good"):
        folder.mkdir()
    some, stop, begun = events(tmp_path), asyncio.Event(), asyncio.Event()
    first = asyncio.ensure_future(some.follow(stop, begun.set))
    (bad / "x.yaml").touch()
    os.listdir(bad)
    with pytest.raises((ValueError, RuntimeError)):
        await asyncio.wait_for(first, 10)
    begun.clear()
    following = asyncio.ensure_future(some.follow(stop, begun.set))
    await asyncio.wait_for(begun.wait(), 10)
    paths = (tmp_path / "good" / "a.yaml", tmp_path / "b.yaml")
    for path in paths:
        path.touch()
    wanted = {str(path) for path in paths}
    while wanted:
        wanted -= set(await asyncio.wait_for(some.named(50), 10))
    stop.set()
    await asyncio.wait_for(following, 10)


async def one_by_one(folder: Path) -> FileEvents:
    """Events of a folder with one in it whose name is no text: the others are watched each."""
    bad = folder / os.fsdecode(b"d\xff")
    bad.mkdir()
    some, stop = events(folder), asyncio.Event()
    first = asyncio.ensure_future(some.follow(stop))
    await asyncio.sleep(0.1)
    (bad / "x.yaml").touch()
    with pytest.raises((ValueError, RuntimeError)):
        await asyncio.wait_for(first, 10)
    return some


async def seen_in(some: FileEvents, path: Path) -> None:
    """Return once the path was named."""
    while str(path) not in await asyncio.wait_for(some.named(50), 10):
        pass


@pytest.mark.parametrize("again", [False, True], ids=["new", "removed and made again"])
async def test_folders_that_are_made_later_are_followed_where_each_is_watched(
    tmp_path: Path, again: bool
) -> None:
    """Regression: they had no events; what was in them was found by the rescan."""
    later = tmp_path / "later"
    if again:
        later.mkdir()
    some = await one_by_one(tmp_path)
    stop, begun = asyncio.Event(), asyncio.Event()
    following = asyncio.ensure_future(some.follow(stop, begun.set))
    await asyncio.wait_for(begun.wait(), 10)
    if again:
        later.rmdir()
    (later / "inside").mkdir(parents=True)
    await asyncio.wait_for(following, 10)
    assert not stop.is_set()
    await seen_in(some, later)
    begun.clear()
    following = asyncio.ensure_future(some.follow(stop, begun.set))
    await asyncio.wait_for(begun.wait(), 10)
    (later / "inside" / "a.yaml").touch()
    await seen_in(some, later / "inside" / "a.yaml")
    (later / "b.yaml").touch()
    await seen_in(some, later / "b.yaml")
    assert not following.done()
    stop.set()
    await asyncio.wait_for(following, 10)


async def test_a_folder_that_is_made_between_the_listing_and_the_watch_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = await one_by_one(tmp_path)
    stop, listed = asyncio.Event(), file_events._nameable

    def made_meanwhile(folders: Iterable[Path]) -> tuple[Sequence[Path], bool]:
        found = listed(folders)
        (tmp_path / "later").mkdir(exist_ok=True)
        return found

    monkeypatch.setattr(file_events, "_nameable", made_meanwhile)
    await asyncio.wait_for(some.follow(stop), 10)
    begun = asyncio.Event()
    following = asyncio.ensure_future(some.follow(stop, begun.set))
    await asyncio.wait_for(begun.wait(), 10)
    (tmp_path / "later" / "a.yaml").touch()
    await seen_in(some, tmp_path / "later" / "a.yaml")
    stop.set()
    await asyncio.wait_for(following, 10)


async def test_folders_inside_are_followed_only_where_that_is_asked(tmp_path: Path) -> None:
    """Who asks pays with a look at every file: a start with 200,000 records stood for 0.5 s."""
    inside = tmp_path / "inside"
    inside.mkdir()
    stop = asyncio.Event()
    for below in (True, False):
        some = FileEvents([tmp_path], below=below, debounce_ms=20, step_ms=10)
        following = asyncio.ensure_future(some.follow(stop))
        await asyncio.sleep(0.1)
        (inside / f"{below}.yaml").touch()
        await asyncio.sleep(0.05)
        (tmp_path / f"{below}.yaml").touch()
        seen: set[str] = set()
        while str(tmp_path / f"{below}.yaml") not in seen:
            seen.update(await asyncio.wait_for(some.named(50), 10))
        assert (str(inside / f"{below}.yaml") in seen) is below
        stop.set()
        await asyncio.wait_for(following, 10)
        stop.clear()
