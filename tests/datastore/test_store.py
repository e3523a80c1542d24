from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from record_samples import lease, run, seen, token, worker

from datastore.desired import DesiredFile
from datastore.errors import AlreadyExists, Conflict, InvalidTransition, NotFound
from datastore.journal import Op, Put, Remove, Story
from datastore.kinds import KINDS, LEASES, RUNS, TOKENS, WORKERS
from datastore.sqlite_file import to_json
from datastore.store import Store


class MemoryJournal:
    """A journal that is durable when the test says so."""

    def __init__(self) -> None:
        self.commits: list[tuple[Op, ...]] = []
        self.trouble: str | None = None
        self._waiting: list[Callable[[], None] | None] = []

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        self.commits.append(ops)
        self._waiting.append(on_durable)

    def sync(self, commits: int = 1_000) -> None:
        for _ in range(min(commits, len(self._waiting))):
            told = self._waiting.pop(0)
            if told is not None:
                told()


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
def store(journal: MemoryJournal) -> Store:
    return Store(KINDS.values(), journal)


def test_commit_shows_at_once_and_goes_to_the_journal(store: Store, journal: MemoryJournal) -> None:
    store.commit([worker("a")])
    found = store.get(WORKERS, "a")
    assert found.spec == worker("a").spec and found.revision > 0
    assert journal.commits == [(Put(found),)]


def test_missing_record_is_none_or_not_found(store: Store) -> None:
    assert store.find(WORKERS, "a") is None
    with pytest.raises(NotFound, match="no Worker named 'a'"):
        store.get(WORKERS, "a")


def test_stale_record_is_a_conflict(store: Store) -> None:
    store.commit([worker("a")])
    stale = store.get(WORKERS, "a")
    store.commit([seen(stale, "second")])
    with pytest.raises(Conflict, match="Worker 'a' changed since it was read"):
        store.commit([seen(stale, "third")])
    assert store.get(WORKERS, "a").status == seen(stale, "second").status


def test_record_removed_since_it_was_read_is_a_conflict(store: Store) -> None:
    store.commit([worker("a")])
    stale = store.get(WORKERS, "a")
    store.commit(removals=[(WORKERS, "a")])
    with pytest.raises(Conflict, match="removed meanwhile"):
        store.commit([seen(stale, "later")])


def test_new_record_of_a_taken_name_is_refused(store: Store) -> None:
    store.commit([worker("a")])
    with pytest.raises(AlreadyExists):
        store.commit([worker("a")])


def test_refused_commit_changes_nothing_at_all(store: Store, journal: MemoryJournal) -> None:
    store.commit([worker("a")])
    woken: list[str] = []
    store.watch(WORKERS, woken.append)
    with pytest.raises(AlreadyExists):
        store.commit([worker("b"), worker("a")], removals=[(WORKERS, "a")])
    assert store.find(WORKERS, "b") is None and store.find(WORKERS, "a") is not None
    assert len(journal.commits) == 1 and woken == []


def test_one_commit_holds_puts_removals_and_a_story(store: Store, journal: MemoryJournal) -> None:
    store.commit([worker("a")])
    story = Story("wf", "r1", "a: 1\n")
    store.commit([worker("b")], [(WORKERS, "a"), (WORKERS, "never")], story)
    assert journal.commits[1] == (Put(store.get(WORKERS, "b")), Remove(WORKERS, "a"), story)


def test_commit_of_nothing_is_no_commit(store: Store, journal: MemoryJournal) -> None:
    store.commit(removals=[(WORKERS, "never")])
    assert journal.commits == []


def test_status_only_says_that_the_spec_is_the_old_one(
    store: Store, journal: MemoryJournal
) -> None:
    store.commit([worker("a")])
    store.commit([seen(store.get(WORKERS, "a"), "later")])
    store.commit([store.get(WORKERS, "a").with_spec(note="spec")])
    flags = [op.status_only for (op,) in journal.commits if isinstance(op, Put)]
    assert flags == [False, True, False]


@pytest.mark.parametrize("finished", ["completed", "failed", "refused", "expired"])
def test_finished_record_never_changes(store: Store, finished: str) -> None:
    store.load(lease("r.j.s.1", state=finished))
    record = store.get(LEASES, "r.j.s.1")
    for change in (record.with_spec(cancel=True), record.with_status(lease().status)):
        with pytest.raises(InvalidTransition, match=f"is {finished} and cannot change"):
            store.commit([change])  # type: ignore[list-item]


def test_finished_record_loaded_as_bytes_never_changes_either(store: Store) -> None:
    store.load_finished(TOKENS, {"t": to_json(token("t", state="revoked").document())})
    with pytest.raises(InvalidTransition, match="EnrollmentToken 't' is revoked"):
        store.commit([store.get(TOKENS, "t").with_spec(revoked=False)])


def test_move_that_the_kind_does_not_know_is_refused(store: Store) -> None:
    store.commit([lease("r.j.s.1")])
    status = lease(state="completed").status
    assert status is not None
    with pytest.raises(InvalidTransition, match="bound -> completed is not a move"):
        store.commit([store.get(LEASES, "r.j.s.1").with_status(status)])


