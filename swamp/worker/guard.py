"""The guard: a small process that ends what a worker leaves behind when it dies.

It reads lines from a pipe that only the worker holds open: `begin FAMILY` (of marks), `over` and
`tell ["URL", "INSTANCE", "CREDENTIAL"]`. The end of the pipe is the end of the worker; then every
group in the table that it shares with the worker and every process with a mark of the family is
killed, and after that the orchestrator is told, unless the worker said that all is over.
Standard library only, so that it starts in 10 ms and stays small.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from swamp.execute.processes import kill_descendants, signal_group
from swamp.worker.group_table import groups_in


@dataclass
class Legacy:
    """What a worker leaves: the `family` of its marks, and whom to `tell`."""

    family: str | None = None
    tell: tuple[str, str, str] | None = None
    """URL, instance and credential of the report; None when there is nothing to report."""


def main(table: int) -> None:
    """Watch until standard input ends. `table` is the descriptor of the groups."""
    # A service manager signals every process of the unit at once; the guard goes last.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    left = follow(sys.stdin.buffer)
    for group in groups_in(table):
        signal_group(group, signal.SIGKILL)
    if left.family is not None:
        kill_descendants(left.family)
    if left.tell is not None:
        # Only now: what it needs costs memory that no guard of a living worker should hold.
        from swamp.worker.obituary import report_death

        report_death(*left.tell)


def follow(lines: Iterable[bytes]) -> Legacy:
    """What is left at the end of the lines."""
    left = Legacy()
    for line in lines:
        if not line.endswith(b"\n"):
            break
        verb, _, rest = line.decode().strip().partition(" ")
        if verb == "begin":
            left.family = rest
        elif verb == "tell":
            url, instance, credential = json.loads(rest)
            left.tell = (url, instance, credential)
        elif verb == "over":
            left.tell = None
    return left
