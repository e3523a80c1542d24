"""Places of sockets that are open and not enrolled: who says nothing holds none against others.

Promises: what a dial shows (`callers`) decides which places it takes, so that strangers take none
from whoever has a token, and these none from workers that were here before. Where all are taken,
the one that has been silent for longest gives way, and is told so; who has spoken never does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from controllers.enrollment import EnrollmentRefused
from swamp.serve.callers import Caller, Standing
from swamp.serve.connections import Connections

ARRIVING_MOST = 1_000
"""Sockets that may be open and not enrolled yet, all addresses together: so many of workers that
were here before, of others that show a token, and of those that show nothing: of these, no more
than their share of `Connections`."""

TRY_AGAIN_MS = 2_000
"""When those are to come again that find no place, or lose it; workers spread themselves over half
as long more."""

OF_ONE_WORKER = 2
"""Sockets of one known worker: its own, and one that it has given up and we have not noticed."""


class Place:
    """One socket's, from its upgrade until its worker is enrolled or refused."""

    def __init__(self, caller: Caller, number: int) -> None:
        """`number`: of its socket's file."""
        self.caller, self.number = caller, number
        self.gave_way = False
        self._patience: asyncio.Timeout | None = None

    def until(self, within_s: float) -> asyncio.Timeout:
        """A time limit for its first word: it ends early when the place is given to another."""
        self._patience = asyncio.timeout(within_s)
        return self._patience

    def give_way(self) -> None:
        """Another has come."""
        self.gave_way = True
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())


class Arrivals:
    """All those places: `most` for each standing, and for strangers what `connections` allow.

    `who` tells who dials, by the two headers of a worker's dial.
    """

    def __init__(
        self,
        who: Callable[[str, str], Caller],
        connections: Connections,
        *,
        most: int = ARRIVING_MOST,
    ) -> None:
        self._who, self.connections = who, connections
        self._most = most
        connections.ask(self.give_way)
        self._here: dict[Standing, set[Place]] = {standing: set() for standing in Standing}
        # The first is the oldest.
        self._silent: dict[Standing, dict[Place, None]] = {standing: {} for standing in Standing}
        self._of_worker: dict[str, list[Place]] = {}

    @contextmanager
    def arrive(self, names: str, proof: str, number: int) -> Iterator[Place]:
        """A place meanwhile; EnrollmentRefused if all are taken by others that are enrolling.

        `number`: of the socket's file.
        """
        caller = self._who(names, proof)
        if caller.standing is Standing.STRANGER:
            self.connections.doubt(number)
        self._make_room(caller)
        place = Place(caller, number)
        self._here[caller.standing].add(place)
        self._silent[caller.standing][place] = None
        if caller.worker:
            self._of_worker.setdefault(caller.worker, []).append(place)
        try:
            yield place
        finally:
            self._leave(place)

    def spoke(self, place: Place) -> None:
        """Something has come on its socket: it keeps its place."""
        self._silent[place.caller.standing].pop(place, None)

    def give_way(self, many: int, share: int) -> int:
        """Have so many of the strangers beyond a share give way, if they are silent; how many."""
        silent = self._silent[Standing.STRANGER]
        most = min(many, len(self._here[Standing.STRANGER]) - share)
        going = list(islice(silent, max(0, most)))
        for place in going:
            self._leave(place)
            place.give_way()
        return len(going)

    def _make_room(self, caller: Caller) -> None:
        own = self._of_worker.get(caller.worker, [])
        if len(own) >= OF_ONE_WORKER:
            self._have_give_way(caller, own)
        elif len(self._here[caller.standing]) >= self._most_of(caller.standing):
            self._have_give_way(caller, self._silent[caller.standing])

    def _most_of(self, standing: Standing) -> int:
        if standing is Standing.STRANGER:
            return min(self._most, self.connections.share)
        return self._most

    def _have_give_way(self, caller: Caller, among: Iterable[Place]) -> None:
        silent = self._silent[caller.standing]
        oldest = next((place for place in among if place in silent), None)
        if oldest is None:
            raise too_many(f"{len(self._here[caller.standing])} others are enrolling just now")
        self._leave(oldest)
        oldest.give_way()

    def _leave(self, place: Place) -> None:
        standing, worker = place.caller.standing, place.caller.worker
        self._here[standing].discard(place)
        self._silent[standing].pop(place, None)
        own = self._of_worker.get(worker, [])
        if place in own:
            own.remove(place)
            if not own:
                del self._of_worker[worker]


def too_many(message: str) -> EnrollmentRefused:
    """Why a worker is to come again later."""
    return EnrollmentRefused(
        "too_many_at_once", message, permanent=False, retry_after_ms=TRY_AGAIN_MS
    )
