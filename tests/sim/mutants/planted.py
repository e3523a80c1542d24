"""Planted bugs, a few lines each. Some seed must catch every one of them, or the rig is blind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import controllers.pool
from controllers import lease
from controllers.controller import RESYNC_S
from controllers.disk_hold import DiskHold
from controllers.lease import Comparison, LeaseController
from controllers.model_locks import ModelLocks
from controllers.placement import takes_probes
from controllers.pool import WorkerPool
from controllers.run.controller import RunController
from controllers.run.live import LiveRun
from controllers.run.starter import Starter
from controllers.scheduler import Scheduler
from datastore.kinds import LEASES, Lease
from datastore.store import Store
from swamp.protocol import Ack, ResultFrame, ToWorker, encode
from swamp.serve.sessions import Session, Sessions
from swamp.worker import link
from swamp.worker.link import Link


@contextmanager
def count_a_dispatch_twice() -> Iterator[None]:
    """Seed #3293: leases and reservations are added up, so a running dispatch takes two slots."""

    def load(self: WorkerPool, worker: str) -> int:
        return 2 * self._store.count_by(LEASES, "worker", worker)

    with patch.object(WorkerPool, "_load", load):
        yield


@contextmanager
def decide_across_an_await() -> Iterator[None]:
    """What a decision reads of a worker's load was read before an await: others decided since."""

    def load(self: WorkerPool, worker: str) -> int:
        read: dict[str, int] = self.__dict__.setdefault("read_before", {})
        if worker not in read:
            read[worker] = self._store.count_by(LEASES, "worker", worker)
            asyncio.get_running_loop().call_soon(read.pop, worker, None)
        return read[worker]

    with patch.object(WorkerPool, "_load", load):
        yield


@contextmanager
def ignore_the_lock_of_models() -> Iterator[None]:
    """A step is started however many execute its model."""
    with patch.object(ModelLocks, "full", lambda self, model, concurrency: False):
        yield


@contextmanager
def forget_that_a_model_is_free() -> Iterator[None]:
    """Nobody is woken when an execution of a model ends."""
    with patch.object(Scheduler, "_wake_model", lambda self, model: None):
        yield


@contextmanager
def give_steps_to_the_unverified() -> Iterator[None]:
    """Hazard 17: whoever can be probed gets steps, too."""
    with patch.object(controllers.pool, "available", takes_probes):
        yield


@contextmanager
def acknowledge_before_the_barrier() -> Iterator[None]:
    """A result is acknowledged as soon as memory shows it."""
    real = Sessions.send

    def send(self: Sessions, session: Session, frame: ToWorker) -> None:
        if isinstance(frame, Ack):
            session.transport.send(encode(frame))
        else:
            real(self, session, frame)

    with patch.object(Sessions, "send", send):
        yield


@contextmanager
def keep_a_lease_that_the_worker_lacks() -> Iterator[None]:
    """A worker that comes back without a runner keeps its lease."""
    real = LeaseController.reconnected

    def reconnected(
        self: LeaseController, worker: str, instance: str, running: Any, finished: Any
    ) -> Comparison:
        held = [lease.name for lease in self._store.by(LEASES, "worker", worker)]
        return real(self, worker, instance, [*running, *held], finished)

    with patch.object(LeaseController, "reconnected", reconnected):
        yield


@contextmanager
def forget_what_an_earlier_process_started() -> Iterator[None]:
    """A run that was cancelled before a restart ends over the heads of its steps."""

    async def catch_up(self: Starter, live: LiveRun, known: Any) -> None:
        return None

    with patch.object(Starter, "catch_up", catch_up):
        yield


@contextmanager
def settle_before_the_output_is_written() -> Iterator[None]:
    """A result is taken while output that came before it is still on its way to the file."""

    def take_result(self: Sessions, session: Session, frame: ResultFrame) -> None:
        self._leases.settle(session.worker, frame.dispatch, frame.outcome)
        self.send(session, Ack(dispatch=frame.dispatch))

    with patch.object(Sessions, "_take_result", take_result):
        yield


@contextmanager
def leave_the_end_of_a_run_untold() -> Iterator[None]:
    """A run that ended just before a crash keeps a log without an end."""
    with patch.object(RunController, "tell_again", lambda self, names: None):
        yield


