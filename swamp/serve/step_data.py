"""What steps write and read, as the run controller sees it: outputs on disk, secrets in vaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controllers.expression_references import DataRef
from datastore.kinds import LEASES, RUNS, STEPS, Call, WrittenOutput
from datastore.kinds.probe import PROBE_MODEL, PROBES
from datastore.outputs import OutputFiles, StoredOutput
from datastore.store import Store

CheckCall = Callable[[Call], None]


class OutputsOfSteps:
    """The run controller's `StepData`."""

    def __init__(self, files: OutputFiles, check_secrets: CheckCall) -> None:
        self.files = files
        self._check_secrets = check_secrets
        self._written: dict[str, list[WrittenOutput]] = {}

    def load(self, store: Store) -> None:
        """Learn what is there, also of dispatches that an earlier process started. Blocks."""
        self.files.load()
        for stored in self.files.of_models({PROBE_MODEL}):
            if stored.origin.run == PROBES:
                self.files.remove(stored)
        models = {lease.spec.model for lease in store.live(LEASES)}
        models |= {step.spec.call.model for step in store.live(STEPS) if step.spec.call is not None}
        live = {run.name for run in store.live(RUNS)}
        for stored in self.files.of_models(models):
            if stored.origin.run in live:
                self.note(stored)

    def note(self, stored: StoredOutput) -> None:
        """A dispatch has written an output."""
        written = WrittenOutput(name=stored.name, version=stored.version, size=stored.size)
        self._written.setdefault(stored.origin.dispatch, []).append(written)

    def latest_of(self, dispatch: str, name: str) -> int | None:
        """The version of an output that a dispatch under way has written last, None without any."""
        versions = [one.version for one in self._written.get(dispatch, ()) if one.name == name]
        return max(versions, default=None)

    def forget(self, dispatch: str) -> None:
        """A dispatch has ended that is no step's: remove what it has written. Blocks."""
        for written in self._written.pop(dispatch, []):
            stored = self.files.read(PROBE_MODEL, written.name, written.version)
            self.files.remove(stored)

    def written_by(self, dispatch: str) -> list[WrittenOutput]:
        """What the dispatch has written. Asked at its end; nothing is kept after that."""
        return self._written.pop(dispatch, [])

    def read(self, ref: DataRef) -> Any:
        return self.files.content(ref.model, ref.name, ref.version)

    def check_secrets(self, call: Call) -> None:
        self._check_secrets(call)
