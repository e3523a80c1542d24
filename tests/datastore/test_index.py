from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from datastore.files import Stat
from datastore.index import Index, IndexRow
from datastore.sqlite_file import to_json

KINDS = ("workers", "tokens")


def row(name: str, *, finished: bool = False, stat: Stat | None = None) -> IndexRow:
    document = to_json({"metadata": {"name": name}})
    return IndexRow(name, stat or Stat(1, 2, 3), finished, document)


def test_rows_survive_closing_and_opening(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.db", KINDS)
    rows = [row("a"), row("b", finished=True)]
    index.update(puts=[("workers", rows[0]), ("workers", rows[1]), ("tokens", row("a"))])
    index.close()
    index = Index(tmp_path / "index.db", KINDS)
    assert list(index.rows("workers")) == rows
    assert index.document("tokens", "a") == row("a").document
    assert index.document("tokens", "b") is None
    index.close()


def test_update_replaces_and_removes(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.db", KINDS)
    index.update(puts=[("workers", row("a")), ("workers", row("b"))])
    newer = row("a", stat=Stat(9, 9, 9))
    index.update(puts=[("workers", newer)], removals=[("workers", "b"), ("workers", "never")])
    assert list(index.rows("workers")) == [newer]
    index.close()


def test_update_that_fails_changes_nothing(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.db", KINDS)
    with pytest.raises(sqlite3.Error):
        index.update(puts=[("workers", row("a")), ("no such kind", row("b"))])
    assert list(index.rows("workers")) == []
    index.update(puts=[("workers", row("c"))])
    assert [found.name for found in index.rows("workers")] == ["c"]
    index.close()


def test_inode_numbers_of_64_bits_are_kept(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.db", KINDS)
    stat = Stat(1, 2, (1 << 64) - 5)
    index.update(puts=[("workers", row("a", stat=stat))])
    assert [found.stat for found in index.rows("workers")] == [stat]
    index.close()


def test_file_that_is_no_database_is_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "index.db").write_bytes(b"garbage" * 1000)
    index = Index(tmp_path / "index.db", KINDS)
    index.update(puts=[("workers", row("a"))])
    assert list(index.rows("workers")) == [row("a")]
    assert "begun anew" in caplog.text
    index.close()


@pytest.mark.parametrize(
    "change",
    [
        "PRAGMA user_version=999",
        "DROP TABLE workers; CREATE TABLE workers (name TEXT, content BLOB)",
    ],
)
def test_index_of_another_version_or_schema_is_begun_anew(tmp_path: Path, change: str) -> None:
    index = Index(tmp_path / "index.db", KINDS)
    index.update(puts=[("workers", row("a")), ("tokens", row("a"))])
    index.close()
    db = sqlite3.connect(tmp_path / "index.db")
    db.executescript(change)
    db.close()
    index = Index(tmp_path / "index.db", KINDS)
    assert list(index.rows("workers")) == list(index.rows("tokens")) == []
    index.close()


def test_locked_index_is_not_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datastore.index._BUSY_TIMEOUT_S", 0.01)
    index = Index(tmp_path / "index.db", KINDS)
    index.update(puts=[("workers", row("a"))])
    index.close()
    other = sqlite3.connect(tmp_path / "index.db", isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        Index(tmp_path / "index.db", KINDS)
    other.close()
    index = Index(tmp_path / "index.db", KINDS)
    assert list(index.rows("workers")) == [row("a")]
    index.close()


def test_sync_works_before_and_after_rows_were_written(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.db", KINDS)
    index.sync()
    index.update(puts=[("workers", row("a"))])
    index.sync()
    index.close()
