"""Who looks at many files rests between them; who looks at one does not. Counted, never timed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from record_samples import worker

from datastore.courtesy import (
    REST_PER_WORK,
    SORTED_AT_ONCE,
    WORK_S,
    Courtesy,
    Ended,
    Pause,
    Time,
    each,
    in_order,
    let_go,
)
from datastore.definitions import Catalog
from datastore.desired import DesiredTree
from datastore.index import Index
from datastore.journal import Put
from datastore.kinds import KINDS
from datastore.layout import Layout, create_folders
from datastore.observed import ObservedWriter, RescanReport


class Turned:
    """Clocks that tests turn, and the rests that were taken."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.worked_s = 0.0
        self.rests: list[float] = []
        self.time = Time(lambda: self.now_s, lambda: self.worked_s, self._rest)

    def work(self, s: float) -> None:
        self.now_s += s
        self.worked_s += s

    def _rest(self, s: float) -> None:
        self.now_s += s
        self.rests.append(s)


def test_less_than_a_slice_of_work_takes_no_rest() -> None:
    turned = Turned()
    pause = Courtesy(turned.time)
    pause()
    for _ in range(9):
        turned.work(WORK_S / 10)
        pause()
    assert turned.rests == []


def test_each_slice_of_work_is_followed_by_a_rest_of_twice_its_length() -> None:
    turned = Turned()
    pause = Courtesy(turned.time)
    pause()
    for _ in range(1_000):
        turned.work(WORK_S * 0.3)
        pause()
    assert len(turned.rests) == 250
    assert sum(turned.rests) == pytest.approx(REST_PER_WORK * turned.worked_s)


def test_who_waits_for_the_interpreter_does_not_rest_for_that() -> None:
    turned = Turned()
    pause = Courtesy(turned.time)
    pause()
    for _ in range(10):
        turned.now_s += 1.0
        pause()
    assert turned.rests == []


def test_a_job_that_nobody_waits_for_ends_at_its_next_pause() -> None:
    pause = Courtesy(Turned().time)
    pause()
    pause.end()
    with pytest.raises(Ended):
        pause()


def test_sorting_many_pauses_and_is_as_sorting_at_once() -> None:
    pauses: list[int] = []
    for count in (0, 1, SORTED_AT_ONCE, 5 * SORTED_AT_ONCE + 1):
        items = [(number * 7919 % 101, number) for number in range(count)]
        pauses.clear()
        found = in_order(iter(items), lambda item: item[0], lambda: pauses.append(1))
        assert found == sorted(items, key=lambda item: item[0]), "equal ones keep their order"
        assert len(pauses) >= min(1, count) + (count if count > SORTED_AT_ONCE else 0)


def test_each_item_is_followed_by_a_pause() -> None:
    pauses: list[int] = []
    at = [(item, len(pauses)) for item in each("abc", lambda: pauses.append(1))]
    assert at == [("a", 0), ("b", 1), ("c", 2)]
    assert len(pauses) == 3


def test_what_is_let_go_goes_one_by_one() -> None:
    items = dict.fromkeys(range(5))
    left: list[int] = []
    let_go(items, lambda: left.append(len(items)))
    assert left == [4, 3, 2, 1, 0]


MODEL = "name: m{number}\ntype: t\n"
DESIRED = "spec: {{note: '{number}'}}\n"


class Repository:
    """Files of each sort, and the pauses taken between them."""

    def __init__(self, path: Path) -> None:
        self.layout = Layout(path)
        create_folders(self.layout)
        self.catalog = Catalog(path)
        self.desired = DesiredTree(self.layout)
        self.pauses = 0

    def pause(self) -> None:
        # Whoever rests with a lock would hold up a look at one file for as long.
        assert not self.catalog._lock.locked()
        assert not self.desired._lock.locked()
        self.pauses += 1

    def write(self, count: int) -> tuple[list[Path], list[Path]]:
        models = [self.layout.models / f"{number}.yaml" for number in range(count)]
        desired = [self.layout.desired("workers") / f"w{number}.yaml" for number in range(count)]
        for number in range(count):
            models[number].write_text(MODEL.format(number=number))
            desired[number].write_text(DESIRED.format(number=number))
        return models, desired

    def counted(self, look: Callable[[Pause], object]) -> int:
        before = self.pauses
        look(self.pause)
        return self.pauses - before


def test_every_look_at_many_files_pauses_after_each_of_them(tmp_path: Path) -> None:
    repo = Repository(tmp_path)
    models, desired = repo.write(120)
    listing, looking = 2 * 120, 120
    assert repo.counted(repo.catalog.scan) >= listing + looking
    assert repo.counted(repo.catalog.scan) >= listing, "nothing changed, and all are listed"
    assert repo.counted(lambda pause: repo.catalog.refresh(models, pause)) >= 120 + looking
    assert repo.counted(repo.desired.changed) >= 120
    assert repo.counted(lambda pause: repo.desired.refresh(desired, pause)) >= 120


def test_rescans_of_observed_pause_too(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    create_folders(layout)
    index = Index(layout.index, KINDS)
    writer = ObservedWriter(layout, KINDS.values(), index)
    writer.follow(1, [Put(worker(f"w{number}")) for number in range(30)])
    writer.catch_up()
    folder = layout.observed("workers")
    pauses: list[int] = []

    def pause() -> None:
        assert not writer.files_lock.locked()
        pauses.append(1)

    assert writer.rescan(pause) == RescanReport()
    assert len(pauses) >= 30
    assert writer.look_at(sorted(map(str, folder.iterdir())), pause) == RescanReport()
    assert len(pauses) >= 90
    shutil.rmtree(folder)
    assert len(writer.rescan(pause).restored) == 30
    index.close()
