"""Secrets are sealed, bound to their name, and readable with the repository's key alone."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from datastore.errors import NotFound
from datastore.key_file import InvalidKey, derive, load_or_make
from datastore.layout import Layout
from datastore.secrets import InvalidSecret, Secrets

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def test_a_secret_is_sealed_and_opens_again(layout: Layout) -> None:
    secrets = Secrets(layout)
    assert secrets.put("main", "API_KEY", "tr0ub4dor", NOW) is False
    assert secrets.put("main", "API_KEY", "correct horse", NOW) is True
    assert Secrets(layout).get("main", "API_KEY") == "correct horse"
    assert secrets.names("main") == ["API_KEY"]
    everything = b"".join(p.read_bytes() for p in layout.root.rglob("*") if p.is_file())
    assert b"horse" not in everything
    modes = {stat.S_IMODE(p.stat().st_mode) for p in layout.private.rglob("*") if p.is_file()}
    assert modes == {0o600}


def test_a_file_moved_under_another_name_does_not_open(layout: Layout) -> None:
    secrets = Secrets(layout)
    secrets.put("main", "A", "value", NOW)
    folder = layout.private / "secrets" / "main"
    (folder / "A.json").rename(folder / "B.json")
    with pytest.raises(InvalidSecret, match="does not open"):
        secrets.get("main", "B")
    with pytest.raises(NotFound, match="no secret 'A'"):
        secrets.get("main", "A")


def test_another_key_opens_nothing(layout: Layout) -> None:
    Secrets(layout).put("main", "A", "value", NOW)
    layout.key.unlink()
    with pytest.raises(InvalidSecret, match="another key"):
        Secrets(layout).get("main", "A")


def test_a_damaged_key_is_told(layout: Layout) -> None:
    load_or_make(layout)
    layout.key.write_bytes(b"short")
    with pytest.raises(InvalidKey, match="holds 5 bytes, expected 32"):
        load_or_make(layout)


def test_one_purpose_tells_nothing_of_another(layout: Layout) -> None:
    key = load_or_make(layout)
    assert load_or_make(layout) == key
    assert len({key, derive(key, "a"), derive(key, "b")}) == 3


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 200])
def test_names_never_lead_out_of_the_vault(layout: Layout, name: str) -> None:
    with pytest.raises(InvalidSecret):
        Secrets(layout).put("main", name, "value", NOW)
    with pytest.raises(InvalidSecret):
        Secrets(layout).put(name, "A", "value", NOW)
