"""Simulated workers that come and go: they enroll, work, lose their sockets, die and leave.

    python soak_workers.py URL TOKEN SLOTS SEED LOG

Commands come on stdin, one line each; answers go to stdout as JSON lines.

- `crew N`: so many new machines enroll, and work; `crew` tells once they all have
- `allow N`: enrollments up to that number in all may be caused: somebody's socket is cut, a process
  starts anew, a machine drains and another comes, or one vanishes
- `empty`: all drain and leave; `empty` tells once they have, with what they have seen

Every dispatch that is taken, and every result that is sent, is a line in LOG: `took ID`, `sent ID`.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

import aiohttp
from loadgen import RETRY_S, Fleet, Worker, tell

from swamp.protocol import Drain

STEP_S = (0.005, 0.25)
"""How long a simulated step takes, at least and at most."""

AWAY_S = 0.5
"""How long a machine may be away before it dials again, at most."""

CHURN_EVERY_S = 0.005


@dataclass
class Crowd(Fleet):
    """All simulated workers, and the book of what they did."""

    log: TextIO = field(default=sys.stderr)
    dice: random.Random = field(default_factory=random.Random)
    enrollments: int = 0
    allowed: int = 0
    present: list[Member] = field(default_factory=list)
    vanished: int = 0

    def note(self, what: str, dispatch: str) -> None:
        """One line of the book."""
        self.log.write(f"{what} {dispatch}\n")


class Member(Worker):
    """A machine of the crowd: its process may start anew, and it may leave for good."""

    def __init__(self, crowd: Crowd, http: aiohttp.ClientSession) -> None:
        super().__init__(crowd, http)
        self._crowd = crowd
        self._leaving = self._gone = False
        self.left = asyncio.Event()

    async def live(self) -> None:
        """Dial, enroll, serve; again whenever the socket is lost, until it has left."""
        while not self._gone:
            self.enrolled.clear()
            # What was still to be sent on the last socket has lost its meaning.
            self._news = asyncio.Queue()
            wait_s = RETRY_S
            try:
                async with self._http.ws_connect(self._crowd.url) as socket:
                    wait_s = await self._enroll(socket)
                    if self.enrolled.is_set():
                        await self._attend(socket)
                        wait_s = self._crowd.dice.uniform(0, AWAY_S)
            except* (aiohttp.ClientError, OSError, TimeoutError, ValueError):
                self._crowd.lost += 1
            if not self._gone:
                await asyncio.sleep(wait_s)
        self.left.set()

    async def _attend(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._crowd.enrollments += 1
        if self._leaving:
            self._news.put_nowait(Drain(reason="leaves"))
        self._leave_if_done()
        try:
            await self._serve(socket)
        finally:
            self._socket = None

    def _take(self, dispatch: str) -> None:
        if dispatch in self._running:
            return
        self._crowd.note("took", dispatch)
        self._crowd.sleep_s = self._crowd.dice.uniform(*STEP_S)
        super()._take(dispatch)

    def end(self, dispatch: str) -> None:
        """The runner has ended, unless it was killed before."""
        if dispatch in self._running:
            self._crowd.note("sent", dispatch)
            super().end(dispatch)

    def acknowledged(self, dispatch: str) -> None:
        """The server has a result for good."""
        super().acknowledged(dispatch)
        self._leave_if_done()

    def restart(self) -> None:
        """The process dies with all that it ran, and a new one of the same machine dials."""
        self._running.clear()
        self._finished.clear()
        self._instance = str(uuid.uuid4())
        self.cut()

    def vanish(self) -> None:
        """The machine is gone for good, without a word."""
        self._running.clear()
        self._gone = True
        self.cut()

    def leave(self) -> None:
        """Take nothing more, finish what runs, go."""
        self._leaving = True
        self._news.put_nowait(Drain(reason="leaves"))
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self._leaving and not self._running:
            self._gone = True
            self.cut()


class Churn:
    """Brings machines, and makes trouble for them."""

    def __init__(self, crowd: Crowd, http: aiohttp.ClientSession, tasks: asyncio.TaskGroup) -> None:
        self._crowd, self._http, self._tasks = crowd, http, tasks

    def bring(self) -> Member:
        """One more machine."""
        member = Member(self._crowd, self._http)
        self._tasks.create_task(member.live())
        self._crowd.present.append(member)
        return member

    async def go_on(self) -> None:
        """Cause enrollments as they are allowed."""
        crowd = self._crowd
        while True:
            await asyncio.sleep(CHURN_EVERY_S)
            if crowd.present and crowd.enrollments < crowd.allowed:
                self._trouble(crowd.dice.choice(crowd.present))

    def _trouble(self, member: Member) -> None:
        if not member.enrolled.is_set():
            return
        kinds: list[Callable[[Member], None]] = [Member.cut, Member.restart, self._relieve]
        [kind] = self._crowd.dice.choices([*kinds, self._lose], weights=[60, 10, 29, 1])
        kind(member)

    def _relieve(self, member: Member) -> None:
        member.leave()
        self._replace(member)

    def _lose(self, member: Member) -> None:
        member.vanish()
        self._crowd.vanished += 1
        self._replace(member)

    def _replace(self, member: Member) -> None:
        self._crowd.present.remove(member)
        self.bring()

    async def empty(self) -> None:
        """All leave."""
        crowd = self._crowd
        present, crowd.present = crowd.present, []
        for member in present:
            member.leave()
        for member in present:
            await member.left.wait()
        crowd.log.flush()
        tell("empty", enrollments=crowd.enrollments, vanished=crowd.vanished,
             putOff=crowd.put_off, failures=crowd.failures[:3], lost=crowd.lost)  # fmt: skip

    async def crew(self, count: int) -> None:
        """So many machines come."""
        for member in [self.bring() for _ in range(count)]:
            await member.enrolled.wait()
        tell("crew", count=count)


async def main(url: str, token: str, slots: int, seed: int, log: TextIO) -> None:
    crowd = Crowd(url, token, slots, log=log, dice=random.Random(seed))
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http, asyncio.TaskGroup() as tasks:
        churn = Churn(crowd, http, tasks)
        going = tasks.create_task(churn.go_on())
        while line := await reader.readline():
            match line.decode().split():
                case ["allow", count]:
                    crowd.allowed = int(count)
                case ["crew", count]:
                    await churn.crew(int(count))
                case ["empty"]:
                    await churn.empty()
        going.cancel()


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with open(sys.argv[5], "a", encoding="utf-8") as book:
        asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), book))
