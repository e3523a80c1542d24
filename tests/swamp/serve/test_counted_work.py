"""The regression guard of speed: what one placed step costs, counted, never timed.

A whole server in this process (its files, its journal, all its controllers), a worker that answers
at once, and a fan-out of fifty steps. The bounds are per step: a change that needs more of
something has to say so here. What is batched (transactions, files) comes to less under load.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controllers.enrollment import Made, create_token
from datastore.index import Index
from datastore.kinds import LEASES, PENDING, RUNS, STEPS, Outcome, TokenSpec
from datastore.layout import Layout
from datastore.lock import RepositoryLock
from datastore.repository_init import initialize
from datastore.sqlite_journal import SqliteJournal
from swamp.protocol import (
    PROTOCOL_VERSION,
    Accepted,
    Dispatch,
    Enroll,
    FromWorker,
    ResultFrame,
    to_worker,
)
from swamp.serve.api import Api
from swamp.serve.orchestrator import Orchestrator
from swamp.serve.serve_options import ServeOptions
from swamp.serve.served import Served
from swamp.serve.sessions import Session, Sessions
from swamp.serve.starting import start_run

STEPS_OF_RUN, SLOTS = 50, 8

MOST_PER_STEP = {
    "commits": 7,
    "records": 8,
    "files created": 8,
    "bytes": 60_000,
    "frames": 4,
}
"""Commits: pending, waiting, lease and dispatched, running, active, completed, succeeded. Frames:
dispatch, accepted, result, ack. A file is written once per record at most, and less under load; the
bytes are all that the process writes, whole pages of SQLite most of all."""

MOST_IN_ALL = {
    "transactions": 7 * STEPS_OF_RUN,
    "index transactions": 8 * STEPS_OF_RUN,
    "syncs by name": 10,
    "scans": 40,
    "files of people read": 10,
}
"""What is batched, so that it is at most what there is to write; and what steps must not cause."""

WORKFLOW = """name: fan
inputs:
  properties:
    numbers: {type: array, items: {type: integer}}
jobs:
  - name: job
    steps:
      - name: s-${{ self.n }}
        forEach: {item: n, in: "${{ inputs.numbers }}"}
        labels: {pool: a}
        task:
          {type: model_method, modelIdOrName: shell, methodName: execute, inputs: {run: "true"}}
"""

MODEL = """type: command/shell
typeVersion: 2026.02.09.1
name: shell
concurrency: 0
methods: {execute: {arguments: {run: "true"}}}
"""


class FilesOpened:
    """What this process opens, lists and creates, as the interpreter tells it."""

    def __init__(self) -> None:
        self._root: str | None = None
        self.count: Counter[str] = Counter()
        # An audit hook stays for the rest of the process; without a root it counts nothing.
        sys.addaudithook(self._hear)

    @contextmanager
    def below(self, root: Path) -> Iterator[Counter[str]]:
        self._root, self.count = str(root), Counter()
        yield self.count
        self._root = None

    def _hear(self, event: str, told: tuple[Any, ...]) -> None:
        root = self._root
        if root is None or event not in ("open", "os.scandir", "os.listdir"):
            return
        path = os.fsdecode(told[0]) if isinstance(told[0], (str, bytes, os.PathLike)) else ""
        if not path.startswith(root):
            return
        if event != "open":
            self.count["scans"] += 1
        elif told[2] & os.O_CREAT and told[2] & os.O_EXCL:
            self.count["files created"] += 1
        elif path.endswith(".yaml") and not told[2] & (os.O_WRONLY | os.O_RDWR):
            self.count["files of people read"] += 1


FILES = FilesOpened()


class Answering:
    """A worker's socket whose steps end well as soon as they start; it counts frames."""

    def __init__(self, sessions: Sessions, count: Counter[str]) -> None:
        self._sessions, self.count = sessions, count
        self.session: Session

    def send(self, text: str) -> None:
        self.count["frames"] += 1
        frame = to_worker(text)
        if isinstance(frame, Dispatch):
            done = Outcome(ok=True, reason="completed", exit_code=0)
            self._answer(Accepted(dispatch=frame.dispatch))
            self._answer(ResultFrame(dispatch=frame.dispatch, outcome=done))

    def _answer(self, frame: FromWorker) -> None:
        loop = asyncio.get_running_loop()
        self.count["frames"] += 1
        loop.call_soon(lambda: self._sessions.handle(self.session, frame))

    def abort(self, reason: str) -> None: ...


