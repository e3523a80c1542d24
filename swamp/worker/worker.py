"""A worker's life: enroll, take work, lose the socket and come back, drain, end.

Losing the socket loses no work: runners go on for the grace that the orchestrator told, and what
they owe is handed over on the next socket. Only a drain, a signal or a permanent refusal ends it.
"""

from __future__ import annotations

import asyncio
import platform
import random
import ssl
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import aiohttp
from pydantic import ValidationError

import swamp
from datastore.kinds.probe import PROBE_TYPE
from swamp.execute.execution import Host
from swamp.protocol import (
    PROTOCOL_VERSION,
    Ack,
    Cancel,
    Dispatch,
    Drain,
    Enroll,
    Enrolled,
    OutputAck,
    ToWorker,
    calling_card,
)
from swamp.tls import client_context
from swamp.worker import real_time
from swamp.worker.grace import GraceWindow
from swamp.worker.link import (
    RETRIES_PER_GRACE,
    RETRY_MAX_S,
    STABLE_S,
    Backoff,
    EnrollmentRefused,
    Link,
    SocketLost,
    dial,
)
from swamp.worker.machine import Machine
from swamp.worker.options import BadOptions, WorkerOptions, data_url, death_url, socket_url
from swamp.worker.runners import CUT_OFF, LOST, Runners
from swamp.worker.slots import Slots

EXIT_DRAINED = 0
EXIT_FAILED = 1
EXIT_REFUSED = 3
EXIT_FORCED = 4

FORCED_TERM_S = 2.0
"""What runners get between TERM and KILL once the worker may not wait any longer, seconds."""
FORCED_FLUSH_S = 2.0
"""How long the worker then waits for its last results to be acknowledged, seconds."""

Event = dict[str, Any]


class _Exit(NamedTuple):
    """How it ends: the exit code, the reason, and more of it for people."""

    code: int
    reason: str
    detail: str | None = None


