"""Who is connected now, and what passes between the orchestrator and each worker.

Knows frames, not sockets: `gateway` gives each session a transport, simulations give another one.
What goes out waits behind the store's barrier here, so that no frame can tell what is not durable
(promises 1 and 3); only signs of life and cancels do not. Nothing here awaits a worker that does
not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from controllers.enrollment import EnrollmentController, EnrollmentRefused, Hello
from controllers.lease import LeaseController
from controllers.ports import SessionInfo
from datastore.kinds import LEASES, Lease, Pending, is_given_up
from datastore.store import Store
from swamp.execute.redaction import masked_outcome, masked_piece
from swamp.protocol import (
    DRAIN_REASON_MAX,
    PROTOCOL_VERSION,
    Accepted,
    Ack,
    Cancel,
    Dispatch,
    Drain,
    Enroll,
    Enrolled,
    FromWorker,
    Output,
    OutputAck,
    Ping,
    Pong,
    Refused,
    ResultFrame,
    ToWorker,
    encode,
)
from swamp.serve.dials import Dials
from swamp.serve.dispatch_secrets import DispatchSecrets
from swamp.serve.giving_way import GivingWay
from swamp.serve.offers import Offers
from swamp.serve.output_log import OutputLog
from swamp.serve.refusals import degraded, wrong_version
from swamp.serve.session import Session, Transport

log = logging.getLogger(__name__)

HEARTBEAT_S = 15.0
HEARTBEATS_PER_GRACE = 5
"""At least: silence must be noticed, and the worker be back, before the grace window ends."""

SILENCE_HEARTBEATS = 2.5
"""A socket on which nothing arrived for so many heartbeats is cut."""

GRACE_MARGIN = 0.9
"""The worker's own grace window ends a little before ours, so that it never outlives its lease."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What workers are told or held to."""

    grace_s: float
    environment: Mapping[str, str]
    fresh_token: Callable[[str], Awaitable[None]]
    """Has the token's desired file looked at again before it is redeemed."""
    secrets: DispatchSecrets = field(default_factory=DispatchSecrets)
    death_credential: Callable[[str, str], str] = lambda worker, instance: ""
    """What proves that this process of a worker has died."""
    traced: bool = False
    """Whether our spans are sent, so that those of runners have a parent."""

    @property
    def heartbeat_s(self) -> float:
        """How often both ends show that they live."""
        return min(HEARTBEAT_S, self.grace_s / HEARTBEATS_PER_GRACE)