def count_journal(monkeypatch: pytest.MonkeyPatch, count: Counter[str]) -> None:
    """Count commits and their bytes, transactions, and syncs that are asked for by name."""
    append, start = SqliteJournal.append, SqliteJournal.start
    update, fsync = Index.update, os.fsync

    def counted_append(self: SqliteJournal, ops: Any, on_durable: Any = None) -> None:
        count["commits"] += 1
        count["records"] += len(ops)
        append(self, ops, on_durable)

    def counted_start(self: SqliteJournal, loop: Any, on_batch: Any) -> None:
        def counted_batch(first_seq: int, ops: Any) -> None:
            count["transactions"] += 1
            on_batch(first_seq, ops)

        start(self, loop, counted_batch)

    def counted_update(self: Index, *given: Any, **named: Any) -> None:
        count["index transactions"] += 1
        update(self, *given, **named)

    def counted_fsync(handle: Any) -> None:
        count["syncs by name"] += 1
        fsync(handle)

    monkeypatch.setattr(SqliteJournal, "append", counted_append)
    monkeypatch.setattr(SqliteJournal, "start", counted_start)
    monkeypatch.setattr(Index, "update", counted_update)
    monkeypatch.setattr(os, "fsync", counted_fsync)


def written_bytes() -> int:
    """What this process has handed to the kernel to write so far, files and sockets alike."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


async def fan_out(root: Path, count: Counter[str]) -> None:
    """Fifty placed steps on eight slots, from the start of the run until it has ended."""

    async def front(served: Served, api: Api, sessions: Sessions) -> None:
        made = Made("t", datetime.now(UTC))
        create_token(served.store, "box", TokenSpec(expires_at="2099-01-01T00:00:00.000Z"),
                     "secret", made)  # fmt: skip
        wire = Answering(sessions, Counter())
        hello = Enroll(
            protocol=PROTOCOL_VERSION, version="1", token="box.secret", instance="i", machine="m",
            platform="linux", arch="x", labels={"pool": "a"}, capacity=SLOTS,
        )  # fmt: skip
        wire.session = await sessions.enroll(hello, wire)
        await served.store.barrier()
        await asyncio.sleep(0.3)  # What the start leaves to do is not the steps' cost.
        ended = asyncio.Event()
        served.store.watch(RUNS, lambda name: look(name))

        def look(name: str) -> None:
            if served.store.is_finished(RUNS, name):
                ended.set()

        wire.count = count
        count.clear()
        before["bytes"] = written_bytes()
        stack.enter_context(FILES.below(root))
        asked = {"workflow": "fan", "inputs": {"numbers": list(range(STEPS_OF_RUN))}}
        await start_run(served, asked, served.new_run())
        await ended.wait()
        await served.store.barrier()
        assert served.store.count(STEPS) == served.store.count(LEASES) == STEPS_OF_RUN
        assert not served.store.live(PENDING)

    before: Counter[str] = Counter()
    # Files follow the journal after a rest: the clean stop is counted too, as it writes the last.
    with RepositoryLock(Layout(root)) as lock, ExitStack() as stack:
        options = ServeOptions(root, file_events=False)
        await Orchestrator(options, lock, lambda report: None, front).run()
    count.update(FILES.count)
    count["bytes"] = written_bytes() - before["bytes"]


async def test_what_a_placed_step_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    initialize(tmp_path, datetime.now(UTC))
    (tmp_path / "workflows" / "fan.yaml").write_text(WORKFLOW)
    (tmp_path / "models" / "shell.yaml").write_text(MODEL)
    count: Counter[str] = Counter()
    count_journal(monkeypatch, count)
    async with asyncio.timeout(60):
        await fan_out(tmp_path, count)
    per_step = {name: count[name] / STEPS_OF_RUN for name in MOST_PER_STEP}
    assert {n: v for n, v in per_step.items() if v > MOST_PER_STEP[n]} == {}
    assert {n: count[n] for n, most in MOST_IN_ALL.items() if count[n] > most} == {}
    # A guard that sees nothing guards nothing.
    seen = ("commits", "transactions", "index transactions", "files created", "bytes", "frames")
    assert [name for name in seen if not count[name]] == []


def test_the_hook_sees_scans_and_reads(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("a: 1\n")
    with FILES.below(tmp_path) as count:
        list(os.scandir(tmp_path))
        os.listdir(tmp_path)
        (tmp_path / "one.yaml").read_bytes()
    assert count == {"scans": 2, "files of people read": 1}
