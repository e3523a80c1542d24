"""A fleet of simulated workers in one process, which speak the real protocol.

    python loadgen.py URL TOKEN WORKERS SLOTS

Commands come on stdin, one line each; answers go to stdout as JSON lines.

- at once, and first: all workers enroll together; `dials` tells that they begin to, and `enrolled`
  how long it took and what went wrong on the way
- `sleep S`: from now on a dispatch is accepted, and ends well after so many seconds
- `hold N`: from now on dispatches are accepted and held; `held` is told once there are N
- `release`: end all that is held at one instant; `settled` follows when all are acknowledged,
  with the moments (of this machine's monotonic clock) at which each dispatch arrived, its result
  was sent, and that was acknowledged
- `cut`: all sockets are cut, as if cables were pulled; the workers dial again after a moment
- `bounce`: the same, but they dial at once, and `bounced` tells how long each took to be back
- `away`: all sockets are cut, and stay so until `back`; `back` tells once all are there again
- `health`: `health` tells how many sockets were lost and how late the server's pings were

A worker whose socket is lost comes back after a moment and settles both lists, as a real one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket as sockets
import sys
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from datastore.kinds import Outcome
from swamp.protocol import (
    PROTOCOL_VERSION,
    Accepted,
    Ack,
    Dispatch,
    Enroll,
    Enrolled,
    EnrollRefused,
    FromWorker,
    Ping,
    Pong,
    ResultFrame,
    ToWorker,
    calling_card,
    encode,
    frames_in,
    next_message,
    to_worker,
)

DONE = Outcome(ok=True, reason="completed", exit_code=0, duration_ms=1)
RETRY_S = 0.3


def tell(kind: str, **fields: Any) -> None:
    """One line of an answer."""
    print(json.dumps({"kind": kind, **fields}), flush=True)


@dataclass
class Fleet:
    """What all simulated workers share: orders, and what they have seen."""

    url: str
    token: str
    slots: int
    sleep_s: float | None = 0.0
    hold: int = 0
    held: list[tuple[Worker, str]] = field(default_factory=list)
    arrived_at: dict[str, float] = field(default_factory=dict)
    sent_at: dict[str, float] = field(default_factory=dict)
    acked_at: dict[str, float] = field(default_factory=dict)
    releasing: int = 0
    attempts: int = 0
    failures: list[str] = field(default_factory=list)
    put_off: int = 0
    lost: int = 0
    late_pings: int = 0
    latest_ping_s: float = 0.0
    retry_s: float = RETRY_S
    may_dial: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """All that is held ends now."""
        held, self.held = self.held, []
        self.releasing, self.sent_at, self.acked_at = len(held), {}, {}
        for worker, dispatch in held:
            worker.end(dispatch)

    def acked(self, dispatch: str) -> None:
        """The server has a result for good."""
        self.acked_at[dispatch] = time.monotonic()
        if self.releasing and len(self.acked_at.keys() & self.sent_at.keys()) >= self.releasing:
            self.releasing = 0
            tell("settled", arrived=self.arrived_at, sent=self.sent_at, acked=self.acked_at)
            self.arrived_at = {}


class Worker:
    """One simulated worker: its socket, what it runs and what it owes."""

    def __init__(self, fleet: Fleet, http: aiohttp.ClientSession) -> None:
        self._fleet, self._http = fleet, http
        self._machine, self._instance = str(uuid.uuid4()), str(uuid.uuid4())
        self._card = calling_card(fleet.token, self._machine)
        self._running: set[str] = set()
        self._finished: set[str] = set()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._news: asyncio.Queue[FromWorker] = asyncio.Queue()
        self._heartbeat_s = 15.0
        self.enrolled = asyncio.Event()
        self.took_s = 0.0

    async def live(self) -> None:
        """Dial, enroll, serve; again whenever the socket is lost."""
        began = time.monotonic()
        while True:
            await self._fleet.may_dial.wait()
            self._fleet.attempts += 1
            wait_s = RETRY_S
            try:
                dialling = self._http.ws_connect(self._fleet.url, headers=self._card)
                async with dialling as socket:
                    wait_s = await self._enroll(socket)
                    if self.enrolled.is_set():
                        self.took_s = self.took_s or time.monotonic() - began
                        self._socket = socket
                        await self._serve(socket)
                        self._fleet.lost += 1
                        wait_s = self._fleet.retry_s
            except aiohttp.WSServerHandshakeError as error:
                assert error.headers is not None and error.status == 503, error
                self._fleet.put_off += 1
                wait_s = float(error.headers["Retry-After"])
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._fleet.failures.append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(wait_s)

    def cut(self) -> None:
        """The network is gone, as if the cable were pulled; the process lives."""
        cable = self._socket.get_extra_info("socket") if self._socket is not None else None
        self.enrolled.clear()
        if cable is not None:
            with contextlib.suppress(OSError):
                cable.shutdown(sockets.SHUT_RDWR)

    async def _enroll(self, socket: aiohttp.ClientWebSocketResponse) -> float:
        frame = Enroll(
            protocol=PROTOCOL_VERSION, version="bench", token=self._fleet.token,
            instance=self._instance, machine=self._machine, platform="linux", arch="x86_64",
            labels={"pool": "bench"}, capacity=self._fleet.slots,
            running=sorted(self._running), finished=sorted(self._finished),
        )  # fmt: skip
        await socket.send_str(encode(frame))
        async with asyncio.timeout(30):
            message = await socket.receive()
        texts = frames_in(message.data) if message.type is aiohttp.WSMsgType.TEXT else []
        answer = to_worker(texts[0]) if texts else None
        if isinstance(answer, Enrolled):
            self._heartbeat_s = answer.heartbeat_s
            self._running &= answer.keep.keys() | self._finished
            for dispatch in self._finished:
                self._news.put_nowait(ResultFrame(dispatch=dispatch, outcome=DONE))
            self.enrolled.set()
            for text in texts[1:]:
                self._hear(to_worker(text))
            return RETRY_S
        if isinstance(answer, EnrollRefused) and not answer.permanent:
            self._fleet.put_off += 1
            return answer.retry_after_ms / 1000
        self._fleet.failures.append(f"{answer or message.type!s}")
        return RETRY_S

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(self._write(socket)), tasks.create_task(self._beat())]
            heard = time.monotonic()
            async for message in socket:
                for text in frames_in(message.data):
                    frame = to_worker(text)
                    if isinstance(frame, Ping):
                        heard = self._note_ping(heard)
                    self._hear(frame)
            for helper in helpers:
                helper.cancel()

    def _hear(self, frame: ToWorker) -> None:
        if isinstance(frame, Ping):
            self._news.put_nowait(Pong(n=frame.n))
        elif isinstance(frame, Dispatch):
            self._take(frame.dispatch)
        elif isinstance(frame, Ack):
            self.acknowledged(frame.dispatch)

    def _note_ping(self, heard: float) -> float:
        now = time.monotonic()
        late_s = now - heard - self._heartbeat_s
        self._fleet.latest_ping_s = max(self._fleet.latest_ping_s, late_s)
        self._fleet.late_pings += late_s > self._heartbeat_s
        return now

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while not socket.closed:
            due = deque([encode(await self._news.get())])
            while not self._news.empty():
                due.append(encode(self._news.get_nowait()))
            try:
                while due:
                    await socket.send_str(next_message(due))
            except (ConnectionError, aiohttp.ClientError):
                return

    async def _beat(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(self._heartbeat_s)
            number += 1
            self._news.put_nowait(Ping(n=number))

    def _take(self, dispatch: str) -> None:
        self._running.add(dispatch)
        self._news.put_nowait(Accepted(dispatch=dispatch))
        fleet = self._fleet
        if fleet.sleep_s is not None:
            asyncio.get_running_loop().call_later(fleet.sleep_s, self.end, dispatch)
            return
        fleet.arrived_at[dispatch] = time.monotonic()
        fleet.held.append((self, dispatch))
        if len(fleet.held) == fleet.hold:
            tell("held", count=fleet.hold)

    def acknowledged(self, dispatch: str) -> None:
        """The server has a result for good."""
        self._finished.discard(dispatch)
        self._running.discard(dispatch)
        self._fleet.acked(dispatch)

    def end(self, dispatch: str) -> None:
        """The runner of a dispatch has ended."""
        self._finished.add(dispatch)
        self._fleet.sent_at[dispatch] = time.monotonic()
        self._news.put_nowait(ResultFrame(dispatch=dispatch, outcome=DONE))


def obey(fleet: Fleet, line: str) -> None:
    """Carry out a command that takes no time."""
    match line.split():
        case ["sleep", seconds]:
            fleet.sleep_s = float(seconds)
        case ["hold", count]:
            fleet.sleep_s, fleet.hold = None, int(count)
        case ["release"]:
            fleet.release()
        case ["health"]:
            tell(
                "health", lost=fleet.lost, latePings=fleet.late_pings,
                latestPingS=fleet.latest_ping_s, failures=fleet.failures[:5],
            )  # fmt: skip
            fleet.late_pings, fleet.latest_ping_s = 0, 0.0


async def obey_with_sockets(fleet: Fleet, crew: list[Worker], line: str) -> None:
    """Carry out a command about the sockets; return when all are as it says."""
    began = time.monotonic()
    match line.split():
        case ["cut"]:
            cut(crew)
        case ["bounce"]:
            fleet.retry_s = 0.0
            cut(crew)
            await all_enrolled(crew)
            fleet.retry_s = RETRY_S
            tell("bounced", tookS=time.monotonic() - began)
        case ["away"]:
            fleet.may_dial.clear()
            cut(crew)
        case ["back"]:
            fleet.may_dial.set()
            await all_enrolled(crew)
            tell("back", tookS=time.monotonic() - began)


def cut(crew: list[Worker]) -> None:
    """Cut every socket at one instant."""
    for worker in crew:
        worker.cut()


async def all_enrolled(crew: list[Worker]) -> None:
    """Wait until all workers are known to the server."""
    for worker in crew:
        await worker.enrolled.wait()


async def main(url: str, token: str, workers: int, slots: int) -> None:
    fleet = Fleet(url, token, slots)
    fleet.may_dial.set()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http, asyncio.TaskGroup() as tasks:
        began = time.monotonic()
        crew = [Worker(fleet, http) for _ in range(workers)]
        tell("dials")
        lives = [tasks.create_task(worker.live()) for worker in crew]
        await all_enrolled(crew)
        tell(
            "enrolled", tookS=time.monotonic() - began, attempts=fleet.attempts,
            putOff=fleet.put_off, failures=len(fleet.failures), first=fleet.failures[:3],
            each=sorted(worker.took_s for worker in crew),
        )  # fmt: skip
        while line := await reader.readline():
            obey(fleet, line.decode())
            await obey_with_sockets(fleet, crew, line.decode())
        for life in lives:
            life.cancel()


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
