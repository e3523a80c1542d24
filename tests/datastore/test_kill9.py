"""Promise 7: `kill -9` at any instant loses no acknowledged commit and leaves no half of one."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import commit_child
import pytest
from commit_child import State, commits, has_story, state_of

from datastore.engine import OpenedEngine, open_engine
from datastore.kinds import KINDS, WORKERS
from datastore.layout import Layout
from datastore.reader import read_records
from datastore.yaml_loader import load

KILLS = 200
REPOSITORIES = 5
IN_FLIGHT_MAX = 40


@pytest.fixture
def fast_folder() -> Iterator[Path]:
    """In memory where there is such a disk: what SIGKILL does to a process is the same there."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def zygote() -> Iterator[subprocess.Popen[str]]:
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, commit_child.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            # With whatever it has started, also after a failure.
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.timeout(180)
def test_two_hundred_kills_lose_nothing_acknowledged_and_leave_no_half_commit(
    fast_folder: Path, zygote: subprocess.Popen[str]
) -> None:
    rng = random.Random(20261129)
    acknowledged = 0
    for number in range(REPOSITORIES):
        layout = Layout(fast_folder / str(number))
        layout.root.mkdir()
        state: State = {}
        for _ in range(KILLS // REPOSITORIES):
            seed = rng.randrange(10**9)
            acked = _commit_until_killed(zygote, layout, seed, rng.uniform(0.0, 0.09))
            acknowledged += acked
            state = _check(layout, state, seed, acked)
            if rng.random() < 0.5:
                # Otherwise the next process finds what this one left: an open, and no more.
                _reopen(layout, state).close()
    assert acknowledged > KILLS


def _commit_until_killed(
    zygote: subprocess.Popen[str], layout: Layout, seed: int, after_s: float
) -> int:
    """How many commits the process acknowledged before it was killed."""
    assert zygote.stdin is not None and zygote.stdout is not None
    zygote.stdin.write(f"{seed} {layout.root}\n")
    zygote.stdin.flush()
    pid = int(zygote.stdout.readline().removeprefix("pid "))
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    acked = 0
    for line in iter(zygote.stdout.readline, "dead\n"):
        assert line, "the process that starts the others died"
        if line.startswith("acked "):
            acked = int(line.removeprefix("acked "))
    return acked


def _check(layout: Layout, before: State, seed: int, acked: int) -> State:
    """What is on disk must be the state after some whole number of commits, `acked` or more."""
    found = state_of(read_records(layout, WORKERS))
    states = itertools.chain([before], commits(before, seed))
    candidates = enumerate(itertools.islice(states, acked + IN_FLIGHT_MAX))
    matching = [number for number, state in candidates if number >= acked and state == found]
    assert matching, f"seed {seed}: no state after {acked} commits or a few more is the one on disk"
    engine = _reopen(layout, found)
    _check_files(layout, found)
    _check_stories(layout, seed, matching[0])
    _abandon(engine)
    return found


def _reopen(layout: Layout, expected: State) -> OpenedEngine:
    engine = open_engine(layout, KINDS.values())
    records = [record for record, vouched in engine.records if vouched]
    records += [
        KINDS[folder].load(json.loads(document))
        for folder, documents in engine.finished.items()
        for document in documents.values()
    ]
    assert state_of(records) == expected
    assert not (engine.report.invalid or engine.report.unvouched or engine.report.put_back)
    return engine


def _check_files(layout: Layout, expected: State) -> None:
    files = list(layout.observed("workers").glob("*.yaml"))
    shown = [WORKERS.load(load(file.read_bytes(), str(file)).value) for file in files]
    assert state_of(shown) == expected
    assert {record.name for record in shown} == {file.stem for file in files}


def _check_stories(layout: Layout, seed: int, commits_done: int) -> None:
    expected = {f"r{seed}-{n}": f"n: {n}\n" for n in range(1, commits_done + 1) if has_story(n)}
    found = {file.stem: file.read_text() for file in layout.history.glob(f"*/r{seed}-*.yaml")}
    assert found == expected


def _abandon(engine: OpenedEngine) -> None:
    """Leave everything as a killed process would."""
    engine.journal.close()
    engine._index.close()
