"""Which socket of a worker is its newest: one that it has given up may be heard late.

A server that stood still finds the introductions of several sockets at once, in any order, those of
processes that have ended among them. Taken for the newest, an old one would have it give up what
the worker was given on the new one.
"""

from __future__ import annotations

from typing import NamedTuple

from controllers.enrollment import EnrollmentRefused
from datastore.kinds import WORKERS
from datastore.store import Store
from swamp.protocol import Enroll

_AGAIN_MS = 1_000
_SHOW_YOU_LIVE_MS = 100


class _Newest(NamedTuple):
    machine: str
    instance: str
    dial: int


class _Doubted(NamedTuple):
    instance: str
    dial: int


class Dials:
    """By worker: on which socket of which process of which machine it last enrolled."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest: dict[str, _Newest] = {}
        self._doubted: dict[str, _Doubted] = {}
        store.watch(WORKERS, self._worker_changed)

    def refuse_older(self, worker: str, frame: Enroll) -> None:
        """EnrollmentRefused if its process has enrolled on a newer socket since this was said."""
        newest = self._newest.get(worker)
        if newest and newest.instance == frame.instance and self._is_older(worker, frame):
            raise _replaced(worker, "meanwhile", _AGAIN_MS)

    def refuse_earlier(self, worker: str, frame: Enroll) -> None:
        """EnrollmentRefused if another process of its machine has enrolled that started later.

        This one may have ended, or the machine has lost its count. It is asked to dial once more,
        and is then `is_back`: who has ended does not.
        """
        if self._is_older(worker, frame):
            doubted = self._doubted.get(worker)
            same = doubted is not None and doubted.instance == frame.instance
            dial = max(frame.dial, doubted.dial) if doubted and same else frame.dial
            self._doubted[worker] = _Doubted(frame.instance, dial)
            raise _replaced(worker, "and has to show that this process lives", _SHOW_YOU_LIVE_MS)

    def is_back(self, worker: str, frame: Enroll) -> bool:
        """Whether it has dialled once more since `refuse_earlier`.

        To be asked when its introduction is read: several of one that has ended are read at once.
        """
        doubted = self._doubted.get(worker)
        return bool(doubted and doubted.instance == frame.instance and doubted.dial < frame.dial)

    def note(self, worker: str, frame: Enroll) -> None:
        """It enrolls on this one."""
        self._newest[worker] = _Newest(frame.machine, frame.instance, frame.dial)
        self._doubted.pop(worker, None)

    def _is_older(self, worker: str, frame: Enroll) -> bool:
        newest = self._newest.get(worker)
        return newest is not None and newest.machine == frame.machine and newest.dial > frame.dial

    def _worker_changed(self, name: str) -> None:
        if not self._store.has(WORKERS, name):
            self._newest.pop(name, None)
            self._doubted.pop(name, None)


def _replaced(worker: str, more: str, retry_after_ms: int) -> EnrollmentRefused:
    return EnrollmentRefused(
        "replaced",
        f"worker '{worker}' has enrolled on a newer socket of its machine {more}",
        permanent=False,
        retry_after_ms=retry_after_ms,
    )
