"""What controllers need from outside, as protocols: `swamp` implements them, so does the simulator.

Everything here is a plain call. What goes out by them waits behind the store's barrier inside the
implementation, so that no controller can forget it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from controllers.expression_references import DataRef
from datastore.errors import NotFound
from datastore.kinds import Call, Lease, Outcome, Pending, WrittenOutput

R = TypeVar("R")
Offload = Callable[[Callable[[], R]], Awaitable[R]]
"""Runs something slow away from the event loop."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """An enrolled worker's open socket. `number` differs for every socket there ever was."""

    number: int
    instance: str


class WorkerLink(Protocol):
    """The sockets of enrolled workers."""

    def session(self, worker: str) -> SessionInfo | None:
        """The worker's open socket, None without one."""

    def dispatch(self, lease: Lease, pending: Pending) -> None:
        """Send the dispatch once the lease is durable; it is lost if the socket closes first."""

    def withdraw(self, dispatch: str) -> bool:
        """Never send a dispatch that has not left yet; False if it has."""

    def holds_up(self, dispatch: str) -> bool:
        """Whether something about it, to its worker or from there, waits for our own disk."""

    def cancel(self, worker: str, dispatch: str) -> None:
        """Ask the worker to stop this runner, at once: it was sent there before."""

    def drain(self, worker: str, reason: str) -> None:
        """Ask the worker to take nothing more, finish what runs, and leave."""

    def cut(self, worker: str, reason: str) -> None:
        """Close the worker's socket at once."""


class LocalExecutor(Protocol):
    """Runs steps without a placement on the orchestrator itself."""

    def running(self, step: str) -> bool:
        """Whether this process runs the step (a step record's name) now."""

    def start(self, step: str, call: Call, timeout_s: float | None) -> None:
        """Start it once its record is durable; its end is told to the run controller."""

    def stop(self, step: str) -> None:
        """Stop it; its end is still told."""


class RunEvents(Protocol):
    """The numbered event log of each run."""

    def emit(self, run: str, key: str, kind: str, **fields: Any) -> None:
        """Append an event once everything committed so far is durable.

        A second event with the same key is dropped, so that telling again after a restart is safe.
        """


class StepData(Protocol):
    """What steps write and what they must not show."""

    def written_by(self, dispatch: str) -> list[WrittenOutput]:
        """The outputs of a dispatch, or of a step that runs on the orchestrator itself."""

    def read(self, ref: DataRef) -> Any:
        """The content of an output; SwampError says why there is none. Blocks."""

    def check_secrets(self, call: Call) -> None:
        """SwampError when the call asks for a secret that is not there. Blocks if it asks."""


class NoData:
    """Nothing is written, nothing can be read."""

    def written_by(self, dispatch: str) -> list[WrittenOutput]:
        return []

    def read(self, ref: DataRef) -> Any:
        raise NotFound(f"model '{ref.model}' has no output '{ref.name}'")

    def check_secrets(self, call: Call) -> None:
        pass


class ProbeEvidence(Protocol):
    """What came of a probe besides its records."""

    def heard(self, dispatch: str) -> str:
        """What the runner has printed, as it came back piece by piece."""

    def forget(self, dispatch: str) -> None:
        """Leave nothing of it, its output included; what blocks is done elsewhere."""


class NothingHeard:
    """Nothing comes back."""

    def heard(self, dispatch: str) -> str:
        return ""

    def forget(self, dispatch: str) -> None:
        pass


LocalEnded = Callable[[str, Outcome], None]

ForgetEvents = Callable[[str, Callable[[], None]], None]
"""Removes the event log of a finished run once everything committed so far is durable, then calls
back. A plain call: nobody waits for the disk in it."""
