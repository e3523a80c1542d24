"""Which socket of a worker's process is its newest: one that it has given up may be heard late.

A server that stood still finds the introductions of several sockets at once, in any order. Taken
for the newest, an old one would have it give up what the worker was given on the new one.
"""

from __future__ import annotations

from controllers.enrollment import EnrollmentRefused
from datastore.kinds import WORKERS
from datastore.store import Store
from swamp.protocol import Enroll

_AGAIN_MS = 1_000


class Dials:
    """By worker: its process, and how many sockets that had dialled when it last enrolled."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest: dict[str, tuple[str, int]] = {}
        store.watch(WORKERS, self._worker_changed)

    def refuse_older(self, worker: str, frame: Enroll) -> None:
        """EnrollmentRefused if its process has enrolled on a newer socket since it said this."""
        instance, dial = self._newest.get(worker, ("", 0))
        if instance == frame.instance and frame.dial < dial:
            raise EnrollmentRefused(
                "replaced",
                f"worker '{worker}' has enrolled on a newer socket meanwhile",
                permanent=False,
                retry_after_ms=_AGAIN_MS,
            )

    def note(self, worker: str, frame: Enroll) -> None:
        """It enrolls on this one."""
        self._newest[worker] = (frame.instance, frame.dial)

    def _worker_changed(self, name: str) -> None:
        if not self._store.has(WORKERS, name):
            self._newest.pop(name, None)
