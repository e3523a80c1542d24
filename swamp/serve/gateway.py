"""The workers' WebSocket: frames in, frames out, nothing else.

One writer task per socket with a bounded queue and a deadline for each send: a peer that does not
read is cut and never holds up anything. The frames of one worker are taken in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from aiohttp import WSMessage, WSMsgType, web

from controllers.enrollment import EnrollmentRefused
from swamp.protocol import (
    FRAME_MAX_BYTES,
    PROOF_HEADER,
    WORKER_HEADER,
    Enroll,
    FromWorker,
    encode,
    next_message,
)
from swamp.serve.arrivals import Arrivals, Place, too_many
from swamp.serve.connections import file_number, has_unread
from swamp.serve.refusals import refusal
from swamp.serve.session import Session
from swamp.serve.sessions import Sessions
from swamp.serve.socket_limits import Failures, Pace
from swamp.serve.turns import Rank, Turns
from swamp.serve.worker_frames import (
    CLOSE_BAD_FRAME,
    CLOSE_REFUSED,
    CLOSE_SILENT,
    Closed,
    first_frame,
    frame_of,
    frames_of,
    next_of,
    text_of,
)

log = logging.getLogger(__name__)

ENROLL_WITHIN_S = 30.0
"""How long a socket may take to say who it is."""

SEND_WITHIN_S = 20.0
"""How long one send may take before the peer counts as not reading."""

CLOSE_WITHIN_S = 2.0
"""How long a peer may take to answer a close."""

FRAMES = (WSMsgType.TEXT, WSMsgType.BINARY)

REASON_MAX_BYTES = 120
"""What fits into the frame that closes a socket."""

QUEUED_MOST = 10_000
"""Frames that may wait for one worker."""


class SocketTransport:
    """A worker's WebSocket as the sessions see it."""

    def __init__(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        self._request = request
        self._socket = socket
        self._queue: deque[str] = deque()
        self._tasks: asyncio.TaskGroup | None = None
        self._writer: asyncio.Task[None] | None = None
        self.aborted = False

    def send(self, text: str) -> None:
        if len(self._queue) >= QUEUED_MOST:
            self.abort("reads too slowly")
            return
        self._queue.append(text)
        self._write_on()

    def abort(self, reason: str) -> None:
        self.aborted = True
        transport = self._request.transport
        if transport is not None:
            transport.abort()

    def abort_if_unread(self) -> None:
        """At its end: what is never read would hold its file for good."""
        transport = self._request.transport
        if transport is not None and has_unread(transport):
            self.abort("does not read")

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Write from now on, by tasks of this group: one while there is something to write."""
        self._tasks = tasks
        self._write_on()

    def close(self) -> None:
        """Write no more."""
        self._tasks = None
        if self._writer is not None:
            self._writer.cancel()

    def _write_on(self) -> None:
        if self._tasks is not None and self._writer is None and self._queue:
            self._writer = self._tasks.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._queue and not self.aborted and not self._socket.closed:
                async with asyncio.timeout(SEND_WITHIN_S):
                    await self._socket.send_str(next_message(self._queue))
        except (TimeoutError, ConnectionError, RuntimeError):
            self.abort("does not read")
        finally:
            self._writer = None


class Beat:
    """Looks after a session once per heartbeat. A timer and no task: of idle workers, there may be
    thousands."""

    def __init__(self, sessions: Sessions, session: Session) -> None:
        self._sessions, self._session = sessions, session
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(sessions.heartbeat_s, self._beat)

    def stop(self) -> None:
        """No more beats."""
        self._timer.cancel()

    def _beat(self) -> None:
        self._timer = self._loop.call_later(self._sessions.heartbeat_s, self._beat)
        self._sessions.look_after(self._session)


@dataclass(frozen=True, slots=True)
class Arrived:
    """An enrolled worker, and what it sent before it was told so."""

    session: Session
    early: WSMessage | None


class Gateway:
    """Serves the sockets of workers."""

    def __init__(
        self,
        sessions: Sessions,
        arrivals: Arrivals,
        *,
        enroll_within_s: float = ENROLL_WITHIN_S,
        received: Callable[[FromWorker], None] = lambda frame: None,
        turns: Turns | None = None,
    ) -> None:
        """`received` is told of each frame of an enrolled worker, before it is handled.

        `turns` paces the crowd; without them it waits for nothing but the disk.
        """
        self._sessions = sessions
        self._received = received
        self._turns = turns or Turns(lambda: 0.0)
        self._arrivals = arrivals
        self._enroll_within_s = enroll_within_s
        self._failures = Failures(asyncio.get_running_loop().time)

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """One worker's socket, from its upgrade to its end."""
        socket = web.WebSocketResponse(
            max_msg_size=FRAME_MAX_BYTES, compress=False, timeout=CLOSE_WITHIN_S
        )
        await socket.prepare(request)
        transport = SocketTransport(request, socket)
        try:
            arrived = await self._arrive(request, socket, transport)
            if arrived is not None:
                await self._attend(arrived, socket, transport)
        except EnrollmentRefused as error:
            code = CLOSE_BAD_FRAME if error.code == "bad_frame" else CLOSE_REFUSED
            with self._leaving(request, transport):
                await self._say_why(socket, encode(refusal(error)))
                await self._close(socket, Closed(code, error.code))
        except Closed as closed:
            with self._leaving(request, transport):
                await self._close(socket, closed)
        finally:
            transport.abort_if_unread()
            _forget_error(socket)
        return socket

    def _leaving(
        self, request: web.Request, transport: SocketTransport
    ) -> contextlib.AbstractContextManager[None]:
        """Meanwhile it is closed in order, unless its file is needed before that is done."""
        return self._arrivals.connections.leaving(
            file_number(request.transport), lambda: transport.abort("its file is needed")
        )

    async def _attend(
        self, arrived: Arrived, socket: web.WebSocketResponse, transport: SocketTransport
    ) -> None:
        """Serve an enrolled worker until its socket has gone; Closed if that is its own fault."""
        session = arrived.session
        closed: Closed | None = None
        try:
            async with asyncio.TaskGroup() as group:
                transport.open(group)
                beat = Beat(self._sessions, session)
                try:
                    await self._read(socket, arrived)
                except Closed as error:
                    closed = error
                    log.info("worker %s: socket closed: %s", session.worker, error)
                finally:
                    beat.stop()
                    transport.close()
        finally:
            self._sessions.closed(session)
        if closed is not None:
            raise closed

    # -- enrolling -------------------------------------------------------------------------------

    async def _arrive(
        self, request: web.Request, socket: web.WebSocketResponse, transport: SocketTransport
    ) -> Arrived | None:
        """The session, None if the peer has gone; Closed or EnrollmentRefused."""
        said = request.headers
        names, proof = said.get(WORKER_HEADER, ""), said.get(PROOF_HEADER, "")
        number = file_number(request.transport)
        with self._arrivals.arrive(names, proof, number) as place:
            message = await self._first_message(socket, place)
            arrived = await self._enroll(message, request.remote or "", socket, transport)
        if arrived is not None:
            self._arrivals.connections.trust(number)
        return arrived

    async def _first_message(self, socket: web.WebSocketResponse, place: Place) -> WSMessage:
        try:
            async with place.until(self._enroll_within_s):
                message = await next_of(socket)
        except TimeoutError:
            if place.gave_way:
                raise too_many("others came, and nothing had been said on this socket") from None
            raise Closed(
                CLOSE_SILENT, f"no enroll frame within {self._enroll_within_s:g}s"
            ) from None
        self._arrivals.spoke(place)
        return message

    async def _enroll(
        self,
        message: WSMessage,
        address: str,
        socket: web.WebSocketResponse,
        transport: SocketTransport,
    ) -> Arrived | None:
        """As `_arrive`, by what its first message says."""
        frame = first_frame(message)
        if frame is None:
            return None
        token = frame.token.partition(".")[0]
        wait_s = self._failures.wait_s(address, token)
        if wait_s and not self._sessions.is_known(frame):
            raise EnrollmentRefused(
                "too_many_attempts",
                "too many enrollments failed from this address",
                permanent=False,
                retry_after_ms=round(wait_s * 1000) + 1,
            )
        answer, early = await self._unless_gone(socket, self._in_turn(frame, transport))
        if isinstance(answer, EnrollmentRefused):
            if answer.permanent:
                self._failures.note(address, token)
            raise answer
        return None if answer is None else Arrived(answer, early)

    async def _in_turn(self, frame: Enroll, transport: SocketTransport) -> Session:
        """Enroll when its turn comes. Whoever gives up before has cost nothing."""
        back = self._sessions.has_met(frame)
        turn = await self._turns.begin(Rank.ENROLL_KNOWN if back else Rank.ENROLL_NEW)
        try:
            return await self._sessions.enroll(frame, transport)
        finally:
            turn.over()

    @staticmethod
    async def _unless_gone(
        socket: web.WebSocketResponse, enrolling: Coroutine[None, None, Session]
    ) -> tuple[Session | EnrollmentRefused | None, WSMessage | None]:
        """What enrolling comes to, and what came in meanwhile.

        None, and nothing has been made, if that is the peer's goodbye. A frame waits for its turn,
        and nothing is read behind it before that.
        """

        async def answer() -> Session | EnrollmentRefused:
            try:
                return await enrolling
            except EnrollmentRefused as error:
                return error

        async with asyncio.TaskGroup() as group:
            enrolled = group.create_task(answer())
            early = group.create_task(next_of(socket))
            await asyncio.wait((enrolled, early), return_when=asyncio.FIRST_COMPLETED)
            if early.done() and early.result().type in FRAMES:
                await asyncio.wait((enrolled,))
            enrolled.cancel()
            early.cancel()
        return (
            None if enrolled.cancelled() else enrolled.result(),
            None if early.cancelled() else early.result(),
        )

    # -- frames ----------------------------------------------------------------------------------

    async def _read(self, socket: web.WebSocketResponse, arrived: Arrived) -> None:
        """Hand the frames over, at the pace that a socket may have; Closed for a wrong one."""
        session, early = arrived.session, arrived.early
        clock = asyncio.get_running_loop().time
        pace = Pace(clock())
        while True:
            message, early = early or await next_of(socket), None
            text = text_of(message)
            if text is None:
                return
            frames = frames_of(text)
            for one in frames:
                frame = frame_of(one)
                if isinstance(frame, Enroll):
                    raise Closed(CLOSE_BAD_FRAME, "enrolled twice on one socket")
                self._received(frame)
                self._sessions.handle(session, frame)
            wait_s = pace.take(len(frames), len(text), clock())
            if wait_s:
                await asyncio.sleep(wait_s)

    # -- the end ---------------------------------------------------------------------------------

    @staticmethod
    async def _say_why(socket: web.WebSocketResponse, text: str) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError, RuntimeError):
            async with asyncio.timeout(SEND_WITHIN_S):
                await socket.send_str(text)

    @staticmethod
    async def _close(socket: web.WebSocketResponse, closed: Closed) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError, RuntimeError):
            async with asyncio.timeout(SEND_WITHIN_S):
                reason = str(closed).encode()[:REASON_MAX_BYTES].decode(errors="ignore")
                await socket.close(code=closed.code, message=reason.encode())


def _forget_error(socket: web.WebSocketResponse) -> None:
    """A socket that failed keeps why, and that, by its traceback, all that it was.

    Only a full collection would find it, and those stop everything.
    """
    error = socket.exception()
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
