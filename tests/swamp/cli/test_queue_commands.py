"""`queue resume` without a server: only what is paused can go on."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from typing import Any

from datastore.layout import Layout


def desired(repo: Layout) -> list[str]:
    return sorted(path.name for path in repo.desired("pauses").glob("*.yaml"))


def test_what_is_not_paused_cannot_be_resumed_and_leaves_nothing(repo: Layout, swamp: Any) -> None:
    """Regression: it claimed success and left a file, which became a record."""
    refused = swamp("queue", "resume", "--label", "pool=gpu")
    assert refused.code == 1
    assert refused.err == "Error: nothing is paused for pool=gpu; paused now: nothing\n"
    assert desired(repo) == []
    assert swamp("queue", "pause", "--label", "pool=cpu").code == 0
    refused = swamp("queue", "resume")
    assert refused.code == 1
    assert refused.err == (
        "Error: nothing is paused for the whole queue; paused now: pool=cpu (pool-cpu)\n"
    )
    assert desired(repo) == ["pool-cpu.yaml"]


def test_what_was_resumed_before_any_server_ran_is_not_paused(repo: Layout, swamp: Any) -> None:
    assert swamp("queue", "pause").code == 0
    assert swamp("queue", "resume").code == 0
    assert "nothing is paused for the whole queue" in swamp("queue", "resume").err


def test_a_pause_that_a_person_named_is_resumed_by_its_labels(repo: Layout, swamp: Any) -> None:
    path = repo.desired("pauses") / "disk-swap.yaml"
    path.write_text("spec:\n  labels: {pool: gpu}\n")
    resumed = swamp("queue", "resume", "--label", "pool=gpu", "--json").json
    assert (resumed["name"], resumed["state"]) == ("disk-swap", "resumed")
    assert path.read_text() == "spec:\n  labels: {pool: gpu}\n  paused: false\n"


def test_a_running_server_says_what_is_paused(server: Any, repo: Layout, swamp: Any) -> None:
    listed = [
        {"name": "all", "state": "resumed", "labels": {}},
        {"name": "pool-a", "state": "paused", "labels": {"pool": "a"}},
    ]
    server.answers["GET", "/api/v1/pauses"] = (200, listed)
    assert "paused now: pool=a (pool-a)" in swamp("queue", "resume").err
    assert desired(repo) == []


def test_what_was_asked_without_a_server_is_listed_as_coming(repo: Layout, swamp: Any) -> None:
    assert swamp("queue", "pause", "--note", "disk swap").code == 0
    (listed,) = swamp("queue", "list", "--json").json
    assert listed == {
        "name": "all", "state": "paused", "labels": {}, "note": "disk swap", "atNextStart": True,
    }  # fmt: skip
    shown = swamp("queue", "list").out.splitlines()[-1]
    assert "paused" in shown
    assert "at the next start" in shown


def test_nothing_to_explain_is_wrong_usage(repo: Layout, swamp: Any) -> None:
    refused = swamp("worker", "queue", "--explain", "")
    assert refused.code == 2
    assert "--explain needs the name of a step that waits" in refused.err


def test_a_watched_queue_is_shown_at_once_and_ends_with_its_reader(repo: Layout) -> None:
    """Regression: through a pipe, nothing came before kilobytes, and nobody saw the reader go."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "swamp", "worker", "queue", "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=repo.root, env=env) as watching:
        try:
            assert watching.stdout is not None
            assert select.select([watching.stdout], [], [], 30.0)[0]
            assert json.loads(watching.stdout.readline()) == []
            watching.stdout.close()
            assert watching.wait(30.0) == 141
        finally:
            watching.kill()
