"""What a dispatch is about: the call, and its outcome. All that a worker needs of the records."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from datastore.record import Model


class Call(Model):
    """What to execute: a method of a model with its arguments, expressions resolved."""

    model_type: str
    model: str
    method: str
    arguments: dict[str, Any] = Field(default_factory=dict)

    @property
    def model_key(self) -> str:
        """What the lock of the model goes by."""
        return model_key(self.model_type, self.model)


def model_key(model_type: str, name: str) -> str:
    """One text per model: `<type>/<name>`."""
    return f"{model_type}/{name}"


class Outcome(Model):
    """How an execution ended. `reason` tells apart what an exit code cannot.

    Reasons: `completed`, `failed` (exit code not 0), `signalled`, `timed_out` (the step's own
    timeout), `not_found` and `start_failed` (nothing ran), `cancelled`, `worker_lost`.
    """

    ok: bool
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    duration_ms: int = 0
    stdout: str = ""
    stderr: str = ""
    error: str | None = None
