"""The output of a runner: read by chunk, whole characters, counted, cut where it says so.

Nothing here ever looks for a line end: a stream without one, or with invalid UTF-8, passes like any
other. Memory per stream is bounded; a slow sink stops the reading, and so the child.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from swamp.execute.redaction import RedactedStream, Redactor
from swamp.protocol import OUTPUT_CHUNK_BYTES

StreamName = Literal["stdout", "stderr"]
Sink = Callable[[StreamName, bytes], Awaitable[None]]
"""Takes the pieces of both streams in order; reading waits while it does not return."""

_CARRY_MAX_BYTES = 3
_READ_BYTES = OUTPUT_CHUNK_BYTES - _CARRY_MAX_BYTES


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """`total_bytes`: streamed per dispatch. `kept_bytes`: of each stream in the outcome."""

    total_bytes: int = 64 << 20
    kept_bytes: int = 16 << 10


def split_characters(data: bytes) -> tuple[bytes, bytes]:
    """`data` without an unfinished UTF-8 character at its end, and that rest (at most 3 bytes)."""
    for back in range(1, min(_CARRY_MAX_BYTES, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        width = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return (data[:-back], data[-back:]) if width > back else (data, b"")
    return data, b""


class Transcript:
    """The head and the tail of a stream, within a limit, saying what lies between."""

    def __init__(self, kept_bytes: int) -> None:
        self._part = kept_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = 0

    def add(self, data: bytes) -> None:
        """Append to the stream."""
        room = self._part - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        excess = len(self._tail) - self._part
        if excess > 0:
            del self._tail[:excess]
            self._cut += excess

    def text(self) -> str:
        """The stream as text; invalid bytes become U+FFFD."""
        if not self._cut:
            return bytes(self._head + self._tail).decode(errors="replace")
        head, broken = split_characters(bytes(self._head))
        tail = bytes(self._tail)
        inside = 0
        while inside < min(_CARRY_MAX_BYTES, len(tail)) and tail[inside] & 0xC0 == 0x80:
            inside += 1
        cut = self._cut + len(broken) + inside
        return (
            f"{head.decode(errors='replace')}\n… {cut} bytes cut …\n"
            f"{tail[inside:].decode(errors='replace')}"
        )


class Output:
    """Both streams of one dispatch on their way to the sink, in one order, within the limits."""

    def __init__(self, sink: Sink, limits: OutputLimits) -> None:
        self._sink = sink
        self._limits = limits
        self._left_bytes = limits.total_bytes
        self._order = asyncio.Lock()
        self._kept: dict[StreamName, Transcript] = {
            "stdout": Transcript(limits.kept_bytes),
            "stderr": Transcript(limits.kept_bytes),
        }
        self._full = False

    async def take(self, stream: StreamName, data: bytes) -> None:
        """Hand on the next piece of the stream."""
        self._kept[stream].add(data)
        async with self._order:
            if self._full:
                return
            passed = data if len(data) <= self._left_bytes else data[: self._left_bytes]
            self._left_bytes -= len(passed)
            if passed:
                await self._sink(stream, passed)
            if len(passed) < len(data):
                self._full = True
                limit = _size(self._limits.total_bytes)
                note = f"\n[swamp] output limit of {limit} reached, the rest is cut\n"
                await self._sink(stream, note.encode())

    async def note(self, text: str) -> None:
        """Say something of ours on stderr, whatever the limit."""
        line = f"\n[swamp] {text}\n".encode()
        self._kept["stderr"].add(line)
        async with self._order:
            await self._sink("stderr", line)

    def text(self, stream: StreamName) -> str:
        """What is kept of the stream."""
        return self._kept[stream].text()


class Pump:
    """Carries one pipe of the child to the output until its end, or until nobody may wait longer.

    Secrets are masked here, before anything is kept or sent.

    `truncated` tells that the pipe was still open then: a background process holds it.
    """

    def __init__(self, stream: StreamName, output: Output, redactor: Redactor) -> None:
        self.truncated = False
        self._stream = stream
        self._output = output
        self._redacted = RedactedStream(redactor)
        self._pipe: int | None = None
        self._until: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None

    def open(self) -> int:
        """The write end of a new pipe, for the child; the caller closes it after the spawn."""
        self._pipe, write_end = os.pipe()
        os.set_blocking(self._pipe, False)
        return write_end

    async def run(self) -> None:
        """Carry everything; returns at the end of the stream or at the deadline."""
        loop = asyncio.get_running_loop()
        carry = b""
        while data := await self._read():
            whole, carry = split_characters(carry + self._redacted.feed(data))
            if whole:
                began = loop.time()
                await self._output.take(self._stream, whole)
                if self._until is not None:
                    # The time in a slow sink is not the child's: it must not cost output.
                    self._until += loop.time() - began
            # A stream that never pauses must not hold up the others.
            await asyncio.sleep(0)
        if rest := carry + self._redacted.flush():
            await self._output.take(self._stream, rest)

    def child_exited(self, drain_s: float) -> None:
        """From now on the pipe has this long to reach its end, time in the sink excepted."""
        self._until = asyncio.get_running_loop().time() + drain_s
        self._arm()

    def close(self) -> None:
        """Give the pipe up."""
        if self._pipe is not None:
            # Whoever reads it looks again, and finds none.
            self._wake()
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = None

    async def _read(self) -> bytes:
        """The next piece; empty at the end of the stream, and when nobody may wait longer."""
        loop = asyncio.get_running_loop()
        while self._pipe is not None:
            if self._until is not None and loop.time() >= self._until:
                self.truncated = True
                break
            with suppress(BlockingIOError):
                return os.read(self._pipe, _READ_BYTES)
            await self._readable(self._pipe)
        return b""

    async def _readable(self, pipe: int) -> None:
        """Wait for more, the end of the stream, or the deadline."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        loop.add_reader(pipe, self._wake)
        self._arm()
        try:
            await self._waiter
        finally:
            self._disarm()
            if self._pipe is not None:
                loop.remove_reader(pipe)
            self._waiter = None

    def _arm(self) -> None:
        """Let whoever waits for the pipe wait until the deadline only, if there is one."""
        self._disarm()
        if self._until is not None and self._waiter is not None:
            self._alarm = asyncio.get_running_loop().call_at(self._until, self._wake)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _size(count: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} bytes"
