"""What the worker owes the orchestrator: output until acknowledged, results until acknowledged.

The socket's writer pulls frames from here, so a socket that does not take them costs no memory: the
output of a dispatch waits in the child once a window of it is unacknowledged. Short frames go
first, then the dispatches in turn, so a chatty one delays neither a heartbeat nor another.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from datastore.kinds import Outcome
from swamp.execute.streams import StreamName
from swamp.protocol import FromWorker, Output, ResultFrame

WINDOW_BYTES = 1 << 20
"""Output of one dispatch that may be unacknowledged, bytes."""

_PIECE_COST_BYTES = 256
"""What a piece costs beside its bytes; it bounds the number of tiny ones."""


@dataclass(frozen=True, slots=True)
class _Piece:
    frame: Output
    cost: int


class Delivery:
    """Output and result of one dispatch, on their way."""

    def __init__(self, dispatch: str, wake: Callable[[], None]) -> None:
        self.dispatch = dispatch
        self.result: ResultFrame | None = None
        self.result_sent = False
        """Whether a socket has taken the result; it may have been lost on the way."""
        self._wake = wake
        self._pieces: deque[_Piece] = deque()
        self._first_seq = 1
        self._next_seq = 1
        self._held_bytes = 0
        self._unbounded = False
        self._dropped = False
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, stream: StreamName, data: bytes) -> None:
        """Owe this piece; waits while the window is full."""
        await self._room.wait()
        if self._dropped:
            return
        piece = _Piece(
            _output(self.dispatch, self._end_seq, stream, data), len(data) + _PIECE_COST_BYTES
        )
        self._pieces.append(piece)
        self._held_bytes += piece.cost
        self._settle_room()
        self._wake()

    def finish(self, outcome: Outcome) -> None:
        """Owe the result."""
        self.result = ResultFrame(dispatch=self.dispatch, outcome=outcome)
        self._wake()

    def next(self) -> FromWorker | None:
        """The next frame to send, None if nothing is due."""
        if self._next_seq < self._end_seq:
            self._next_seq += 1
            return self._pieces[self._next_seq - 1 - self._first_seq].frame
        if self.result is not None and not self.result_sent:
            self.result_sent = True
            return self.result
        return None

    def acknowledge(self, seq: int) -> None:
        """Forget the pieces up to `seq`; they are stored."""
        while self._pieces and self._first_seq <= seq:
            self._held_bytes -= self._pieces.popleft().cost
            self._first_seq += 1
        self._next_seq = max(self._next_seq, self._first_seq)
        self._settle_room()

    def resume(self, after: int) -> None:
        """On a new socket: go on after piece `after`, and send the result again."""
        self.acknowledge(after)
        self._next_seq = self._first_seq
        self.repeat_result()

    def forget_output(self) -> None:
        """Owe the result alone."""
        self.acknowledge(self._end_seq)

    def repeat_result(self) -> None:
        """Send the result again if there is one."""
        self.result_sent = False
        self._wake()

    def lift_limit(self) -> None:
        """Never wait again; what comes is bounded by the end of the process."""
        self._unbounded = True
        self._settle_room()

    def drop(self) -> None:
        """Nobody wants it any more: forget everything, and take what still comes to nowhere."""
        self._dropped = True
        self.forget_output()

    @property
    def _end_seq(self) -> int:
        return self._first_seq + len(self._pieces)

    def _settle_room(self) -> None:
        if self._dropped or self._unbounded or self._held_bytes < WINDOW_BYTES:
            self._room.set()
        else:
            self._room.clear()


class Outbox:
    """All that is owed. One socket pulls from it at a time."""

    def __init__(self) -> None:
        self._short: deque[FromWorker] = deque()
        self._deliveries: dict[str, Delivery] = {}
        self._turn: deque[str] = deque()
        self._due = asyncio.Event()

    def __contains__(self, dispatch: str) -> bool:
        return dispatch in self._deliveries

    def __len__(self) -> int:
        return len(self._deliveries)

    @property
    def backlog(self) -> int:
        """Short frames that the socket has not taken."""
        return len(self._short)

    def open(self, dispatch: str) -> Delivery:
        """A new delivery for the dispatch."""
        delivery = Delivery(dispatch, self._due.set)
        self._deliveries[dispatch] = delivery
        self._turn.append(dispatch)
        return delivery

    def of(self, dispatch: str) -> Delivery | None:
        """The delivery of the dispatch, if anything of it is still owed."""
        return self._deliveries.get(dispatch)

    def finished(self) -> list[str]:
        """Dispatches whose result is owed."""
        return [name for name, delivery in self._deliveries.items() if delivery.result is not None]

    def say(self, frame: FromWorker) -> None:
        """Send a short frame on this socket, before all output."""
        self._short.append(frame)
        self._due.set()

    def close(self, dispatch: str) -> None:
        """The dispatch is settled, one way or the other; forget it."""
        delivery = self._deliveries.pop(dispatch, None)
        if delivery is not None:
            delivery.drop()
            self._turn.remove(dispatch)

    def close_all(self) -> None:
        """Forget everything."""
        for dispatch in list(self._deliveries):
            self.close(dispatch)

    def lift_limits(self) -> None:
        """Let no runner wait for an acknowledgement any more."""
        for delivery in self._deliveries.values():
            delivery.lift_limit()

    def new_socket(self) -> None:
        """Forget the short frames of the socket before; they meant nothing beyond it."""
        self._short.clear()

    async def get(self) -> FromWorker:
        """The next frame to send; waits for one."""
        while True:
            self._due.clear()
            frame = self.get_nowait()
            if frame is not None:
                return frame
            await self._due.wait()

    def get_nowait(self) -> FromWorker | None:
        """As `get`; None instead of waiting."""
        if self._short:
            return self._short.popleft()
        for _ in range(len(self._turn)):
            delivery = self._deliveries[self._turn[0]]
            self._turn.rotate(-1)
            frame = delivery.next()
            if frame is not None:
                return frame
        return None


def _output(dispatch: str, seq: int, stream: StreamName, data: bytes) -> Output:
    try:
        return Output(dispatch=dispatch, seq=seq, stream=stream, text=data.decode())
    except UnicodeDecodeError:
        encoded = base64.b64encode(data).decode()
        return Output(dispatch=dispatch, seq=seq, stream=stream, data=encoded)
