"""Pauses of the queue: what people hold back, and why. Owned by the scheduler."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from datastore.record import Kind, Model, Record


class PauseSpec(Model):
    """What is held back (`desired/pauses/<name>.yaml`): dispatches that ask for all these labels.

    Without labels everything that asks for a worker is held back. What runs goes on.
    """

    labels: dict[str, str] = Field(default_factory=dict)
    paused: bool = True
    note: str | None = None


class PauseStatus(Model):
    """Since when it holds, or no longer does."""

    state: Literal["paused", "resumed"]
    since: str
    desired: str | None = None
    """Digest of the desired file that `spec` came from."""


Pause = Record[PauseSpec, PauseStatus]

PAUSES = Kind(
    folder="pauses",
    title="QueuePause",
    spec=PauseSpec,
    status=PauseStatus,
    moves={
        None: frozenset({"paused", "resumed"}),
        "paused": frozenset({"resumed"}),
        "resumed": frozenset({"paused"}),
    },
    live_states=frozenset({"paused"}),
)
