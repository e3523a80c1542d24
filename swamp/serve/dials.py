"""Which socket of a worker is its newest: one that it has given up may be heard late.

A server that stood still finds the introductions of several sockets at once, in any order, those of
processes that have ended among them. Taken for the newest, an old one would have it give up what
the worker was given on the new one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from controllers.enrollment import EnrollmentRefused
from datastore.kinds import WORKERS
from datastore.store import Store
from swamp.protocol import Enroll

_AGAIN_MS = 1_000


class _Newest(NamedTuple):
    machine: str
    instance: str
    dial: int


class Dials:
    """By worker: on which socket of which process of which machine it last enrolled."""

    def __init__(self, store: Store, is_open: Callable[[str], bool]) -> None:
        """`is_open`: whether a worker has a socket."""
        self._store = store
        self._is_open = is_open
        self._newest: dict[str, _Newest] = {}
        store.watch(WORKERS, self._worker_changed)

    def refuse_older(self, worker: str, frame: Enroll) -> None:
        """EnrollmentRefused if it has enrolled on a newer socket since this was said.

        Of another process only while that one is there: a machine may have lost its count.
        """
        newest = self._newest.get(worker)
        if newest is None or newest.machine != frame.machine or newest.dial <= frame.dial:
            return
        if newest.instance == frame.instance or self._is_open(worker):
            raise EnrollmentRefused(
                "replaced",
                f"worker '{worker}' has enrolled on a newer socket of its machine meanwhile",
                permanent=False,
                retry_after_ms=_AGAIN_MS,
            )

    def note(self, worker: str, frame: Enroll) -> None:
        """It enrolls on this one."""
        self._newest[worker] = _Newest(frame.machine, frame.instance, frame.dial)

    def _worker_changed(self, name: str) -> None:
        if not self._store.has(WORKERS, name):
            self._newest.pop(name, None)
