"""The guard: a small process that ends what a worker leaves behind when it dies.

It reads lines from a pipe that only the worker holds open: `begin MARK`, `group PGID MARK` and
`end MARK`. The end of the pipe is the end of the worker; then everything that has begun and not
ended is killed. Standard library only, so that it starts in 10 ms and stays small.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable

from swamp.execute.processes import kill_marked, signal_group


def main() -> None:
    """Watch until standard input ends."""
    # A service manager signals every process of the unit at once; the guard goes last.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    left = follow(sys.stdin.buffer)
    for group in left.values():
        if group is not None:
            signal_group(group, signal.SIGKILL)
    if left:
        kill_marked(left.keys())


def follow(lines: Iterable[bytes]) -> dict[str, int | None]:
    """The marks of what has begun and not ended, each with its process group if it has one."""
    left: dict[str, int | None] = {}
    for line in lines:
        if not line.endswith(b"\n"):
            break
        verb, *words = line.decode().split()
        if verb == "begin":
            left[words[0]] = None
        elif verb == "group":
            left[words[1]] = int(words[0])
        elif verb == "end":
            left.pop(words[0], None)
    return left