def test_live_index_follows_changes_and_forgets_the_finished(store: Store) -> None:
    store.commit([lease("r.j.a.1", on="w1"), lease("r.j.b.1", on="w1"), lease("r.j.c.1", on="w2")])
    assert store.names_by(LEASES, "worker", "w1") == ("r.j.a.1", "r.j.b.1")
    ended = lease(state="failed").status
    assert ended is not None
    store.commit([store.get(LEASES, "r.j.a.1").with_status(ended)])
    assert [found.name for found in store.by(LEASES, "worker", "w1")] == ["r.j.b.1"]
    store.commit(removals=[(LEASES, "r.j.b.1")])
    assert store.count_by(LEASES, "worker", "w1") == 0
    assert store.count_by(LEASES, "worker", "w2") == 1


def test_name_index_finds_finished_records_too(store: Store) -> None:
    store.load_finished(LEASES, {"r.j.a.1": to_json(lease("r.j.a.1", state="failed").document())})
    store.commit([lease("r.j.b.1"), lease("other.j.a.1")])
    assert [found.name for found in store.by(LEASES, "run", "r")] == ["r.j.a.1", "r.j.b.1"]
    store.commit(removals=[(LEASES, "r.j.a.1")])
    assert store.names_by(LEASES, "run", "r") == ("r.j.b.1",)


def test_whether_a_record_is_there_is_known_without_reading_it(store: Store) -> None:
    store.load_finished(TOKENS, {"t": b"not read"})
    store.commit([token("live")])
    assert [store.has(TOKENS, name) for name in ("t", "live", "none")] == [True, True, False]


def test_live_and_list_and_count(store: Store) -> None:
    store.load_finished(RUNS, {"r1": to_json(run("r1", state="failed").document())})
    store.commit([run("r2")])
    assert [found.name for found in store.live(RUNS)] == ["r2"]
    assert [found.name for found in store.list(RUNS)] == ["r1", "r2"]
    assert store.count(RUNS) == 2


def test_watchers_are_told_names_after_the_change_until_they_leave(store: Store) -> None:
    told: list[tuple[str, bool]] = []
    leave = store.watch(
        WORKERS, lambda name: told.append((name, store.find(WORKERS, name) is None))
    )
    store.commit([worker("a"), token("t")])
    store.commit(removals=[(WORKERS, "a")])
    leave()
    store.commit([worker("b")])
    assert told == [("a", False), ("a", True)]


def test_desired_file_is_kept_and_wakes_the_watchers(store: Store) -> None:
    told: list[str] = []
    store.watch(WORKERS, told.append)
    file = DesiredFile({"schedulable": False}, "digest")
    store.set_desired(WORKERS, "a", file)
    assert store.desired(WORKERS, "a") == file
    store.set_desired(WORKERS, "a", None)
    assert store.desired(WORKERS, "a") is None
    assert told == ["a", "a"]


async def test_barrier_returns_only_when_all_that_shows_is_durable(
    store: Store, journal: MemoryJournal
) -> None:
    await store.barrier()
    store.commit([worker("a")])
    store.commit([worker("b")])
    waiting = asyncio.ensure_future(store.barrier())
    await asyncio.sleep(0)
    journal.sync(1)
    await asyncio.sleep(0)
    assert not waiting.done()
    store.commit([worker("c")])
    journal.sync(1)
    await asyncio.wait_for(waiting, 1)


def test_actions_after_a_barrier_run_in_order_and_each_in_its_time(
    store: Store, journal: MemoryJournal
) -> None:
    done: list[str] = []
    store.after_barrier(lambda: done.append("nothing to wait for"))
    store.commit([worker("a")])
    store.after_barrier(lambda: done.append("a1"))
    store.after_barrier(lambda: done.append("a2"))
    store.commit([worker("b")])
    store.after_barrier(lambda: done.append("b"))
    assert done == ["nothing to wait for"]
    journal.sync(1)
    assert done == ["nothing to wait for", "a1", "a2"]
    journal.sync(1)
    assert done[-1] == "b"


async def test_cancelled_barrier_does_not_disturb_the_others(
    store: Store, journal: MemoryJournal
) -> None:
    store.commit([worker("a")])
    first, second = (asyncio.ensure_future(store.barrier()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    journal.sync()
    await asyncio.wait_for(second, 1)


def test_trouble_is_the_journals(store: Store, journal: MemoryJournal) -> None:
    journal.trouble = "disk full"
    assert store.trouble == "disk full"


def test_delivery_of_wakes_can_be_taken_over(journal: MemoryJournal) -> None:
    late: list[Callable[[], None]] = []
    store = Store(
        KINDS.values(), journal, deliver=lambda wake, name: late.append(lambda: wake(name))
    )
    told: list[str] = []
    store.watch(WORKERS, told.append)
    store.commit([worker("a")])
    assert told == []
    late[0]()
    assert told == ["a"]


def test_a_listing_is_of_its_moment_whatever_is_committed_later(store: Store) -> None:
    store.load_finished(RUNS, {"old": to_json(run("old", "succeeded").document())})
    store.commit([run("a"), run("b")])
    every, some = store.list(RUNS), store.list(RUNS, ["old", "b", "nobody"])
    before = [store.get(RUNS, name) for name in ("old", "a", "b")]
    changed = store.get(RUNS, "b").with_spec(cancel=True)
    store.commit([changed, run("c")], [(RUNS, "old"), (RUNS, "a")])
    assert [len(every), len(some)] == [3, 2]
    assert [list(every), list(some)] == [before, [before[0], before[2]]]
    assert list(every) == before, "it may be gone through again"
    assert [one.name for one in store.list(RUNS)] == ["b", "c"]
