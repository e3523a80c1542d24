"""What is no regular file is told at once: nothing opens it, and so nothing waits for it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from datastore import event_writer
from datastore.clock import SystemClock
from datastore.desired import DesiredTree
from datastore.desired_edit import CannotAsk, ask
from datastore.engine import open_store
from datastore.errors import InvalidFile
from datastore.events import EventLog
from datastore.kinds import RUNS, WORKERS
from datastore.layout import Layout, create_folders
from datastore.lock import lock_holder
from datastore.reader import read_live, read_records
from datastore.record_file import read_record
from datastore.regular_file import read_bytes

WITHIN_S = 20.0


def pipe(path: Path) -> None:
    os.mkfifo(path)


def socket_file(path: Path) -> None:
    # The path of a socket must be short.
    here, there = os.getcwd(), path.parent
    os.chdir(there)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def device(path: Path) -> None:
    path.symlink_to("/dev/tty")


def loop(path: Path) -> None:
    path.symlink_to(path)


ODD = [
    pytest.param(pipe, "is no regular file", id="pipe"),
    pytest.param(socket_file, "is no regular file", id="socket"),
    pytest.param(device, "is no regular file", id="device"),
    pytest.param(Path.mkdir, "is a folder, expected a file", id="folder"),
    pytest.param(loop, "Too many levels of symbolic links", id="loop"),
]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    create_folders(layout)
    return layout


def swamp(layout: Layout, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of its own: one that hangs is killed, and fails the test."""
    return subprocess.run(
        [sys.executable, "-m", "swamp", *words, "--repo-dir", str(layout.root)],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


@pytest.mark.parametrize(("put", "said"), ODD)
def test_no_record_is_looked_for_in_it(
    layout: Layout, put: Callable[[Path], None], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = layout.record_file("runs", "f")
    put(path)
    with pytest.raises(InvalidFile, match=said):
        read_record(RUNS, path, layout.shown(path))
    assert read_records(layout, RUNS) == []
    assert read_live(layout, RUNS) == ([], 0)
    assert f"datastore/observed/runs/f.yaml: {said}" in caplog.text.replace("cannot be read: ", "")


@pytest.mark.parametrize(("put", "said"), ODD)
def test_its_bytes_are_an_error_that_names_it(
    tmp_path: Path, put: Callable[[Path], None], said: str
) -> None:
    put(tmp_path / "f")
    said = "Is a directory" if said.startswith("is a folder") else said
    with pytest.raises(OSError, match=said) as told:
        read_bytes(tmp_path / "f")
    assert told.value.filename == str(tmp_path / "f")


@pytest.mark.parametrize(
    "words",
    [("run", "list"), ("worker", "list", "--all"), ("run", "prune", "--dry-run"), ("doctor",)],
    ids=" ".join,
)
def test_commands_do_not_hang(layout: Layout, words: tuple[str, ...]) -> None:
    (layout.root / ".swamp.yaml").write_text("version: 1\n")
    for kind in ("runs", "workers", "tokens"):
        pipe(layout.record_file(kind, "f"))
    for private in (layout.lock, layout.index, layout.journal):
        pipe(private)
    pipe(layout.desired("runs") / "f.yaml")
    done = swamp(layout, *words)
    assert done.returncode == (1 if words == ("doctor",) else 0), done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_asks_by_such_a_file_says_so(layout: Layout) -> None:
    path = layout.desired(WORKERS.folder) / "w1.yaml"
    pipe(path)
    with pytest.raises(CannotAsk, match=r"w1\.yaml is no regular file"):
        ask(layout, WORKERS, "w1", {"drain": True}, "")
    assert path.is_fifo()


def test_a_lock_that_is_a_pipe_names_nobody(layout: Layout) -> None:
    pipe(layout.lock)
    assert lock_holder(layout) is None


def test_a_start_passes_pipes_over(layout: Layout) -> None:
    pipe(layout.record_file("runs", "f"))
    pipe(layout.desired("runs") / "f.yaml")
    store, engine, _ = open_store(layout)
    engine.close()
    assert list(store.names(RUNS)) == []
    tree = DesiredTree(layout)
    tree.scan()
    assert [problem.path for problem in tree.problems()] == ["datastore/desired/runs/f.yaml"]


async def test_events_do_not_wait_for_who_reads_a_pipe(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, refused = layout.events / "r1.jsonl", threading.Event()
    pipe(path)
    monkeypatch.setattr(event_writer.log, "error", lambda *_: refused.set())
    log = EventLog(layout.events, SystemClock(), lambda action: action())
    log.emit("r1", "a", "run_started")
    try:
        assert await asyncio.to_thread(refused.wait, WITHIN_S)
        assert "is no regular file" in str(log.trouble)
    finally:
        path.unlink()
        await asyncio.to_thread(log.close)
    assert b"run_started" in path.read_bytes()
