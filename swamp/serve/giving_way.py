"""Only one live process per machine: who is connected stays if it answers, whatever its socket.

It may come back on another socket while the one that is known is asked, so what is open is looked
at again after each wait: nobody gives way unasked but to its own process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controllers.enrollment import EnrollmentRefused
from swamp.protocol import Enroll
from swamp.serve.dials import Dials
from swamp.serve.session import Session

PROBE_S = 2.0
"""How long the old process of a machine has to show that it lives when a new one enrolls."""

PROBE_PARTS = 4
"""It is waited for in so many parts: a server that stands still misses one, and then reads what had
come meanwhile."""

_AGAIN_MS = 5_000


class GivingWay:
    """Asks who is connected whether it is alive."""

    def __init__(
        self,
        find_open: Callable[[str], Session | None],
        ping: Callable[[Session], None],
        dials: Dials,
    ) -> None:
        """`find_open`: a worker's socket as it is now. `ping`: have it answer."""
        self._find_open = find_open
        self._ping = ping
        self._dials = dials

    async def to(self, worker: str, frame: Enroll) -> None:
        """Return when the worker's socket, if there is one, may be cut for this introduction.

        That holds until the caller next awaits something. EnrollmentRefused if another process is
        alive, or if this may be of one that has ended.
        """
        is_back = self._dials.is_back(worker, frame)
        asked = None
        while (session := self._find_open(worker)) is not None:
            if session.info.instance == frame.instance:
                return
            if session is asked:
                break
            if await _is_alive(session, self._ping):
                raise EnrollmentRefused(
                    "already_connected",
                    f"worker '{worker}' is connected already, from another process that is alive",
                    permanent=False,
                    retry_after_ms=_AGAIN_MS,
                )
            asked = session
        if session is not None and not is_back:
            self._dials.refuse_earlier(worker, frame)


async def _is_alive(session: Session, ping: Callable[[Session], None]) -> bool:
    if not session.welcomed:
        # It came a moment ago, and hears nothing, not even a ping, before that is on disk.
        return True
    if session.pong is None or session.pong.done():
        session.pong = asyncio.get_running_loop().create_future()
    pong = session.pong
    ping(session)
    for _ in range(PROBE_PARTS):
        await asyncio.wait((pong,), timeout=PROBE_S / PROBE_PARTS)
        if pong.done():
            return True
    return False
