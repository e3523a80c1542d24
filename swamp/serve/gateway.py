"""The workers' WebSocket: frames in, frames out, nothing else.

One writer task per socket with a bounded queue and a deadline for each send: a peer that does not
read is cut and never holds up anything. The frames of one worker are taken in order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from aiohttp import WSMsgType, web

from controllers.enrollment import EnrollmentRefused
from swamp.protocol import FRAME_MAX_BYTES, Enroll, FrameError, encode, from_worker
from swamp.serve.sessions import Session, Sessions, refusal

ENROLL_WITHIN_S = 30.0
"""How long a socket may take to say who it is."""

SEND_WITHIN_S = 20.0
"""How long one send may take before the peer counts as not reading."""

QUEUED_MOST = 10_000
"""Frames that may wait for one worker."""


class SocketTransport:
    """A worker's WebSocket as the sessions see it."""

    def __init__(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        self._request = request
        self._socket = socket
        self._queue: deque[str] = deque()
        self._news = asyncio.Event()
        self.aborted = False

    def send(self, text: str) -> None:
        if len(self._queue) >= QUEUED_MOST:
            self.abort("reads too slowly")
            return
        self._queue.append(text)
        self._news.set()

    def abort(self, reason: str) -> None:
        self.aborted = True
        transport = self._request.transport
        if transport is not None:
            transport.abort()
        self._news.set()

    async def write(self) -> None:
        """Send what is queued until the socket is gone."""
        while not self.aborted and not self._socket.closed:
            await self._news.wait()
            self._news.clear()
            while self._queue and not self.aborted:
                try:
                    async with asyncio.timeout(SEND_WITHIN_S):
                        await self._socket.send_str(self._queue.popleft())
                except (TimeoutError, ConnectionError, RuntimeError):
                    self.abort("does not read")
                    return


class Gateway:
    """Serves the sockets of workers."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """One worker's socket, from its upgrade to its end."""
        socket = web.WebSocketResponse(max_msg_size=FRAME_MAX_BYTES, compress=False)
        await socket.prepare(request)
        transport = SocketTransport(request, socket)
        session = await self._enroll(socket, transport)
        if session is None:
            return socket
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(transport.write()),
                    group.create_task(self._beat(session)),
                ]
                await self._read(socket, session)
                for helper in helpers:
                    helper.cancel()
        finally:
            self._sessions.closed(session)
        return socket

    async def _enroll(
        self, socket: web.WebSocketResponse, transport: SocketTransport
    ) -> Session | None:
        try:
            async with asyncio.timeout(ENROLL_WITHIN_S):
                frame = from_worker(await socket.receive_str())
        except (TimeoutError, TypeError, FrameError) as error:
            await self._refuse(socket, EnrollmentRefused("bad_frame", _short(error)))
            return None
        if not isinstance(frame, Enroll):
            await self._refuse(socket, EnrollmentRefused("bad_frame", "the first frame is enroll"))
            return None
        try:
            return await self._sessions.enroll(frame, transport)
        except EnrollmentRefused as error:
            await self._refuse(socket, error)
            return None

    @staticmethod
    async def _refuse(socket: web.WebSocketResponse, error: EnrollmentRefused) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError, RuntimeError):
            async with asyncio.timeout(SEND_WITHIN_S):
                await socket.send_str(encode(refusal(error)))
                await socket.close(code=4000, message=error.code.encode())

    async def _read(self, socket: web.WebSocketResponse, session: Session) -> None:
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                return
            try:
                frame = from_worker(message.data)
            except FrameError as error:
                self._sessions.cut(session.worker, str(error))
                return
            self._sessions.handle(session, frame)

    async def _beat(self, session: Session) -> None:
        while True:
            await asyncio.sleep(self._sessions.heartbeat_s)
            self._sessions.look_after(session)


def _short(error: BaseException) -> str:
    return str(error)[:200] or f"no enroll frame within {ENROLL_WITHIN_S:g}s"
