"""What is told while nothing arrives of a run: what the server says is wrong, and nothing else."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from datastore.errors import SwampError
from swamp.cli import silence
from swamp.cli.console import Console
from swamp.cli.silence import Silence

FULL = "Warning: nothing arrives, the server is degraded: full\n"


class Client:
    """Says one after the other how the server is."""

    slow: Any = print

    def __init__(self, *says: Any) -> None:
        self.says = list(says)
        self.asked: list[str] = []

    def get(self, path: str) -> Any:
        assert (path, self.slow) == ("/health", None), "that it is slow is told to whoever follows"
        self.asked.append(path)
        found = self.says.pop(0)
        if isinstance(found, Exception):
            raise found
        return {"status": "degraded" if found else "ok", "degraded": found}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "ASK_AFTER_S", 0.0)
    monkeypatch.setattr(silence, "ASK_EVERY_S", 0.0)


def lasts(made: Silence) -> None:
    """It goes on until the server has answered once."""
    made.goes_on()
    if made._asks is not None:
        made._asks.join(10)


def made_of(client: Any, console: Console | None = None) -> Silence:
    return Silence(client, console or Console())


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ((None, None), ""),
        (("full", "full"), FULL),
        ((None, "full"), FULL),
        ((SwampError("gone"), "full"), FULL),
        ((OSError("gone"), None), ""),
    ],
)
def test_what_is_wrong_is_told_once_for_each_silence(
    says: tuple[Any, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_of(Client(*says))
    for _ in says:
        lasts(made)
    assert capsys.readouterr() == ("", told)


def test_it_is_told_again_after_something_has_arrived(capsys: pytest.CaptureFixture[str]) -> None:
    made = made_of(Client("full", "full"))
    lasts(made)
    made.broken()
    lasts(made)
    assert capsys.readouterr().err == 2 * FULL


def test_nobody_is_asked_where_nothing_may_be_said_or_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client("full")
    lasts(made_of(client, Console(quiet=True)))
    monkeypatch.setattr(silence, "ASK_AFTER_S", 3600.0)
    lasts(made_of(client))
    assert client.asked == []


def test_a_server_that_does_not_answer_holds_up_nobody_and_is_asked_once() -> None:
    answers, asked = threading.Event(), []

    class Hangs:
        def get(self, path: str) -> Any:
            asked.append(path)
            answers.wait(10)
            return {}

    made = made_of(Hangs())
    for _ in range(5):
        made.goes_on()
    answers.set()
    assert made._asks is not None
    made._asks.join(10)
    assert asked == ["/health"]
