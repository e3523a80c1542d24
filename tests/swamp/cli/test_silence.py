"""What is told while nothing arrives of a run: what the server says is wrong, and nothing else."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from datastore.errors import SwampError
from swamp.cli import silence
from swamp.cli.console import Console
from swamp.cli.silence import Silence

FULL = "nothing arrives, the server is degraded: full\n"
LOCKED = "nothing arrives, the server is degraded: locked\n"


class Client:
    """Says one after the other how the server is."""

    def __init__(self, *says: Any) -> None:
        self.says = list(says)
        self.slow: Any = print

    def get(self, path: str) -> Any:
        assert (path, self.slow) == ("/health", None)
        found = self.says.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def let_it_last(console: Console, client: Client) -> None:
    """Until all has been asked, each answer told before the next question."""
    given: Any = client
    made = Silence(console, given)
    while client.says:
        made.lasts()
        with made._asking:
            pass
    made.over()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "QUIET_S", 0.0)


def how(degraded: str | None) -> dict[str, Any]:
    return {"status": "ok", "degraded": degraded}


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ([how(None), how(None)], ""),
        ([how("full"), how("full")], FULL),
        ([how("full"), how("locked")], FULL + LOCKED),
        ([how("full"), how(None), how("full")], FULL * 2),
        ([how("full"), SwampError("gone"), how("full")], FULL),
        ([{}, [], "ok"], ""),
    ],
)
def test_what_is_wrong_is_told_once_and_nothing_of_a_server_that_is_well(
    capsys: pytest.CaptureFixture[str], says: list[Any], told: str
) -> None:
    let_it_last(Console(), Client(*says))
    assert capsys.readouterr() == ("", told)


def test_nobody_is_asked_where_nothing_may_be_said() -> None:
    client: Any = Client()
    Silence(Console(quiet=True), client).lasts()


def test_a_server_that_does_not_answer_holds_up_nobody_and_is_asked_once() -> None:
    asked, answers = threading.Event(), threading.Event()

    class Slow(Client):
        def get(self, path: str) -> Any:
            assert not asked.is_set()
            asked.set()
            answers.wait(30)
            return how(None)

    client: Any = Slow()
    made = Silence(Console(), client)
    for _ in range(3):
        made.lasts()
        assert asked.wait(30)
    answers.set()
    with made._asking:
        pass


def test_it_is_asked_after_a_while_only_and_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(silence, "QUIET_S", 5.0)
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    asked: list[float] = []

    class Noted(Client):
        def get(self, path: str) -> Any:
            asked.append(now_s[0] - 100)
            return how(None)

    client: Any = Noted()
    made = Silence(Console(), client)
    for second in range(180):
        now_s[0] = 100.0 + second
        if second == 3:
            made.heard()
        made.lasts()
        with made._asking:
            pass
    assert asked == [8, 13, 23, 43, 83, 143]
