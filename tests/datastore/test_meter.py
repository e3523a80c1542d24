from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from record_samples import worker

from datastore.journal import Put
from datastore.meter import About, Counter, Histogram
from datastore.sqlite_journal import SqliteJournal


def test_a_counter_adds_up_by_labels() -> None:
    counter = Counter(About("c", "", ("outcome",)), known=[("done",), ("failed",)])
    counter.add("done")
    counter.add("done", by=2)
    counter.add("else")
    assert counter.values() == {("done",): 3, ("failed",): 0, ("else",): 1}
    plain = Counter(About("c", ""))
    assert plain.values() == {(): 0}
    plain.add()
    assert plain.values() == {(): 1}


def test_a_value_on_a_bound_is_below_it() -> None:
    histogram = Histogram(About("h", ""), bounds=(1.0, 5.0))
    for value in (0.0, 1.0, 1.1, 5.0, 5.1, 100.0):
        histogram.observe(value)
    series = histogram.series()[()]
    assert series.counts == [2, 2, 2]
    assert series.sum == pytest.approx(112.2)


def test_each_set_of_labels_has_a_series() -> None:
    histogram = Histogram(About("h", "", ("lookup",)), bounds=(1.0,))
    assert histogram.series() == {}
    histogram.observe(0.5, "memory")
    histogram.observe(2.0, "miss")
    assert {labels: one.counts for labels, one in histogram.series().items()} == {
        ("memory",): [1, 0],
        ("miss",): [0, 1],
    }


# -- the journal ---------------------------------------------------------------------------------


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[SqliteJournal]:
    journal = SqliteJournal(tmp_path / "journal.db")
    yield journal
    await asyncio.to_thread(journal.stop)
    journal.close()


async def test_the_journal_measures_what_it_does(journal: SqliteJournal) -> None:
    """Three commits that wait when it starts are one transaction, told to each of them."""
    told = []
    last = asyncio.Event()
    for name in ("a", "b", "c"):
        commit = (Put(worker(name)), Put(worker(name)))
        journal.append(commit, lambda: told.append(journal.measures.acknowledged))
    journal.append((Put(worker("d")),), last.set)
    journal.start(asyncio.get_running_loop(), lambda first, ops: None)
    await last.wait()
    measures = journal.measures
    assert told[0] is not None
    assert set(told) == {told[0]}
    assert told[0].began_s <= told[0].ended_s
    assert sum(measures.wait.series()[()].counts) == 4
    assert sum(measures.write.series()[()].counts) == 1
    assert measures.records.series()[()].sum == 7

    # The transaction that is told is the one that held the commit, not the newest.
    later = asyncio.Event()
    journal.append((Put(worker("e")),), later.set)
    await later.wait()
    assert measures.acknowledged is not None
    assert measures.acknowledged.began_s >= told[0].ended_s
