"""Which processes may descend from another, told by their numbers alone."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator

import pytest

from swamp.execute import processes
from swamp.execute.processes import MARK_VARIABLE, Birth, kill_marked


@pytest.mark.parametrize(
    ("newest", "younger"),
    [
        pytest.param(300, [201, 300], id="the usual"),
        pytest.param(100, [7, 100, 201, 300, 301], id="pids have begun anew"),
        pytest.param(None, [7, 100, 199, 200, 201, 300, 301], id="nobody says"),
    ],
)
def test_later_pids(
    monkeypatch: pytest.MonkeyPatch, newest: int | None, younger: list[int]
) -> None:
    monkeypatch.setattr(processes, "_newest_pid", lambda: newest)
    monkeypatch.setattr(processes, "_pid_max", lambda: 1 << 30)
    born = Birth(200, time.monotonic())
    assert born.later([7, 100, 199, 200, 201, 300, 301]) == younger


@pytest.mark.parametrize("newest", [150, 5_000, None])
def test_where_pids_of_others_are_told_any_may_be_younger(
    monkeypatch: pytest.MonkeyPatch, newest: int | None
) -> None:
    """Some containers tell of the pids of their host."""
    monkeypatch.setattr(processes, "_pid_max", lambda: 1 << 30)
    monkeypatch.setattr(processes, "_newest_pid", lambda: newest)
    born = Birth.of(200)
    monkeypatch.setattr(processes, "_newest_pid", lambda: 200)
    assert born.later([100, 201]) == [100, 201]
    assert not born.nobody_after(())


def test_after_a_while_any_pid_may_be_younger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_newest_pid", lambda: 300)
    monkeypatch.setattr(processes, "_pid_max", lambda: 100_000)
    old = Birth(200, time.monotonic() - 1.5)
    assert old.later([100, 250]) == [100, 250]


@pytest.mark.parametrize("age_s", [0.0, 1e6], ids=["by pid", "by a look at all"])
def test_a_marked_process_is_found_and_others_are_left_alone(age_s: float) -> None:
    mark = uuid.uuid4().hex
    elder = subprocess.Popen(["true"])
    before = Birth(elder.pid, time.monotonic() - age_s)
    elder.wait()
    ours = subprocess.Popen(["sleep", "60"], env={MARK_VARIABLE: mark})
    other = subprocess.Popen(["sleep", "60"], env={MARK_VARIABLE: mark + "x"})
    try:
        assert kill_marked([mark], before) == 1
        assert ours.wait(5) == -9
        assert other.poll() is None
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()


@pytest.fixture
def running() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_nobody_is_left_but_the_others(
    monkeypatch: pytest.MonkeyPatch, running: subprocess.Popen[bytes]
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    exists = processes._exists
    # Not those that the rest of the machine starts in between.
    ours = (running.pid, gone.pid)
    monkeypatch.setattr(processes, "_exists", lambda pid: pid in ours and exists(pid))
    older = Birth.of(running.pid - 1)
    for newest in (running.pid, max(running.pid, gone.pid)):
        monkeypatch.setattr(processes, "_newest_pid", lambda newest=newest: newest)
        assert older.nobody_after({running.pid})
        assert not older.nobody_after(())
    assert Birth.of(gone.pid).nobody_after({running.pid})


@pytest.mark.parametrize(
    ("newest", "age_s"),
    [
        pytest.param([None], 0.0, id="nobody says"),
        pytest.param([0], 0.0, id="pids have begun anew"),
        pytest.param([1000], 0.0, id="so many that it takes long"),
        pytest.param([1], 1e6, id="any pid may be younger by now"),
        pytest.param([1, 2], 0.0, id="somebody was born meanwhile"),
    ],
)
def test_where_it_takes_a_longer_look_somebody_may_be_left(
    monkeypatch: pytest.MonkeyPatch, newest: list[int | None], age_s: float
) -> None:
    base = 1 << 24
    told = iter([None if one is None else base + one - 1 for one in newest] + [base] * 2)
    monkeypatch.setattr(processes, "_newest_pid", lambda: next(told))
    assert not Birth(base, time.monotonic() - age_s).nobody_after(())
