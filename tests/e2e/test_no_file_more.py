"""A disk that has room, but no file more: the journal can be written, events and records cannot."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
from harness import SWAMP, Repo
from small_disk import take_all_files

NO_EVENTS = "events of runs cannot be written"
NO_RECORDS = "the files of datastore/observed/ cannot be written"


def degraded(repo: Repo) -> str:
    """What the server says is wrong; empty while all is well."""
    with urllib.request.urlopen(f"{repo.url}/health", timeout=8) as answer:
        return json.load(answer)["degraded"] or ""


@pytest.mark.parametrize("form", ["lines", "json", "quiet"])
def test_all_that_is_refused_is_named_and_a_follower_is_told(of_few_files: Repo, form: str) -> None:
    """Regression: the health named the files of records alone, which hold up nobody, and whoever
    followed a run waited for ten minutes without a word."""
    repo = of_few_files
    repo.shell_workflow("w", {"s": "true"})
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    ballast = take_all_files(repo)
    said = repo.base / "said"
    with said.open("w") as file:
        follower = subprocess.Popen(
            [*SWAMP, "workflow", "run", "w", *([] if form == "lines" else [f"--{form}"])],
            cwd=repo.path, env=repo.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=file,
        )  # fmt: skip
    repo.until(lambda: NO_EVENTS in degraded(repo), "the health names events")
    repo.until(lambda: NO_RECORDS in degraded(repo), "the health names files of records")
    assert degraded(repo).index(NO_EVENTS) < degraded(repo).index(NO_RECORDS)
    (finding,) = [one for one in doctor(repo) if one["check"] == "server"]
    assert NO_EVENTS in finding["message"] and NO_RECORDS in finding["message"]
    if form != "quiet":
        repo.until(lambda: NO_EVENTS in told(said), "the follower is told")
    assert follower.poll() is None
    shutil.rmtree(ballast)
    assert follower.wait(60) == 0
    lines = told(said).splitlines()
    if form == "quiet":
        assert lines == []
    else:
        (line,) = lines
        text = json.loads(line)["message"] if form == "json" else line.removeprefix("Warning: ")
        assert text.startswith("nothing arrives, the server is degraded: events of runs")
    repo.until(lambda: not degraded(repo), "all is well")
    assert server.terminate() == 0
    for trouble in (NO_EVENTS, NO_RECORDS):
        assert server.log().count(f"{trouble}: ") <= 2, "when it began, and when it was over"


def told(path: Path) -> str:
    return path.read_text()


def doctor(repo: Repo) -> list[dict[str, str]]:
    found: list[dict[str, str]] = repo.json("doctor", code=1)["findings"]
    return found
