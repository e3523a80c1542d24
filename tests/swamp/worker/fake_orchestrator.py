"""A scripted orchestrator that speaks the protocol, and workers that dial it in this process."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import WSMsgType, web

from datastore.kinds import Call
from swamp.protocol import (
    Accepted,
    Ack,
    Dispatch,
    Enroll,
    Enrolled,
    EnrollRefused,
    FromWorker,
    Output,
    OutputAck,
    Ping,
    Pong,
    ResultFrame,
    ToWorker,
    encode,
    frames_in,
    from_worker,
    message_of,
)
from swamp.worker.connect import run_worker
from swamp.worker.options import WorkerOptions

F = TypeVar("F")


class Socket:
    """One socket of a worker, as the orchestrator sees it. The test decides every answer."""

    def __init__(self, ws: web.WebSocketResponse, enroll: Enroll) -> None:
        self.enroll = enroll
        self.outputs: list[Output] = []
        self.closed = asyncio.Event()
        self._ws = ws
        self._frames: asyncio.Queue[FromWorker] = asyncio.Queue()

    async def send(self, *frames: ToWorker) -> None:
        for frame in frames:
            await self._ws.send_str(encode(frame))

    async def send_together(self, *frames: ToWorker) -> None:
        await self._ws.send_str(message_of([encode(frame) for frame in frames]))

    async def expect(self, kind: type[F]) -> F:
        """The next frame of this kind; output on the way is collected, other kinds are an error."""
        async with asyncio.timeout(10):
            while True:
                frame = await self._frames.get()
                if isinstance(frame, Output):
                    self.outputs.append(frame)
                if isinstance(frame, kind):
                    return frame
                assert isinstance(frame, Output | Ping | Pong), f"unexpected {frame!r}"

    async def result(self, dispatch: str, *, ack: bool = True) -> ResultFrame:
        """The result of this dispatch, acknowledging output on the way."""
        while True:
            frame = await self.expect(ResultFrame | Output)  # type: ignore[arg-type]
            if isinstance(frame, Output):
                await self.send(OutputAck(dispatch=frame.dispatch, seq=frame.seq))
                continue
            assert frame.dispatch == dispatch
            if ack:
                await self.send(Ack(dispatch=dispatch))
            return frame

    def text(self, dispatch: str) -> str:
        return b"".join(o.raw() for o in self.outputs if o.dispatch == dispatch).decode()

    def stop_reading(self) -> None:
        assert self._ws._req is not None and self._ws._req.transport is not None
        self._ws._req.transport.pause_reading()

    def cut(self) -> None:
        assert self._ws._req is not None and self._ws._req.transport is not None
        self._ws._req.transport.abort()

    def ping_and_cut(self, pings: int = 5) -> None:
        """As `cut`, behind pings of the WebSocket: a proxy may send them, and they may pile up."""
        assert self._ws._req is not None and self._ws._req.transport is not None
        self._ws._req.transport.write(b"\x89\0" * pings)
        self.cut()

    async def close(self) -> None:
        await self._ws.close()

    async def listen(self) -> None:
        try:
            async for message in self._ws:
                if message.type is WSMsgType.TEXT:
                    for text in frames_in(message.data):
                        self._frames.put_nowait(from_worker(text))
        finally:
            self.closed.set()


class Orchestrator:
    """Accepts sockets one after another."""

    def __init__(self) -> None:
        self.url = ""
        self.grace_s = 30.0
        self.heartbeat_s = 5.0
        self._sockets: asyncio.Queue[Socket] = asyncio.Queue()

    async def dialled(self) -> Socket:
        """The next socket, whose enrollment waits for an answer."""
        async with asyncio.timeout(10):
            return await self._sockets.get()

    async def enrolled(
        self, keep: dict[str, int] | None = None, kill: list[str] | None = None
    ) -> Socket:
        """The next socket, enrolled."""
        socket = await self.dialled()
        await socket.send(self.welcome(keep, kill))
        return socket

    def welcome(
        self, keep: dict[str, int] | None = None, kill: list[str] | None = None
    ) -> Enrolled:
        return Enrolled(
            worker="w1",
            grace_s=self.grace_s,
            heartbeat_s=self.heartbeat_s,
            keep=keep or {},
            kill=kill or [],
        )

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(timeout=1.0)
        await ws.prepare(request)
        enroll = from_worker((await ws.receive()).data)
        assert isinstance(enroll, Enroll)
        socket = Socket(ws, enroll)
        self._sockets.put_nowait(socket)
        await socket.listen()
        return ws


class RunningWorker:
    """A worker in this process, with what it reported."""

    def __init__(self, options: WorkerOptions) -> None:
        self.events: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self.task = asyncio.ensure_future(run_worker(options, self._note, Soon()))

    def _note(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self._news.set()

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]

    async def until(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The `count`th event of this kind, once it is there."""
        async with asyncio.timeout(10):
            while True:
                found = [event for event in self.events if event["kind"] == kind]
                if len(found) >= count:
                    return found[count - 1]
                self._news.clear()
                await self._news.wait()

    async def exit_code(self) -> int:
        async with asyncio.timeout(15):
            return await self.task


class Soon(random.Random):
    """No patience: retries come after a hundredth of what they may take."""

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) / 100


class Gate:
    """A path that a command waits at with `read x < PATH`, until the test lets one through."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # Open for reading too, so that neither side ever waits for the other to open it.
        self._descriptor = os.open(path, os.O_RDWR)

    def __str__(self) -> str:
        return str(self.path)

    def let_through(self) -> None:
        os.write(self._descriptor, b"go\n")

    def close(self) -> None:
        os.close(self._descriptor)


def shell(dispatch: str, run: str, **arguments: Any) -> Dispatch:
    """A dispatch that runs this command."""
    call = Call(
        model_type="command/shell",
        model="m",
        method="execute",
        arguments={"run": run, **arguments},
    )
    return Dispatch(dispatch=dispatch, run="r", workflow="wf", job="j", step=dispatch, call=call)


def refusal(
    permanent: bool, retry_after_ms: int = 0, grace_s: float = 0.0, cancel: Sequence[str] = ()
) -> EnrollRefused:
    return EnrollRefused(
        code="token_revoked",
        message="token 't' has been revoked",
        permanent=permanent,
        retry_after_ms=retry_after_ms,
        grace_s=grace_s,
        cancel=list(cancel),
    )


async def started(socket: Socket, dispatch: str, run: str) -> int:
    """Dispatch a command that prints its pid first; the pid."""
    await socket.send(shell(dispatch, f"echo $$; {run}"))
    assert (await socket.expect(Accepted)).dispatch == dispatch
    return int((await socket.expect(Output)).raw())


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"
