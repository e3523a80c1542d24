"""What the run controller needs besides the store, given by whoever wires it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from controllers.ports import LocalExecutor, NoData, Offload, RunEvents, StepData
from controllers.run.plan import Defaults
from datastore.clock import Clock
from datastore.definitions.model import ModelDefinition
from datastore.kinds import Call


@dataclass(frozen=True)
class RunContext:
    """What the controller needs besides the store."""

    clock: Clock
    events: RunEvents
    executor: LocalExecutor
    new_uid: Callable[[], str]
    offload: Offload[Any]
    find_model: Callable[[str], ModelDefinition]
    """Looks a model up that a run did not name when it started."""
    check_call: Callable[[Call], object]
    """Raises SwampError for a call that no runner could execute."""
    defaults: Defaults = field(default_factory=Defaults)
    env: dict[str, str] = field(default_factory=dict)
    data: StepData = field(default_factory=NoData)
    only_run: str | None = None
    """The one run that is made to go on; every other one is left to another process."""