class Worker:
    """One worker. `run` once; `signal`, `hang_up` and `drain` from the event loop."""

    def __init__(
        self,
        options: WorkerOptions,
        machine: Machine,
        host: Host,
        report: Callable[[Event], None],
        randomness: random.Random,
    ) -> None:
        self._options = options
        self._machine = machine.id
        self._report_event = report
        self._watch = host.watch
        self._url = socket_url(options.url)
        self._instance = str(uuid.uuid4())
        self._loop = asyncio.get_running_loop()
        self._runners = Runners(
            Slots(options.concurrency),
            host,
            self._report,
            self._ended_one,
            data_url(options.url),
            options.ca_cert,
        )
        self._backoff = Backoff(randomness)
        self._tasks = asyncio.TaskGroup()
        self._over = asyncio.Event()
        self._link: Link | None = None
        self._enrolled: Enrolled | None = None
        self._attempt, self._dials = 0, machine.dials
        self._steps_taken = 0
        self._signalled = False
        self._exit: _Exit | None = None
        self._grace = GraceWindow(host.watch, self._grace_over)
        self._idle: asyncio.TimerHandle | None = None
        self._deadlines: list[asyncio.TimerHandle] = []
        try:
            self._introduction()
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise BadOptions(f"the worker's {where} cannot be: {first['msg']}") from None

    async def run(self) -> int:
        """Work until the end; the exit code. TlsError when nobody can be trusted."""
        try:
            trust = await self._trust()
            async with self._tasks:
                connection = self._tasks.create_task(self._stay_connected(trust))
                try:
                    await self._over.wait()
                finally:
                    # Also when this is cancelled itself.
                    self._over.set()
                connection.cancel()
        finally:
            self._grace.stop()
            for timer in (self._idle, *self._deadlines):
                if timer is not None:
                    timer.cancel()
        assert self._exit is not None
        self._report("stopped", reason=self._exit.reason, detail=self._exit.detail)
        return self._exit.code

    def signal(self) -> None:
        """A signal to end: the first one drains, the next one does not wait."""
        if self._signalled:
            self._force("signal")
        self.hang_up()

    def hang_up(self) -> None:
        """The terminal has gone: a signal to end that never is the second one.

        A shell whose terminal is closed passes SIGHUP on, and the kernel sends another.
        """
        self._signalled = True
        self.drain("signal")

    def drain(self, reason: str, detail: str | None = None) -> None:
        """Take nothing more, finish what runs, hand it over, end. The first reason counts.

        `detail`: more of it, for people.
        """
        if self._runners.slots.draining:
            return
        self._runners.slots.draining = True
        self._exit = _Exit(EXIT_DRAINED, reason, detail)
        self._report("draining", reason=reason, detail=detail)
        if self._link is not None:
            self._runners.outbox.say(Drain(reason=reason))
        if self._options.drain_timeout_s is not None:
            self._later(self._options.drain_timeout_s, lambda: self._force("drain timed out"))
        self._check_over()

    # --- the connection

    async def _stay_connected(self, trust: ssl.SSLContext | bool) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as http:
            while True:
                self._attempt += 1
                self._dials += 1
                self._report("connecting", url=self._options.url, attempt=self._attempt)
                reason, delay_s = await self._one_socket(http)
                if self._over.is_set():
                    # The socket was lost at the very moment of the end: its error came instead of
                    # our cancellation.
                    return
                if delay_s is None:
                    self._abandon_all(EXIT_REFUSED, reason)
                    return
                self._report("disconnected", reason=reason)
                if not self._options.reconnect:
                    self._abandon_all(EXIT_FAILED, reason)
                    return
                self._report("retrying", delayMs=round(delay_s * 1000))
                await asyncio.sleep(delay_s)

    async def _trust(self) -> ssl.SSLContext | bool:
        """Whom to trust over TLS. Without TLS nobody has to wait for the authorities to be read."""
        if self._options.ca_cert is None and self._url.startswith("ws:"):
            return True
        return await asyncio.to_thread(client_context, self._options.ca_cert)

    async def _one_socket(self, http: aiohttp.ClientSession) -> tuple[str, float | None]:
        """Why the socket is lost, and after how long to try again; None for never."""
        try:
            link = await dial(http, self._url, calling_card(self._options.token, self._machine))
        except SocketLost as lost:
            return str(lost), self._next_retry_s()
        except EnrollmentRefused as refused:
            return str(refused), self._backoff.told_s(refused.retry_after_s)
        began, asked_s = self._loop.time(), real_time.now_s()
        try:
            await self._serve(link)
            return "closed", self._next_retry_s()
        except EnrollmentRefused as refused:
            if self._enrolled is not None and refused.grace_s > 0:
                ends_s = asked_s + refused.grace_s
                self._grace.lasts_until(ends_s, ends_s)
            for dispatch in refused.cancel:
                self._runners.cancel(dispatch)
            told_s = self._backoff.told_s(refused.retry_after_s)
            return str(refused), None if refused.permanent else told_s
        except SocketLost as lost:
            # A peer that hung must not hold up the goodbye.
            link.cut()
            if self._loop.time() - began >= STABLE_S:
                self._backoff.reset()
            return str(lost), self._next_retry_s()
        finally:
            if self._link is link:
                self._start_grace(link)
            self._link = None
            await link.close()

    def _next_retry_s(self) -> float:
        if self._enrolled is None or self._runners.settled:
            return self._backoff.next_s()
        return self._backoff.next_s(min(RETRY_MAX_S, self._enrolled.grace_s / RETRIES_PER_GRACE))

    async def _serve(self, link: Link) -> None:
        enrolled = await link.enroll(self._introduction())
        if any(name not in self._runners.outbox for name in enrolled.keep):
            # The grace window ended meanwhile. The next introduction says what is left.
            raise SocketLost("the orchestrator keeps steps that were given up while it answered")
        again = self._enrolled is not None
        self._link, self._enrolled, self._attempt = link, enrolled, 0
        self._grace.stop()
        self._report("enrolled", workerId=enrolled.worker, reconnect=again)
        self._watch.tell_death_to(
            death_url(self._options.url, enrolled.worker),
            self._instance,
            enrolled.death_credential,
        )
        outbox = self._runners.outbox
        outbox.new_socket()
        self._runners.settle(enrolled)
        if self._runners.slots.draining:
            outbox.say(Drain(reason=self._exit.reason if self._exit else ""))
        if not again:
            self._start_idle()
        self._check_over()
        self._put_off(link, enrolled)
        await link.serve(outbox, self._handle, lambda: self._put_off(link, enrolled))

    def _put_off(self, link: Link, enrolled: Enrolled) -> None:
        ends_s = max(link.ends_s(enrolled.grace_s), real_time.now_s() + enrolled.heartbeat_s)
        self._grace.put_off(ends_s, link.sure_until_s(enrolled.grace_s))

    def _introduction(self) -> Enroll:
        runners = self._runners
        return Enroll(
            protocol=PROTOCOL_VERSION,
            version=swamp.__version__,
            token=self._options.token,
            instance=self._instance,
            machine=self._machine,
            platform=platform.system().lower(),
            arch=platform.machine(),
            labels=dict(self._options.labels),
            capacity=runners.slots.capacity,
            running=[name for name in runners.slots.taken() if name in runners.outbox],
            finished=runners.outbox.finished(),
            dial=self._dials,
        )

    def _handle(self, frame: ToWorker) -> None:
        if isinstance(frame, Dispatch):
            self._take(frame)
        elif isinstance(frame, Cancel):
            self._runners.cancel(frame.dispatch)
        elif isinstance(frame, OutputAck):
            delivery = self._runners.outbox.of(frame.dispatch)
            if delivery is not None:
                delivery.acknowledge(frame.seq)
        elif isinstance(frame, Ack):
            self._runners.outbox.close(frame.dispatch)
            self._check_over()
        elif isinstance(frame, Drain):
            self.drain("shutdown", frame.reason or None)
        else:
            raise SocketLost(f"the orchestrator sent '{frame.type}' out of turn")

    # --- work

    def _take(self, frame: Dispatch) -> None:
        if not self._runners.take(frame, self._tasks):
            return
        if self._idle is not None:
            self._idle.cancel()
        if frame.call.model_type == PROBE_TYPE:
            # A worker for one step has to show that it works before it gets that step.
            return
        self._steps_taken += 1
        if self._steps_taken == self._options.max_dispatches:
            self.drain("max-dispatches")

    def _ended_one(self) -> None:
        if not len(self._runners.slots):
            self._start_idle()
        self._check_over()

    def _start_idle(self) -> None:
        limit_s = self._options.idle_timeout_s
        if limit_s is not None and not len(self._runners.slots):
            if self._idle is not None:
                self._idle.cancel()
            self._idle = self._loop.call_later(limit_s, self.drain, "idle-timeout")

    def _start_grace(self, link: Link) -> None:
        if self._enrolled is not None:
            # From when it was last heard: the orchestrator may have counted from there.
            grace_s = self._enrolled.grace_s
            self._grace.lasts_until(link.ends_s(grace_s), link.sure_until_s(grace_s))

    def _grace_over(self) -> None:
        # The orchestrator has given these leases up and may run the steps elsewhere by now.
        self._runners.abandon_running(CUT_OFF)
        if self._runners.slots.draining:
            self._runners.outbox.close_all()
        self._check_over()

    # --- the end

    def _force(self, reason: str) -> None:
        if self._exit is not None and self._exit.code != EXIT_DRAINED:
            return
        self._exit = _Exit(EXIT_FORCED, reason)
        self._runners.stop_all()
        self._later(FORCED_TERM_S, self._runners.kill_all)
        self._check_over()

    def _abandon_all(self, code: int, reason: str) -> None:
        self._exit = _Exit(code, reason)
        self._runners.slots.draining = True
        self._runners.abandon_running(LOST)
        self._runners.outbox.close_all()
        self._check_over()

    def _check_over(self) -> None:
        if self._exit is None or self._over.is_set() or len(self._runners.slots):
            return
        forced = self._exit.code != EXIT_DRAINED
        if forced and self._link is None:
            self._runners.outbox.close_all()
        if self._runners.settled:
            if not forced:
                self._report("drain_complete")
            self._over.set()
        elif forced:
            self._later(FORCED_FLUSH_S, self._give_up)

    def _give_up(self) -> None:
        self._runners.outbox.close_all()
        self._check_over()

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._deadlines.append(self._loop.call_later(delay_s, action))

    def _report(self, kind: str, **fields: Any) -> None:
        known = {name: value for name, value in fields.items() if value is not None}
        # Nobody may be there to read it; the work must not end halfway for that.
        with suppress(OSError):
            self._report_event({"kind": kind, **known})
