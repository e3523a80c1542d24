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
from swamp.worker.group_table import Entry, entries_in, limit_in, note_given_up

LOOK_S = 2.0
"""How often it looks at the clock."""
AWAKE_S = 30.0
"""So long after it stood still itself, its worker has time to find out what still holds.

Counted while it is awake."""
MARKS_AGAIN_S = 30.0
"""How often it looks for the mark of what it gave up and has no group: that reads all processes."""
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
        self._looked_s = self._forgot_s = now_s()
        self._was_late = False
        self._patience_s = 0.0
        self._ended: set[tuple[int, int | None]] = set()

    def look(self, left: Legacy) -> None:
        """To be called every `LOOK_S` seconds."""
        is_over, entries = self._is_over(), entries_in(self._table)
        for entry in entries:
            if is_over and not entry.given_up:
                note_given_up(self._table, entry)
        # Also before the limit: who went on for a moment and put it off may have begun one.
        self._end([entry for entry in entries if is_over or entry.given_up], left)

    def _is_over(self) -> bool:
        """Whether the limit has come, and been left to a worker that may just have woken, too."""
        now_s, at_s = self._now_s(), limit_in(self._table)
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        was_late, self._was_late = self._was_late, at_s is not None and now_s >= at_s
        if passed_s > 2 * LOOK_S and not was_late:
            self._patience_s = AWAKE_S
        else:
            # Not anew: on a busy machine each look is late.
            self._patience_s -= min(passed_s, 2 * LOOK_S)
        return self._was_late and self._patience_s <= 0

    def _end(self, given_up: list[Entry], left: Legacy) -> None:
        """End them: a group once, for its number may be a stranger's when it has died of that."""
        if self._looked_s - self._forgot_s >= MARKS_AGAIN_S:
            self._forgot_s = self._looked_s
            self._ended = {one for one in self._ended if one[1] is not None}
        new = [one for one in given_up if (one.number, one.group) not in self._ended]
        self._ended = {(one.number, one.group) for one in given_up}
        for entry in new:
            if entry.group is not None:
                self._kill(entry.group)
        if new and left.family is not None:
            kill_marked({f"{left.family}.{entry.number}" for entry in new})


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
