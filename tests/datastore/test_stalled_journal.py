"""A server that stands still while it writes, and whose lock another one takes meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from record_samples import run

from datastore import sqlite_journal
from datastore.engine import open_store
from datastore.errors import Degraded
from datastore.kinds import RUNS
from datastore.layout import Layout
from datastore.lock import RepositoryLock

WITHIN_S = 5


async def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("first", ["ours", "theirs"])
async def test_no_acknowledged_row_is_written_over(
    tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: both gave out the same numbers, and what either had acknowledged was lost where
    the other one wrote later, before the files had followed."""
    put, stands, goes_on = sqlite_journal.put_whole, threading.Event(), threading.Event()
    root, as_killed = tmp_path / "root", tmp_path / "killed"
    root.mkdir()

    def stall(*what: Any) -> None:
        monkeypatch.setattr(sqlite_journal, "put_whole", put)
        stands.set()
        assert goes_on.wait(WITHIN_S)
        put(*what)

    loop, told = asyncio.get_running_loop(), list[str]()
    with RepositoryLock(Layout(root)) as lock:
        ours, engine, _ = open_store(lock.layout)
        engine.start(loop)
        monkeypatch.setattr(sqlite_journal, "put_whole", stall)
        ours.commit([run("ours")])
        ours.after_barrier(lambda: told.append("ours"))
        assert await asyncio.to_thread(stands.wait, WITHIN_S)
        lock.layout.lock.unlink()
        with RepositoryLock(Layout(root)) as other:
            theirs, other_engine, _ = open_store(other.layout)
            theirs.commit([run("theirs")])
            with other_engine.observed.files_lock:
                if first == "theirs":
                    other_engine.start(loop)
                    await theirs.barrier()
                goes_on.set()
                await until(lambda: engine.journal.trouble is not None or bool(told))
                if first == "ours":
                    other_engine.start(loop)
                    await theirs.barrier()
                shutil.copytree(root, as_killed)
            await asyncio.to_thread(other_engine.close)
            with pytest.raises(Degraded):
                await asyncio.to_thread(engine.close, 0.0)
    assert told == []
    found, engine, _ = open_store(Layout(as_killed))
    engine.abandon()
    assert found.names(RUNS) == ("theirs",)
