"""What belongs to an ended run is kept as bytes, and reads as before."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from datastore.journal import Op
from datastore.kinds import KINDS, LEASES, PENDING, RUNS, STEPS
from datastore.kinds.run import Run, RunSpec, RunStatus, StepSpec, StepStatus
from datastore.record import Kind, Record
from datastore.sqlite_file import to_json
from datastore.store import Store
from swamp.serve import housekeeping
from swamp.serve.housekeeping import Housekeeping

AT = "2026-11-29T12:00:00.000Z"


class NoJournal:
    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Any = None) -> None:
        if on_durable is not None:
            on_durable()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(housekeeping, "EVERY_S", 0.001)
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def run_of(state: str) -> Run:
    spec = RunSpec(workflow="w", workflow_id="i", definition={})
    status = RunStatus.model_validate({"state": state, "started_at": AT})
    return Record(RUNS, "r", "r", AT, spec, status)


def step(name: str) -> Record[Any, Any]:
    spec = StepSpec(run="r", workflow="w", job="j", step=name)
    return Record(STEPS, f"r.j.{name}", name, AT, spec, StepStatus(state="succeeded"))


async def test_finished_records_become_bytes_once_the_index_has_them() -> None:
    store = Store(KINDS.values(), NoJournal())
    index: dict[str, bytes] = {}

    def stored(kind: Kind[Any, Any], names: Iterable[str]) -> dict[str, bytes]:
        return {name: index[name] for name in names if name in index}

    task = asyncio.get_running_loop().create_task(Housekeeping(store, stored).run())
    store.commit([run_of("running"), step("a"), step("b")])
    store.commit([store.get(RUNS, "r").with_status(run_of("succeeded").status)])
    rows = store._tables[STEPS.folder].rows
    before = [store.get(STEPS, name) for name in ("r.j.a", "r.j.b")]
    try:
        for name, record in zip(("r.j.a", "r.j.b"), before, strict=True):
            index[name] = to_json(record.document())
            async with asyncio.timeout(5):
                while not isinstance(rows[name], bytes):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
    finally:
        task.cancel()
    for record in before:
        assert store.get(STEPS, record.name).document() == record.document()
    assert store.names_by(STEPS, "run", "r") == ("r.j.a", "r.j.b")
    assert not store.live(PENDING)
    assert not store.live(LEASES)


async def test_what_is_put_away_is_not_read_again_while_the_rest_is_missing() -> None:
    store = Store(KINDS.values(), NoJournal())
    index: dict[str, bytes] = {}
    asked: list[str] = []

    def stored(kind: Kind[Any, Any], names: Iterable[str]) -> dict[str, bytes]:
        asked.extend(names)
        return {name: index[name] for name in names if name in index}

    a, b = step("a"), step("b")
    index[a.name] = to_json(a.document())
    task = asyncio.get_running_loop().create_task(Housekeeping(store, stored).run())
    store.commit([run_of("running"), a, b])
    store.commit([store.get(RUNS, "r").with_status(run_of("succeeded").status)])
    try:
        async with asyncio.timeout(5):
            while asked.count(b.name) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    finally:
        task.cancel()
    assert asked.count(a.name) == 1
    assert store.unpacked_by(STEPS, "run", "r") == (b.name,)


async def test_a_record_that_lives_or_is_gone_is_left_alone() -> None:
    store = Store(KINDS.values(), NoJournal())
    store.commit([run_of("running")])
    store.compact(RUNS, "r", b"{}")
    store.compact(RUNS, "gone", b"{}")
    assert store.get(RUNS, "r").live
    assert store.find(RUNS, "gone") is None
    assert store.unpacked_count == 1


async def test_records_that_are_not_put_away_are_counted() -> None:
    store = Store(KINDS.values(), NoJournal())
    store.commit([run_of("running"), step("a"), step("b")])
    store.load_finished(STEPS, {"r.j.c": b"{}", "r.j.d": b"{}"})
    assert store.unpacked_count == 3
    store.load_finished(STEPS, {"r.j.c": b"{}"})
    for _ in "12":
        store.compact(STEPS, "r.j.a", b"{}")
    assert store.unpacked_count == 2
    store.commit(removals=[(STEPS, "r.j.a"), (STEPS, "r.j.c"), (STEPS, "none")])
    assert store.unpacked_count == 2
    store.commit(removals=[(STEPS, "r.j.b")])
    assert store.unpacked_count == 1


class Cycle:
    def __init__(self) -> None:
        self.me = self


async def test_frozen_garbage_goes_although_no_record_was_put_away() -> None:
    """Sockets that are cut leave cycles behind; without a run nothing else makes room."""
    old = Cycle()
    gone = weakref.ref(old)
    store = Store(KINDS.values(), NoJournal())
    task = asyncio.get_running_loop().create_task(Housekeeping(store, lambda *_: {}).run())
    newer = []
    try:
        await asyncio.sleep(0)
        assert gc.get_freeze_count()
        del old
        async with asyncio.timeout(10):
            while gone() is not None:
                newer += [Cycle() for _ in range(5_000)]
                await asyncio.sleep(0.002)
    finally:
        task.cancel()


async def test_a_start_does_not_look_again_at_what_it_has_frozen() -> None:
    """With 100,000 records and as many definitions that was 0.2 s before anybody could connect."""
    old = Cycle()
    gone = weakref.ref(old)
    gc.freeze()
    del old
    housekeeping = Housekeeping(Store(KINDS.values(), NoJournal()), lambda *_: {})
    task = asyncio.get_running_loop().create_task(housekeeping.run())
    try:
        await asyncio.sleep(0)
        assert gone() is not None
    finally:
        task.cancel()
        gc.unfreeze()


async def goes_when_much_is_new(gone: weakref.ref[Cycle]) -> bool:
    """Whether frozen garbage is found once there are more new objects than were frozen."""
    kept = [[] for _ in range(2 * gc.get_freeze_count())]  # type: ignore[var-annotated]
    passes = 0
    while gone() is not None and passes < 50:
        passes += 1
        await asyncio.sleep(0.002)
    assert kept
    return gone() is None


@pytest.mark.parametrize("records", [0, 400])
async def test_what_records_are_made_of_is_not_taken_for_garbage(
    monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """Regression: while 20,000 steps began to wait, all was looked at in one pause of 0.4 s."""
    store = Store(KINDS.values(), NoJournal())
    monkeypatch.setattr(housekeeping, "FREEZE_AT", 0)
    monkeypatch.setattr(housekeeping, "GROWN_MOST", 1)
    monkeypatch.setattr(housekeeping, "OF_A_RECORD", 10_000)
    old = Cycle()
    gone = weakref.ref(old)
    task = asyncio.get_running_loop().create_task(Housekeeping(store, lambda *_: {}).run())
    try:
        await asyncio.sleep(0)
        del old
        store.commit([run_of("running"), *(step(str(number)) for number in range(records))])
        assert await goes_when_much_is_new(gone) is (records == 0)
    finally:
        task.cancel()


@pytest.mark.parametrize("defined", [0, 10_000_000])
async def test_what_definitions_are_made_of_is_not_taken_for_garbage(
    monkeypatch: pytest.MonkeyPatch, defined: int
) -> None:
    """Regression: after 20,000 files had come, all was looked at in one pause of half a second."""
    store, now = Store(KINDS.values(), NoJournal()), 0
    monkeypatch.setattr(housekeeping, "FREEZE_AT", 0)
    old = Cycle()
    gone = weakref.ref(old)
    housekeeper = Housekeeping(store, lambda *_: {}, lambda: now)
    task = asyncio.get_running_loop().create_task(housekeeper.run())
    try:
        await asyncio.sleep(0)
        del old
        now = defined
        assert await goes_when_much_is_new(gone) is (defined == 0)
    finally:
        task.cancel()


@pytest.mark.parametrize("work", ["a run", "what comes in", None])
async def test_all_is_looked_at_in_a_quiet_moment(
    monkeypatch: pytest.MonkeyPatch, work: str | None
) -> None:
    """It stops everything: with 1,000 workers connected, for a tenth of a second and more."""
    store = Store(KINDS.values(), NoJournal())
    if work == "a run":
        store.commit([run_of("running")])
    monkeypatch.setattr(housekeeping, "FREEZE_AT", 0)
    monkeypatch.setattr(housekeeping, "GROWN_MOST", 1 << 40)
    monkeypatch.setattr(housekeeping, "QUIET_BELOW", 0 if work == "what comes in" else 1 << 40)
    old = Cycle()
    gone = weakref.ref(old)
    task = asyncio.get_running_loop().create_task(Housekeeping(store, lambda *_: {}).run())
    try:
        await asyncio.sleep(0)
        del old
        assert await goes_when_much_is_new(gone) is (work is None)
    finally:
        task.cancel()
