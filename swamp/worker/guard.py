"""The guard: a small process that ends what a worker leaves behind when it dies or stands still.

It reads lines from a pipe that only the worker holds open: `begin FAMILY` (of marks), `over` and
`tell ["URL", "INSTANCE", "CREDENTIAL"]`. The end of the pipe is the end of the worker; then every
group in the table that it shares with the worker and every process with a mark of the family is
killed, and after that the orchestrator is told, unless the worker said that all is over. A worker
that is stopped (`SIGSTOP`, Ctrl-Z) leaves its pipe open: what it runs is ended once the moment has
come that it named in the table and has not put off since.
Standard library only, so that it starts in 10 ms and stays small.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from swamp.execute.processes import kill_descendants, kill_marked, signal_group
from swamp.worker import real_time
from swamp.worker.group_table import entries_in, limit_in, note_given_up

LOOK_S = 2.0
"""How often it looks at the clock."""
AWAKE_S = 30.0
"""So long after it stood still itself, its worker has time to find out what still holds."""
_CHUNK_BYTES = 65_536


@dataclass
class Legacy:
    """What a worker leaves: the `family` of its marks, and whom to `tell`."""

    family: str | None = None
    tell: tuple[str, str, str] | None = None
    """URL, instance and credential of the report; None when there is nothing to report."""


class Limit:
    """Ends what runs when a worker that is stopped should have given it up."""

    def __init__(
        self,
        table: int,
        now_s: Callable[[], float] = real_time.now_s,
        kill: Callable[[int], object] = lambda group: signal_group(group, signal.SIGKILL),
    ) -> None:
        self._table, self._now_s, self._kill = table, now_s, kill
        self._looked_s = now_s()
        self._woke_s: float | None = None

    def look(self, left: Legacy) -> None:
        """To be called every `LOOK_S` seconds."""
        now_s = self._now_s()
        if now_s - self._looked_s > 2 * LOOK_S:
            self._woke_s = now_s
        self._looked_s = now_s
        at_s = limit_in(self._table)
        if at_s is None or now_s < at_s:
            return
        if self._woke_s is None or now_s - self._woke_s >= AWAKE_S:
            self._give_up(left)

    def _give_up(self, left: Legacy) -> None:
        late = [entry for entry in entries_in(self._table) if not entry.given_up]
        for entry in late:
            note_given_up(self._table, entry)
            if entry.group is not None:
                self._kill(entry.group)
        if late and left.family is not None:
            kill_marked({f"{left.family}.{entry.number}" for entry in late})


def main(table: int) -> None:
    """Watch until standard input ends. `table` is the descriptor of the groups."""
    # A service manager signals every process of the unit at once; the guard goes last.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    left, limit = Legacy(), Limit(table)
    follow(left, lines_of(sys.stdin.fileno(), lambda: limit.look(left)))
    for entry in entries_in(table):
        if entry.group is not None:
            signal_group(entry.group, signal.SIGKILL)
    if left.family is not None:
        kill_descendants(left.family)
    if left.tell is not None:
        # Only now: what it needs costs memory that no guard of a living worker should hold.
        from swamp.worker.obituary import report_death

        report_death(*left.tell)


def lines_of(handle: int, look: Callable[[], None]) -> Iterator[bytes]:
    """Whole lines until the end of the pipe; `look` is called all the while."""
    rest = b""
    while True:
        ready, _, _ = select.select([handle], [], [], LOOK_S)
        if ready:
            data = os.read(handle, _CHUNK_BYTES)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
        look()


def follow(left: Legacy, lines: Iterable[bytes]) -> None:
    """Note what is left, line by line."""
    for line in lines:
        verb, _, rest = line.decode().strip().partition(" ")
        if verb == "begin":
            left.family = rest
        elif verb == "tell":
            url, instance, credential = json.loads(rest)
            left.tell = (url, instance, credential)
        elif verb == "over":
            left.tell = None