@contextmanager
def run_what_waited_in_the_socket() -> Iterator[None]:
    """A worker that stood still trusts what it finds in its socket."""

    def look(self: Link) -> None:
        self._beat_at = link.real_time.now_s()

    with patch.object(Link, "_look_for_standstill", look):
        yield


@contextmanager
def let_go_of_what_a_lost_worker_may_still_run() -> Iterator[None]:
    """The lease of a cancelled step ends at once where its worker is away."""
    while_away = LeaseController._while_away

    def let_go(self: LeaseController, lease: Lease) -> Any:
        if not lease.spec.cancel:
            return while_away(self, lease)
        self._end_cancelled(lease)
        return None

    with patch.object(LeaseController, "_while_away", let_go):
        yield


@contextmanager
def believe_in_a_socket_after_a_standstill() -> Iterator[None]:
    """A worker that stood still waits for an answer as long as for any other sign of life."""
    with patch.object(link, "WOKEN_HEARTBEATS", 60.0):
        yield


@contextmanager
def let_windows_end_on_a_full_disk() -> Iterator[None]:
    """Who is kept out only as the disk refuses writes is given up like anybody else."""
    with patch.object(LeaseController, "would_be_back", lambda self, *who: False):
        yield


@contextmanager
def place_steps_on_a_full_disk() -> Iterator[None]:
    """A slot is given away though the dispatch cannot leave, and its worker blamed for that."""
    with (
        patch.object(DiskHold, "on", lambda self: False),
        patch.object(lease, "LOOK_S", 1e9),
        patch.object(Sessions, "holds_up", lambda self, dispatch: False),
        patch.object(Store, "trouble", None),
        patch.object(Store, "hold", None),
    ):
        yield


@contextmanager
def nothing() -> Iterator[None]:
    """No bug in the code: used where a setting is the bug."""
    yield


@dataclass(frozen=True)
class Planted:
    """A bug: how to plant it, and what the violation says that it causes."""

    plant: Callable[[], AbstractContextManager[None]]
    shows_as: str
    resync_s: float | None = RESYNC_S
    rare: bool = False
    """Needs several things to go wrong at once; the other ones show within 50 seeds."""
    only_disk: bool = False
    """Shows where nothing goes wrong but the disk."""


PLANTED = {
    "count a dispatch twice": Planted(count_a_dispatch_twice, "beside a free slot"),
    "decide across an await": Planted(decide_across_an_await, "live leases on"),
    "no resync": Planted(nothing, "not over|beside a free slot", resync_s=None),
    "ignore the lock of models": Planted(ignore_the_lock_of_models, "model lock"),
    "forget that a model is free": Planted(
        forget_that_a_model_is_free, "beside a free slot", rare=True
    ),
    "give steps to the unverified": Planted(give_steps_to_the_unverified, "unverified worker"),
    "acknowledge before the barrier": Planted(acknowledge_before_the_barrier, "promise 3"),
    "keep a lease that the worker lacks": Planted(keep_a_lease_that_the_worker_lacks, "not over"),
    "forget what an earlier process started": Planted(
        forget_what_an_earlier_process_started, "counts|not over|goes on|never told", rare=True
    ),
    "settle before the output is written": Planted(
        settle_before_the_output_is_written, "printed", rare=True
    ),
    "leave the end of a run untold": Planted(
        leave_the_end_of_a_run_untold, "never told|last event", rare=True
    ),
    "run what waited in the socket": Planted(
        run_what_waited_in_the_socket,
        "starts (after|while)|runners of|after its machine woke",
        rare=True,
    ),
    "believe in a socket after a standstill": Planted(
        believe_in_a_socket_after_a_standstill,
        "after its machine woke|starts while|runners of",
        rare=True,
    ),
    "let go of what a lost worker may still run": Planted(
        let_go_of_what_a_lost_worker_may_still_run, "runners of", rare=True
    ),
    "let windows end on a full disk": Planted(
        let_windows_end_on_a_full_disk, "only the disk was at fault", only_disk=True
    ),
    "place steps on a full disk": Planted(
        place_steps_on_a_full_disk, "for what the disk holds up", only_disk=True
    ),
}
"""Those that are rare were real: the rig found them."""
