"""SIGTERM to a command that starts or follows a run: at any moment it says how the run stands."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from datastore.layout import Layout
from swamp.client import Client

WORKFLOW = """
name: w
jobs: [{name: j, steps: [{name: s, task: {type: model_method, modelType: command/shell,
        modelName: m, methodName: execute, inputs: {run: "true"}}}]}]
"""


def terminates(*arguments: Any, **options: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.sigtimedwait([signal.SIGUSR1], 5)


def test_while_the_server_takes_the_run_on(
    repo: Layout, swamp: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo.workflows / "w.yaml").write_text(WORKFLOW)
    monkeypatch.setattr(Client, "post", terminates)
    found = swamp("workflow", "run", "w")
    assert found.code == 143
    assert "may have taken the run on already; see: swamp run list" in found.err


def test_a_second_one_while_the_first_one_cancels(
    repo: Layout, swamp: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo.workflows / "w.yaml").write_text(WORKFLOW)
    server.answers["POST", "/api/v1/runs"] = (201, {"id": "r1", "workflow": "w"})
    server.on_events = lambda: os.kill(os.getpid(), signal.SIGTERM)
    post = Client.post

    def post_slowly(self: Client, path: str, *more: Any) -> Any:
        return terminates() if path.endswith("/cancel") else post(self, path, *more)

    monkeypatch.setattr(Client, "post", post_slowly)
    found = swamp("workflow", "run", "w", "--on-interrupt", "cancel")
    assert found.code == 143
    assert "The run goes on. Watch it: swamp run watch r1" in found.err
