"""A server on a full disk waits for room and says so; it neither ends nor forgets what it was."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controllers.retention import Keep
from datastore.errors import DatastoreError, DiskFull, RepositoryLocked
from datastore.kinds import PENDING, RUNS, STEPS
from datastore.layout import Layout
from datastore.lock import RepositoryLock
from datastore.repository_init import initialize
from swamp.client import local_client
from swamp.dialling import DEGRADED_HEADER
from swamp.execute.leftovers import Leftovers
from swamp.execute.scratch import Scratch, take_scratch
from swamp.execute.streams import Pump
from swamp.serve import no_room
from swamp.serve.api import Api
from swamp.serve.listening import application, bound_to_port, on_socket
from swamp.serve.no_room import OpeningOnceThereIsRoom
from swamp.serve.orchestrator import Orchestrator
from swamp.serve.reception import Door
from swamp.serve.serve_options import ServeOptions
from swamp.serve.served import Served
from swamp.serve.sessions import Sessions
from swamp.serve.starting import start_run
from swamp.worker.link import EnrollmentRefused, dial

Look = Callable[[Served], Awaitable[None]]

MODEL = """type: command/shell
typeVersion: 2026.02.09.1
name: shell
concurrency: 0
methods: {execute: {arguments: {run: "true"}}}
"""
WORKFLOW = """name: w
jobs:
  - name: here
    steps:
      - {name: one, task: {type: model_method, modelIdOrName: shell, methodName: execute}}
  - name: there
    steps:
      - name: two
        labels: {pool: cpu}
        task: {type: model_method, modelIdOrName: shell, methodName: execute}
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_room, "LOOK_EVERY_S", 0.02)


def no_space(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "scratch-1")


def no_file(*_: object, **__: object) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "scratch-1")


async def until(true: Callable[[], bool], what: str) -> None:
    """Poll: what is waited for is told to nobody in this process."""
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.01)


# -- opening ---------------------------------------------------------------------------------------


class Disk:
    """A disk that is full at first, with a repository that opens as "opened"."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = True
        self.tried = 0
        monkeypatch.setattr(no_room, "has_room", lambda folder: not self.full)

    def open(self) -> str:
        self.tried += 1
        if self.full:
            raise DiskFull("the journal j cannot be read: disk I/O error")
        return "opened"


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[RepositoryLock]:
    with RepositoryLock(Layout(tmp_path)) as held:
        yield held


def what_others_hear(lock: RepositoryLock) -> str:
    """What a command says that needs the repository for itself."""
    with pytest.raises(RepositoryLocked) as refused:
        RepositoryLock(lock.layout).acquire()
    return str(refused.value)


async def test_health_and_a_refusal_while_it_waits_and_then_it_opens(
    lock: RepositoryLock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk, stop = Disk(monkeypatch), asyncio.Event()
    with bound_to_port("127.0.0.1", 0) as listener:
        door = Door(listener, None)
        keep, drawn = Keep(runs=7, for_s=None), random.Random(3)
        opening = OpeningOnceThereIsRoom(lock, keep, door, stop, randomness=random.Random(3))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with aiohttp.ClientSession(url) as http, asyncio.timeout(20):
            opened = asyncio.create_task(opening(disk.open))
            await until(lambda: bool(caplog.records), "that it waits")
            for path in ("/health", "/"):
                async with http.get(path) as answer:
                    told = await answer.json()
                assert (answer.status, told["status"]) == (200, "degraded")
                assert told["degraded"].startswith("the disk is full, make room on it")
                assert "disk I/O error" in told["degraded"]
                assert told["takesWork"] is False
                assert told["retention"] == {"keepRuns": 7, "keepForS": None}
            async with http.post("/api/v1/runs", json={"workflow": "w"}) as answer:
                assert (answer.status, (await answer.json())["code"]) == (503, "degraded")
                told_s = [answer.headers["Retry-After"]]
            for _ in range(9):
                async with http.get("/api/v1/runs") as answer:
                    told_s.append(answer.headers["Retry-After"])
            assert told_s == [str(drawn.randint(3, 7)) for _ in told_s], "not all at one moment"
            with pytest.raises(EnrollmentRefused) as refused:
                await dial(http, f"{url}/", {})
            assert not refused.value.permanent
            assert "the disk is full" in str(refused.value)
            heard = what_others_hear(lock)
            assert f"by a server that has not started yet, pid {os.getpid()} (since " in heard
            assert heard.endswith(told["degraded"])
            # Regression: a command here waited a minute for it, and said that it serves.
            assert local_client(lock.layout, sleep=pytest.fail) is None
            assert disk.tried == 1, "not before there is room"
            disk.full = False
            assert await opened == "opened"
    assert "this repository is served by pid" in what_others_hear(lock)
    said = [record.message for record in caplog.records if record.name == no_room.__name__]
    assert said[1:] == ["there is room on the disk: the server starts"]
    assert "nothing is to be removed from .swamp/" in said[0]


async def test_a_path_that_fits_no_header_keeps_no_caller_from_the_reason(
    lock: RepositoryLock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: the answer was refused by the web server, and its caller heard nothing."""
    stop, trouble = asyncio.Event(), "é\x01\x1b[2J: full"
    monkeypatch.setattr(no_room, "has_room", lambda folder: False)

    def refuse() -> None:
        raise DiskFull(trouble)

    with bound_to_port("127.0.0.1", 0) as listener:
        opening = OpeningOnceThereIsRoom(lock, Keep(), Door(listener, None), stop)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with aiohttp.ClientSession(url) as http, asyncio.timeout(20):
            opened = asyncio.create_task(opening(refuse))
            await until(lambda: bool(caplog.records), "that it waits")
            caplog.clear()
            async with http.get("/api/v1/runs") as answer:
                assert answer.status == 503
                assert answer.headers[DEGRADED_HEADER].endswith("é??[2J: full")
            stop.set()
            await opened


