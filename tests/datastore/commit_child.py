"""A process that commits without end, to be killed; and the model of what it commits.

`main` imports everything once and then forks a committer per line of its input, so that two
hundred of them start in no time. The commits of a committer follow from a seed and the state it
starts in, so whoever knows both knows what must be on disk after the first N commits.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from record_samples import worker

import datastore.checkpoint
from datastore.engine import open_store
from datastore.journal import Story
from datastore.kinds import WORKERS, Worker
from datastore.layout import Layout
from datastore.record import Record
from datastore.store import Store

State = dict[str, tuple[str | None, str, str]]
"""Of each worker: the note of its spec, its state, and the mark of the commit that wrote it."""
NAMES = [f"w{number}" for number in range(24)]


def state_of(records: list[Worker]) -> State:
    """The state that the records show."""
    return {
        r.name: (r.spec.note, r.status.state, r.status.last_seen_at)
        for r in records
        if r.status is not None
    }


def commits(state: State, seed: int) -> Iterator[State]:
    """The state after each commit: some change one record, some many, some remove."""
    rng = random.Random(seed)
    number = 0
    while True:
        number += 1
        state = dict(state)
        for name in rng.sample(NAMES, rng.choice((1, 1, 1, 2, 5, 9))):
            mark = f"{seed}/{number}"
            note, connection, _ = state.get(name, (None, "", ""))
            if name not in state:
                state[name] = (f"born {mark} {'x' * rng.randrange(3000)}", "connected", mark)
            elif rng.random() < 0.15:
                del state[name]
            elif rng.random() < 0.2:
                state[name] = (f"told {mark}", connection, mark)
            else:
                state[name] = (note, rng.choice(("connected", "disconnected")), mark)
        yield state


def has_story(number: int) -> bool:
    """Whether the commit of that number also writes a story."""
    return number % 11 == 0


def commit(store: Store, before: State, after: State, story: Story | None) -> None:
    """Make the store's records what `after` says, in one commit."""
    puts = [_changed(store, name, after[name]) for name in after if after[name] != before.get(name)]
    store.commit(puts, [(WORKERS, name) for name in before if name not in after], story)


def _changed(store: Store, name: str, value: tuple[str | None, str, str]) -> Worker:
    note, connection, mark = value
    found = store.find(WORKERS, name)
    if found is None:
        return worker(name, note=note, state=connection, last_seen_at=mark)
    assert found.status is not None
    changes = {"state": connection, "last_seen_at": mark}
    changed: Record = found.with_status(found.status.model_copy(update=changes))  # type: ignore[type-arg]
    return changed if note == found.spec.note else changed.with_spec(note=note)


async def commit_forever(root: Path, seed: int) -> None:
    """Say `acked N` on stdout once the first N commits are durable, for every N."""
    store, engine, _ = open_store(Layout(root))
    engine.start(asyncio.get_running_loop())
    before = state_of(list(store.list(WORKERS)))
    _say(f"open {seed}")
    for number, after in enumerate(commits(before, seed), 1):
        story = Story("@a/wf", f"r{seed}-{number}", f"n: {number}\n") if has_story(number) else None
        commit(store, before, after, story)
        before = after
        store.after_barrier(lambda number=number: _say(f"acked {number}"))  # type: ignore[misc]
        if number % 5 == 0:
            await store.barrier()


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main() -> None:
    """Fork a committer for each line `<seed> <root>`, say its pid and when it is dead."""
    datastore.checkpoint.ROWS = 40
    for line in sys.stdin:
        seed, _, root = line.rstrip("\n").partition(" ")
        pid = os.fork()
        if not pid:
            # Before anything else it says, or the reader would take that for the number.
            _say(f"pid {os.getpid()}")
            asyncio.run(commit_forever(Path(root), int(seed)))
            os._exit(1)
        os.waitpid(pid, 0)
        _say("dead")


if __name__ == "__main__":
    main()
