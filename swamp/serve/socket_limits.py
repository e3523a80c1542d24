"""How much a peer of the workers' socket may ask of the server. Pure: the time is given.

Who sends too fast is read more slowly, and nobody else: nothing of an honest worker is lost by it.
Who fails to enroll too often is put off, unless its token is right after all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

FRAMES_PER_S, FRAMES_AT_ONCE = 5_000, 20_000
BYTES_PER_S, BYTES_AT_ONCE = 32 << 20, 64 << 20

FAILURES_WITHIN_S = 60.0
FAILURES_PER_TOKEN = 10
FAILURES_PER_ADDRESS = 300
REMEMBERED_MOST = 10_000
"""Names and addresses whose failures are remembered; the oldest go first."""


class Bucket:
    """Lets `rate` through per second, and `most` at once."""

    def __init__(self, rate: float, most: float, now_s: float) -> None:
        self._rate, self._most = rate, most
        self._left, self._at_s = most, now_s

    def take(self, amount: float, now_s: float) -> float:
        """Take it; how long to wait before anything more is taken, seconds."""
        self._left = min(self._most, self._left + (now_s - self._at_s) * self._rate) - amount
        self._at_s = now_s
        return max(0.0, -self._left / self._rate)


class Pace:
    """How fast one socket is read."""

    def __init__(self, now_s: float) -> None:
        self._frames = Bucket(FRAMES_PER_S, FRAMES_AT_ONCE, now_s)
        self._bytes = Bucket(BYTES_PER_S, BYTES_AT_ONCE, now_s)

    def take(self, frames: int, size: int, now_s: float) -> float:
        """So many frames, and bytes, have come; how long to wait before more are read, seconds."""
        return max(self._frames.take(frames, now_s), self._bytes.take(size, now_s))


@dataclass
class Failures:
    """Failed enrollments of the last minute: by token name and address, and by address."""

    now_s: Callable[[], float]
    _times: dict[tuple[str, ...], deque[float]] = field(default_factory=dict)

    def note(self, address: str, token: str) -> None:
        """One more."""
        for key in ((address, token), (address,)):
            times = self._times.pop(key, None) or deque(maxlen=FAILURES_PER_ADDRESS)
            times.append(self.now_s())
            self._times[key] = times
        while len(self._times) > REMEMBERED_MOST:
            del self._times[next(iter(self._times))]

    def wait_s(self, address: str, token: str) -> float:
        """How long until another attempt is heard, seconds; 0: now.

        The address counts with the token's name: nobody can lock out a worker by failing with its
        token's name from somewhere else.
        """
        return max(
            self._left_s((address, token), FAILURES_PER_TOKEN),
            self._left_s((address,), FAILURES_PER_ADDRESS),
        )

    def _left_s(self, key: tuple[str, ...], most: int) -> float:
        times = self._times.get(key)
        if times is None or len(times) < most:
            return 0.0
        return max(0.0, times[-most] + FAILURES_WITHIN_S - self.now_s())
