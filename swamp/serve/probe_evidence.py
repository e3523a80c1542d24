"""What came of probes: their output, kept here and in no run's log, and what they stored.

A probe belongs to no run, so that nothing of it may stay: neither a line nor a file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from datastore.errors import DatastoreError
from datastore.kinds.probe import PROBES
from swamp.serve.output_log import OutputLog
from swamp.serve.step_data import OutputsOfSteps

log = logging.getLogger(__name__)

HEARD_MOST = 64 << 10
"""Characters kept of what one probe prints; its report is far shorter."""


class ProbeOutput:
    """The sessions' `OutputLog`, and the enrollment controller's `ProbeEvidence`."""

    def __init__(self, steps: OutputLog, outputs: OutputsOfSteps) -> None:
        """`steps` takes the output of everything that is no probe."""
        self.outputs = outputs
        self._steps = steps
        self._texts: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def output(
        self,
        run: str,
        dispatch: str,
        number: int,
        event: dict[str, Any],
        written: Callable[[], None],
    ) -> None:
        if run != PROBES:
            self._steps.output(run, dispatch, number, event, written)
            return
        if number > self._counts.get(dispatch, 0):
            self._counts[dispatch] = number
            if event["stream"] == "stdout":
                heard = self.heard(dispatch) + event.get("text", "")
                self._texts[dispatch] = heard[:HEARD_MOST]
        written()

    def output_count(self, run: str, dispatch: str) -> int:
        if run != PROBES:
            return self._steps.output_count(run, dispatch)
        return self._counts.get(dispatch, 0)

    def heard(self, dispatch: str) -> str:
        return self._texts.get(dispatch, "")

    def forget(self, dispatch: str) -> None:
        self._texts.pop(dispatch, None)
        self._counts.pop(dispatch, None)
        asyncio.get_running_loop().run_in_executor(None, self._remove, dispatch)

    def _remove(self, dispatch: str) -> None:
        try:
            self.outputs.forget(dispatch)
        except DatastoreError as error:
            log.warning("an output of probe %s stays until the next start: %s", dispatch, error)
