"""The books of `make soak`: each kind of difference between them is found, and nothing else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

STORY = """run: r1
state: succeeded
jobs:
  - name: fan
    steps:
      - name: a
        state: succeeded
        episodes:
          - {state: dispatched, lease: expired}
          - {state: dispatched, lease: completed}
      - name: b
        state: succeeded
        episodes:
          - {state: dispatched, lease: completed}
      - name: here
        state: skipped
"""
ENDED = {"fan.a": "succeeded", "fan.b": "succeeded", "fan.here": "skipped"}
TOOK = ["r1.fan.a.1", "r1.fan.a.2", "r1.fan.b.1"]


def load() -> ModuleType:
    """By its path: the folder has modules whose names others have too."""
    path = Path(__file__).parent / "bench" / "soak_ledger.py"
    spec = importlib.util.spec_from_file_location("soak_ledger", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak_ledger"] = module
    spec.loader.exec_module(module)
    return module


soak_ledger = load()


@pytest.fixture
def stories(tmp_path: Path) -> soak_ledger.Stories:
    (tmp_path / "fan").mkdir()
    (tmp_path / "fan" / "r1.yaml").write_text(STORY)
    return soak_ledger.read_stories(tmp_path)


def test_books_that_agree_have_no_differences(stories: soak_ledger.Stories) -> None:
    told = soak_ledger.Told(steps=3, ended=dict(ENDED), over=True)
    assert soak_ledger.differences({"r1": told}, stories) == []
    assert soak_ledger.redispatched(stories) == []
    assert soak_ledger.repeated(TOOK, stories) == []
    assert soak_ledger.executed_again(["r1.fan.a", "r1.fan.a", "r1.fan.b"], stories) == []
    assert soak_ledger.unknown_successes(["r1.fan.a.2"], ["r1.fan.b"], stories) == []


COUNTS = {"total": 5, "waiting": 0, "running": 0, "failed": 0, "skipped": 0}


@pytest.mark.parametrize(
    ("status", "succeeded", "cancelled", "differs"),
    [
        ("cancelled", 1, 4, False),
        ("cancelled", 2, 3, True),
        ("cancelled", 1, 3, True),
        ("cancelled", 1, 0, True),
        ("succeeded", 1, 4, True),
    ],
)
def test_steps_that_a_cancelled_run_never_started_are_those_that_it_counts(
    status: str, succeeded: int, cancelled: int, *, differs: bool
) -> None:
    told = soak_ledger.Told(steps=5, ended={"j.a": "succeeded", "j.b": "cancelled"})
    counts = {**COUNTS, "succeeded": succeeded, "cancelled": cancelled}
    assert (told.differs_from(status, counts) is not None) is differs
    assert differs or told.never_started == 3


def test_a_run_whose_story_says_otherwise_is_found(stories: soak_ledger.Stories) -> None:
    other = soak_ledger.Told(steps=3, ended={**ENDED, "fan.a": "failed"})
    missing = soak_ledger.Told(steps=1)
    runs = {"r1": other, "r2": missing}
    assert soak_ledger.differences(runs, stories) == [
        "r1: events and story differ about 1: ['fan.a']",
        "r2: no story in history/",
    ]
    assert soak_ledger.differences({}, stories) == ["r1: nobody started it"]


def test_a_dispatch_that_must_not_have_run_is_found(stories: soak_ledger.Stories) -> None:
    stories.episodes["r1.fan.a.1"] = soak_ledger.Episode("completed", "dispatched")
    took = ["r1.fan.a.1", "r1.fan.b.1", "r1.fan.b.1", "r1.fan.here.1"]
    assert soak_ledger.redispatched(stories) == [
        "r1.fan.a.1: completed, yet the step was dispatched again"
    ]
    assert soak_ledger.repeated(took, stories) == [
        "r1.fan.b.1: started 2 times",
        "r1.fan.here.1: started, but its story knows no lease of it",
    ]


def test_commands_and_results_are_compared_with_the_leases(stories: soak_ledger.Stories) -> None:
    assert soak_ledger.executed_again(["r1.fan.b"] * 2, stories) == [
        "r1.fan.b: executed 2 times with 1 leases"
    ]
    assert soak_ledger.unknown_successes(["r1.fan.a.2"], [], stories) == [
        "r1.fan.b.1: completed, but no worker did it"
    ]


def test_an_event_that_is_missing_or_told_twice_is_found() -> None:
    ledger = soak_ledger.Ledger("http://127.0.0.1:9")
    told = soak_ledger.Told(steps=2)
    end = {"kind": "step_completed", "job": "fan", "step": "a"}
    for event in ({**end, "seq": 1}, {**end, "seq": 3}, {"kind": "run_completed", "seq": 4}):
        ledger._note("r1", told, event)
    assert ledger.problems == [
        "r1: event 3 follows on 1",
        "r1.fan.a: ended twice: succeeded, succeeded",
        "r1: is over, but 1 of 2 steps have an end",
    ]