class Sessions:
    """All sessions; the controllers' `WorkerLink`."""

    def __init__(self, store: Store, output: OutputLog, rules: Rules) -> None:
        self._store = store
        self._output = output
        self._rules = rules
        self.heartbeat_s = rules.heartbeat_s
        """How often each session is to be looked after."""
        self._secrets = rules.secrets
        self._offers = Offers(store, self, rules.environment, traced=rules.traced)
        self._open: dict[str, Session] = {}
        self._unwritten: dict[str, int] = {}
        self._results: dict[str, tuple[Session, ResultFrame]] = {}
        self._numbers = 0
        self._dials = Dials(store)
        self._give_way = GivingWay(self._open.get, self._ping, self._dials)
        self._closed = False
        self._leases: LeaseController
        self._enrollment: EnrollmentController
        self._changed: Callable[[str], None]

    def bind(
        self,
        leases: LeaseController,
        enrollment: EnrollmentController,
        changed: Callable[[str], None],
    ) -> None:
        """Tie the sessions to the controllers, which need them to be built."""
        self._leases = leases
        self._enrollment = enrollment
        self._changed = changed
        self._offers.settle = leases.settle

    def is_open(self, session: Session) -> bool:
        """Whether it is the one socket of its worker still."""
        return self._open.get(session.worker) is session

    def silent_s(self, worker: str) -> float | None:
        """How long nothing has come from a worker, seconds; None if it is not connected."""
        session = self._open.get(worker)
        return None if session is None else session.silent_s

    # -- for the controllers ---------------------------------------------------------------------

    def session(self, worker: str) -> SessionInfo | None:
        session = self._open.get(worker)
        return None if session is None else session.info

    def dispatch(self, lease: Lease, pending: Pending) -> None:
        session = self._open.get(lease.spec.worker)
        if session is not None:
            self._offers.make(session, lease, pending, self._secrets)

    def withdraw(self, dispatch: str) -> bool:
        return self._offers.withdraw(dispatch)

    def holds_up(self, dispatch: str) -> bool:
        return dispatch in self._offers or dispatch in self._unwritten

    def cancel(self, worker: str, dispatch: str) -> None:
        session = self._open.get(worker)
        if session is not None:
            self.send(session, Cancel(dispatch=dispatch))

    def drain(self, worker: str, reason: str) -> None:
        session = self._open.get(worker)
        if session is not None:
            self.send(session, Drain(reason=reason[:DRAIN_REASON_MAX]))

    def cut(self, worker: str, reason: str) -> None:
        session = self._open.get(worker)
        if session is not None:
            log.info("worker %s: socket cut: %s", worker, reason)
            session.transport.abort(reason)
            self.closed(session)

    def died(self, worker: str, instance: str) -> int:
        """A process of the worker has died, with proof; how many leases that ended."""
        session = self._open.get(worker)
        if session is not None and session.info.instance == instance:
            self.cut(worker, "its process died")
        return self._leases.instance_died(worker, instance)

    def send(self, session: Session, frame: ToWorker) -> None:
        """Send once everything that memory shows now is durable; nothing if the socket closed."""
        text = encode(frame)

        def go() -> None:
            may_leave = not isinstance(frame, Dispatch) or self._offers.leaves(session, frame)
            if may_leave and self.is_open(session):
                session.welcomed = True
                session.transport.send(text)

        if session.welcomed and isinstance(frame, (Cancel, Ping, Pong)):
            # A sign of life tells nothing that could be undone, and while the disk is full a
            # worker that hears nothing would cut its socket and in the end kill its runners.
            # What fills the disk must be possible to stop; if that wish is lost with us, the
            # worker says that the step was cancelled.
            go()
        else:
            self._store.after_barrier(go)

    def _ping(self, session: Session) -> None:
        self.send(session, Ping(n=session.info.number))

    # -- enrolling -------------------------------------------------------------------------------

    async def enroll(self, frame: Enroll, transport: Transport) -> Session:
        """Enroll a worker and compare the lists of dispatches; EnrollmentRefused says why not."""
        if frame.protocol != PROTOCOL_VERSION:
            raise wrong_version(frame.protocol, frame.version)
        hello = _hello(frame)
        await self._rules.fresh_token(frame.token.partition(".")[0])
        if self._store.trouble is not None:
            raise self._degraded(self._store.trouble, hello, frame)
        name = self._enrollment.expected_name(hello)
        self._dials.refuse_older(name, frame)
        await self._give_way.to(name, frame)
        if self._closed:
            # Whoever was cut comes back at once, and would be left behind as connected.
            raise EnrollmentRefused(
                "stopping", "the orchestrator stops", permanent=False, retry_after_ms=500
            )
        return self._admit(hello, frame, transport)

    def _degraded(self, trouble: str, hello: Hello, frame: Enroll) -> EnrollmentRefused:
        """It cannot be let in now, but told what becomes of all that it runs."""
        with suppress(EnrollmentRefused):
            name = self._enrollment.expected_name(hello)
            self._dials.refuse_older(name, frame)
            if self._leases.would_be_back(name, frame.instance, frame.running):
                return degraded(trouble, grace_s=self._rules.grace_s * GRACE_MARGIN)
            cancel = self._leases.given_up(name, frame.instance, frame.running)
            return degraded(trouble, cancel=cancel)
        return degraded(trouble)

    def is_known(self, frame: Enroll) -> bool:
        """Whether its token is right, as far as memory knows. Costs nothing."""
        with suppress(EnrollmentRefused):
            self._enrollment.redeem(_hello(frame))
            return True
        return False

    def has_met(self, frame: Enroll) -> bool:
        """Whether it is a worker that enrolled before, by a token that is right. Costs nothing."""
        with suppress(EnrollmentRefused):
            return self._enrollment.has_met(_hello(frame))
        return False

    def _admit(self, hello: Hello, frame: Enroll, transport: Transport) -> Session:
        """Everything that makes a worker ours, in one `def`.

        Nothing may be awaited between this and `_give_way`: it cuts whoever is connected.
        """
        self._dials.refuse_older(self._enrollment.expected_name(hello), frame)
        worker = self._enrollment.enroll(hello)
        self._dials.note(worker.name, frame)
        if worker.name in self._open:
            self.cut(worker.name, "replaced by a newer socket of the same worker")
        compared = self._leases.reconnected(
            worker.name, hello.instance, frame.running, frame.finished
        )
        self._numbers += 1
        session = Session(self._numbers, worker.name, hello.instance, transport)
        self._open[worker.name] = session
        kept = (self._store.get(LEASES, name) for name in compared.keep)
        self.send(
            session,
            Enrolled(
                worker=worker.name,
                grace_s=self._rules.grace_s * GRACE_MARGIN,
                heartbeat_s=self._rules.heartbeat_s,
                keep={lease.name: self._output_count(lease) for lease in kept},
                kill=list(compared.kill),
                death_credential=self._rules.death_credential(worker.name, hello.instance),
            ),
        )
        self._changed(worker.name)
        log.info("worker %s: enrolled", worker.name)
        return session

    # -- frames ----------------------------------------------------------------------------------

    def handle(self, session: Session, frame: FromWorker) -> None:
        """Take one frame of an enrolled worker. Each is one plain move."""
        if self._open.get(session.worker) is not session:
            return
        session.heard_at_s = asyncio.get_running_loop().time()
        if not session.may_say(self._store, frame):
            return
        match frame:
            case Accepted():
                self._leases.accepted(session.worker, frame.dispatch)
            case Refused():
                if frame.reason == "worker_draining":
                    # Its own word for that may have been lost. It stays so until it enrolls again.
                    self._enrollment.draining(session.worker)
                self._leases.refused(session.worker, frame.dispatch, frame.reason)
            case Output():
                self._take_output(session, frame)
            case ResultFrame():
                self._take_result(session, frame)
            case Drain():
                self._enrollment.draining(session.worker)
            case Ping():
                self.send(session, Pong(n=frame.n))
            case Pong():
                if session.pong is not None and not session.pong.done():
                    session.pong.set_result(frame.n)
            case Enroll():
                self.cut(session.worker, "enrolled twice on one socket")

    def _output_count(self, lease: Lease) -> int:
        # Of a step that is over, nothing more is kept: its run may have ended, and told so.
        return 0 if is_given_up(lease) else self._output.output_count(lease.spec.run, lease.name)

    def _take_output(self, session: Session, frame: Output) -> None:
        lease = self._store.find(LEASES, frame.dispatch)
        acknowledge = OutputAck(dispatch=frame.dispatch, seq=frame.seq)
        if lease is None or not lease.live or is_given_up(lease):
            self.send(session, acknowledge)
            return
        event: dict[str, Any] = {
            "job": lease.spec.job,
            "step": lease.spec.step,
            "stream": frame.stream,
            **masked_piece(frame.text, frame.data, self._secrets.redactor(lease.name)),
        }
        self._unwritten[frame.dispatch] = self._unwritten.get(frame.dispatch, 0) + 1
        self._output.output(
            lease.spec.run,
            frame.dispatch,
            frame.seq,
            event,
            lambda: self._output_written(session, acknowledge),
        )

    def _output_written(self, session: Session, acknowledge: OutputAck) -> None:
        self.send(session, acknowledge)
        dispatch = acknowledge.dispatch
        self._unwritten[dispatch] -= 1
        if not self._unwritten[dispatch]:
            del self._unwritten[dispatch]
            if dispatch in self._results:
                self._take_result(*self._results.pop(dispatch))

    def _take_result(self, session: Session, frame: ResultFrame) -> None:
        """Settle, once the output is written: with the lease's end the worker forgets it."""
        if frame.dispatch in self._unwritten:
            self._results[frame.dispatch] = (session, frame)
        elif self._open.get(session.worker) is session:
            outcome = masked_outcome(frame.outcome, self._secrets.redactor(frame.dispatch))
            self._leases.settle(session.worker, frame.dispatch, outcome)
            self._secrets.forget(frame.dispatch)
            self.send(session, Ack(dispatch=frame.dispatch))

    def closed(self, session: Session) -> None:
        """The socket is gone."""
        if self._open.get(session.worker) is session:
            del self._open[session.worker]
            self._changed(session.worker)
            left = sum(1 for _ in self._store.by(LEASES, "worker", session.worker))
            loud = logging.WARNING if left and not self._closed else logging.INFO
            log.log(loud, "worker %s: disconnected, runs %d of our steps", session.worker, left)

    def look_after(self, session: Session) -> None:
        """Once per heartbeat: ping, and cut a socket that has been silent for too long."""
        if self._open.get(session.worker) is not session:
            return
        if session.silent_s > SILENCE_HEARTBEATS * self.heartbeat_s:
            self.cut(session.worker, f"silent for {session.silent_s:.0f}s")
        else:
            self.send(session, Ping(n=0))

    def close_all(self, reason: str) -> None:
        """Cut every socket, and let nobody in any more: the orchestrator stops."""
        self._closed = True
        for session in list(self._open.values()):
            session.transport.abort(reason)
            self.closed(session)


def _hello(frame: Enroll) -> Hello:
    return Hello(
        token=frame.token,
        instance=frame.instance,
        machine=frame.machine,
        platform=frame.platform,
        arch=frame.arch,
        version=frame.version,
        capacity=frame.capacity,
        labels=frame.labels,
    )
