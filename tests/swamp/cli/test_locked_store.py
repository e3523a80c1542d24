"""A command that changes records without a server, on a disk that takes nothing."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from datastore.layout import Layout
from swamp.cli import locked_store


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
