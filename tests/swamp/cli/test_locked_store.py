"""A command that changes records without a server, on a disk that takes nothing."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from typing import Any

import pytest

from datastore.engine import open_store
from datastore.errors import Degraded
from datastore.kinds import TOKENS, Token, TokenSpec, TokenStatus
from datastore.layout import Layout
from datastore.lock import RepositoryLock
from datastore.record import Record
from datastore.store import Store
from swamp.cli import locked_store

AT = "2026-11-29T16:41:31.123Z"


def a_token(name: str) -> Token:
    status = TokenStatus(state="unused", secret_hash="00ff")
    return Record(TOKENS, name, f"uid-{name}", AT, TokenSpec(expires_at=AT), status)


def test_a_command_gives_up_where_the_disk_refuses(
    repo: Layout, swamp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for as long as the disk was full."""

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(locked_store, "REFUSED_FOR_S", 0.2)
    create = ("worker", "token", "create", "w1", "--duration", "1h")
    with monkeypatch.context() as filled:
        filled.setattr("datastore.sqlite_journal.put_whole", full)
        result = swamp(*create)
    assert result.code == 1
    assert "given up before it was on disk" in result.err
    assert "make room on the disk, look whether it is done, and try again" in result.err
    assert swamp(*create[:3], "w2", *create[4:]).code == 0, "the next one finds room"


def test_a_command_whose_lock_another_has_taken_changes_nothing(
    repo: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it put a journal of its own in the place of the other one's, or wrote rows of the
    same numbers into that."""
    monkeypatch.setattr(locked_store, "REFUSED_FOR_S", 0.2)

    async def act(store: Store) -> dict[str, Any]:
        await asyncio.to_thread(shutil.rmtree, repo.private)
        with RepositoryLock(repo) as other:
            theirs, engine, _ = await asyncio.to_thread(open_store, other.layout)
            engine.start(asyncio.get_running_loop())
            theirs.commit([a_token("t1")])
            await theirs.barrier()
            inode = repo.journal.stat().st_ino
            store.commit([a_token("t2")])
            try:
                await store.barrier()
            finally:
                assert repo.journal.stat().st_ino == inode
                await asyncio.to_thread(engine.close)
        return {}

    with pytest.raises(Degraded, match="another process serves this folder"):
        asyncio.run(locked_store.with_store(repo, act))
    store, engine, _ = open_store(repo)
    engine.abandon()
    assert store.names(TOKENS) == ("t1",)