async def test_it_says_again_what_it_waits_for(
    lock: RepositoryLock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(no_room, "SAY_EVERY_S", 0.0)
    disk, stop = Disk(monkeypatch), asyncio.Event()
    with bound_to_port("127.0.0.1", 0) as listener:
        opening = OpeningOnceThereIsRoom(lock, Keep(), Door(listener, None), stop)
        async with asyncio.timeout(20):
            opened = asyncio.create_task(opening(disk.open))
            await until(lambda: len(caplog.records) > 2, "that it waits, again")
            stop.set()
            assert await opened is None, "a stop ends it in order"


async def test_what_is_not_for_want_of_room_ends_the_server(
    lock: RepositoryLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    def broken() -> str:
        if disk.tried:
            raise DatastoreError("the journal is broken")
        return disk.open()

    def room(folder: Path) -> bool:
        return True

    monkeypatch.setattr(no_room, "has_room", room)
    with bound_to_port("127.0.0.1", 0) as listener:
        door = Door(listener, None)
        opening = OpeningOnceThereIsRoom(lock, Keep(), door, asyncio.Event())
        with pytest.raises(DatastoreError, match="is broken"):
            await opening(broken)


# -- a whole server --------------------------------------------------------------------------------


async def served(root: Path, look: Look) -> None:
    """Run a server until `look` has seen enough."""

    async def front(parts: Served, api: Api, sessions: Sessions) -> None:
        await look(parts)

    if not (root / ".swamp.yaml").exists():
        initialize(root, datetime.now(UTC))
        (root / "models" / "shell.yaml").write_text(MODEL)
        (root / "workflows" / "w.yaml").write_text(WORKFLOW)
    with RepositoryLock(Layout(root)) as lock:
        options = ServeOptions(root, file_events=False)
        async with asyncio.timeout(60):
            await Orchestrator(options, lock, lambda report: None, front).run()


def states(parts: Served) -> dict[str, str]:
    found = (*parts.store.list(STEPS),)
    return {one.spec.step: one.status.state for one in found if one.status is not None}


async def test_steps_here_wait_for_a_folder_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a server without room for scratch folders ended with exit code 1."""

    full = True

    def take(root: Path) -> Scratch:
        return no_space() if full else take_scratch(root)

    monkeypatch.setattr("swamp.serve.local_executor.take_scratch", take)

    async def look(parts: Served) -> None:
        nonlocal full
        await until(lambda: parts.degraded is not None, "the server says so")
        assert "steps on the server wait for room on the disk" in (parts.degraded or "")
        assert parts.store.trouble is None, "it takes work"
        await start_run(parts, {"workflow": "w"}, parts.new_run())
        await until(lambda: any(one.state == "waiting" for one in parts.store.live(PENDING)), "")
        assert states(parts)["one"] == "running"
        full = False
        await until(lambda: states(parts)["one"] == "succeeded", "it goes on by itself")
        assert parts.degraded is None

    await served(tmp_path, look)


NO_FILE = "steps on the server wait until they may open files: Too many open files"
LACKS = {
    "no room": (Leftovers, "_make", no_space, "has_room", "No space left on device"),
    "no file for its folder": (Leftovers, "_make", no_file, "may_open", NO_FILE),
    "no file for its pipes": (Pump, "open", no_file, "may_open", NO_FILE),
}


@pytest.mark.parametrize("lack", LACKS)
async def test_a_step_that_finds_no_room_later_waits_and_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lack: str
) -> None:
    """It failed with `start_failed`."""
    what, method, refuse, looks, reason = LACKS[lack]

    async def look(parts: Served) -> None:
        names = [parts.new_run(), parts.new_run()]
        with monkeypatch.context() as full:
            full.setattr(what, method, refuse)
            full.setattr(no_room, looks, lambda *_: False)
            for name in names:
                await start_run(parts, {"workflow": "w"}, name)
            await until(lambda: parts.degraded is not None, "the server says so")
            assert parts.degraded is not None and reason in parts.degraded
            parts.manager.runs.cancel(names[0], "not wanted")
            run = parts.store.get(RUNS, names[0])
            await until(lambda: not parts.store.get(RUNS, run.name).live, "it is cancelled")
        there = [one for one in parts.store.list(STEPS) if one.spec.run == names[1]]
        (here,) = [one.name for one in there if one.spec.step == "one"]

        def state() -> str | None:
            status = parts.store.get(STEPS, here).status
            return None if status is None else status.state

        await until(lambda: state() == "succeeded", "it goes on by itself")
        await until(lambda: parts.degraded is None, "and health tells")

    await served(tmp_path, look)
    told = [one.message for one in caplog.records if one.name == no_room.__name__]
    assert len(told) == 2, "once that they wait, once that they do not"
    assert reason in told[0] and told[1].startswith("no longer so: ")


async def test_a_server_answers_while_its_sweep_is_not_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it did not listen, so nobody could ask why."""

    async def first(parts: Served) -> None:
        await start_run(parts, {"workflow": "w"}, parts.new_run())
        await until(lambda: any(one.state == "waiting" for one in parts.store.live(PENDING)), "")

    await served(tmp_path, first)

    def full(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    async def look(parts: Served) -> None:
        assert "database or disk is full" in (parts.degraded or "")
        assert parts.store.trouble is not None
        (run,) = parts.store.live(RUNS)
        filled.undo()
        await parts.store.barrier()
        assert parts.degraded is None
        assert parts.store.get(RUNS, run.name).live

    filled = pytest.MonkeyPatch()
    filled.setattr("datastore.sqlite_journal.put_whole", full)
    try:
        await served(tmp_path, look)
    finally:
        filled.undo()


async def test_a_socket_that_finds_no_room_is_listened_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(parts: Served) -> None:
        monkeypatch.setattr("swamp.serve.listening.LOOK_S", 0.02)
        runner = application(Api(parts), Api(parts).health, admin=True)
        filled = pytest.MonkeyPatch()
        filled.setattr("swamp.serve.listening._bound_anew", no_space)
        try:
            async with on_socket(parts.layout, runner, parts.own_socket):
                assert "No space left on device" in (parts.degraded or "")
                filled.undo()
                await until(lambda: parts.layout.socket.exists(), "it listens")
                await until(lambda: parts.degraded is None, "and health tells")
        finally:
            filled.undo()

    await served(tmp_path, look)
