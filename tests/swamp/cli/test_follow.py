"""Following a run with much to show: few writes, and nothing held back once nothing waits."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from datastore.errors import SwampError
from swamp.cli.console import Console
from swamp.cli.follow import Watch, follow
from swamp.cli.run_lines import RunLines
from swamp.cli.unread import ToldUnread

AT = {"at": "2026-11-29T12:00:00.000Z", "job": "job", "step": "step"}


class Screen(io.StringIO):
    """A stdout that notes what is written at once."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.awaited = ""
        self.shown = threading.Event()

    def write(self, text: str) -> int:
        self.writes += 1
        return super().write(text)

    def flush(self) -> None:
        if self.getvalue().endswith(self.awaited):
            self.shown.set()


class Server:
    """Has a run's events; the last one comes once the screen shows the last line before it."""

    def __init__(self, screen: Screen, pieces: list[str]) -> None:
        self.screen = screen
        self.pieces = pieces
        screen.awaited = pieces[-1].split("\n")[-2] + "\n"

    def events(self, run: str, after: int, *told: Any) -> Iterator[dict[str, Any]]:
        for text in self.pieces:
            yield {"kind": "output", "stream": "stdout", "text": text, **AT}
        assert self.screen.shown.wait(30)
        yield {"kind": "run_completed", "status": "succeeded", "durationMs": 5, **AT}


def test_a_flood_of_lines_costs_few_writes_and_is_seen_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    pieces = ["".join(f"{n}.{i}\n" for i in range(8_000)) for n in range(20)]
    server: Any = Server(screen, pieces)
    follow(Console(), Watch(server, "r"), RunLines())
    lines = screen.getvalue().splitlines()
    assert [line for line in lines if "▏" in line] == [
        f"    job │ step ▏ {line}" for piece in pieces for line in piece.splitlines()
    ]
    # Text and line end of each piece, and of the end of the run.
    assert screen.writes <= 2 * (len(pieces) + 1)


class Unread(io.StringIO):
    """A stdout whose reader goes when a certain text comes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def write(self, text: str) -> int:
        if self._text in text:
            raise BrokenPipeError
        return super().write(text)

    def fileno(self) -> int:
        return os.open(os.devnull, os.O_WRONLY)


class Here:
    """A run of this process, which ends when it is told to, or by itself."""

    def __init__(self, *, ends: bool) -> None:
        self.over = threading.Event()
        self.asked: list[tuple[str, Any]] = []
        if ends:
            self.over.set()

    def events(self, run: str, after: int, *told: Any) -> Iterator[dict[str, Any]]:
        yield {"kind": "output", "stream": "stdout", "text": "early\n", **AT}
        assert self.over.wait(30)
        yield {"kind": "run_completed", "status": "cancelled", "durationMs": 5, **AT}

    def post(self, path: str, body: Any) -> None:
        self.asked.append((path, body))
        self.over.set()

    def get(self, path: str) -> dict[str, Any]:
        return {"status": "cancelled"}


@pytest.mark.parametrize(("text", "ends"), [("early", False), ("Cancelled", True)])
def test_a_run_of_this_process_is_not_left_when_nobody_reads_of_it(
    monkeypatch: pytest.MonkeyPatch, text: str, ends: bool
) -> None:
    monkeypatch.setattr(sys, "stdout", Unread(text))
    here = Here(ends=ends)
    client: Any = here
    with pytest.raises(ToldUnread):
        follow(Console(), Watch(client, "r", is_here=True), RunLines())
    ((path, _),) = here.asked
    assert path == "/api/v1/runs/r/cancel"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            "running",
            "The output cannot be written any more. The run goes on. Watch it: swamp run watch r\n",
        ),
        ("cancelled", ""),
        (None, ""),
    ],
)
def test_a_run_of_a_server_whose_output_nobody_reads_is_said_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: str | None,
    said: str,
) -> None:
    """Regression: `swamp workflow run w | head -3` ended with 1 and said nothing."""
    server = Here(ends=False)

    def get(path: str) -> dict[str, Any]:
        if status is None:
            raise SwampError("gone")
        return {"status": status}

    monkeypatch.setattr(server, "get", get)
    monkeypatch.setattr(sys, "stdout", Unread("early"))
    client: Any = server
    with pytest.raises(BrokenPipeError) as raised:
        follow(Console(), Watch(client, "r"), RunLines())
    # Only who says nothing ends quietly.
    assert isinstance(raised.value, ToldUnread) == bool(said)
    assert server.asked == []
    assert capsys.readouterr().err == said
    server.over.set()


class Lost(Here):
    """A server that is lost for a while; or whose events nobody foresaw."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(ends=True)
        self._error = error

    def events(self, run: str, after: int, *told: Any) -> Iterator[dict[str, Any]]:
        if self._error is not None:
            raise self._error
        for tell in told:
            tell("lost the connection; trying again")
        yield {"kind": "run_completed", "status": "succeeded", "durationMs": 5, **AT}


def ended(server: Any) -> list[object]:
    """How a command that follows ends: its error, if it has one; nothing as long as it hangs."""
    found: list[object] = []

    def watch() -> None:
        try:
            follow(Console(verbose=True), Watch(server, "r"), RunLines())
        except BaseException as error:
            found.append(error)
        else:
            found.append(None)

    with pytest.MonkeyPatch.context() as patch:
        # Only the main thread has signals.
        patch.setattr("swamp.cli.follow.signals_interrupt", nullcontext)
        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        watching.join(10)
    return found


def test_a_remark_that_cannot_be_written_does_not_end_the_following(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: with stderr on a full disk, or a pipe that nobody reads, it hung for ever."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert ended(Lost()) == [None]
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_what_nobody_foresaw_ends_the_following() -> None:
    """Regression: the thread that waits for events died of it, and the command hung for ever."""
    error = RuntimeError("unforeseen")
    assert ended(Lost(error)) == [error]
