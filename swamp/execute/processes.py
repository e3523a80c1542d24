"""Ending whole trees of processes: by process group, and by a marker in their environment.

Standard library only, for the guard process imports it without anything else. The marker finds what
left the group (`setsid`, double forks); it needs `/proc` and is a no-op on systems without. Each
execution has a mark of its own: equal dispatch ids of two servers must not kill each other.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress

DISPATCH_VARIABLE = "SWAMP_DISPATCH"
"""Tells each process of a dispatch the dispatch id."""

MARK_VARIABLE = "SWAMP_RUNNER"
"""Holds the mark of the execution, which every process of it inherits."""

_PASSES_MAX = 20


def signal_group(group: int, number: signal.Signals) -> bool:
    """Send the signal to every process of the group; False when nobody is left in it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # macOS answers EPERM for a group of zombies; on Linux it would mean that a step changed
        # its user, which no signal of ours can reach.
        return False
    return True


def group_alive(group: int) -> bool:
    """Whether any process of the group still runs; blocking like `kill_marked`.

    A zombie does not run. It matters: in a container, nobody may ever reap the orphans of a step.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    pids = _pids()
    return not pids or any(_runs_in(pid, group) for pid in pids)


def kill_marked(marks: Collection[str]) -> int:
    """KILL every process that carries one of these marks; says how many.

    Blocking, about 20 µs per process of the machine. It looks again until a pass finds nobody,
    since a process may fork between being seen and being killed.
    """
    wanted = {f"{MARK_VARIABLE}={mark}".encode() for mark in marks}
    killed = 0
    for _ in range(_PASSES_MAX):
        found = _marked(wanted)
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed += len(found)
        if not found:
            break
    return killed


def _marked(wanted: set[bytes]) -> list[int]:
    own = os.getpid()
    return [pid for pid in _pids() if pid != own and wanted & _variables(pid)]


def _pids() -> list[int]:
    """Every process of the machine; nothing where there is no `/proc`."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _runs_in(pid: int, group: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
            # The command's name stands in brackets and may hold anything, brackets too.
            state, _parent, its_group = stat.read(4096).rpartition(b")")[2].split()[:3]
    except OSError:
        return False
    return int(its_group) == group and state not in (b"Z", b"X")


def _variables(pid: int) -> set[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as environ:
            # One read() may return less than everything for a large environment.
            block = b"".join(iter(lambda: environ.read(1 << 20), b""))
    except OSError:
        return set()
    if MARK_VARIABLE.encode() not in block:
        return set()
    return set(block.split(b"\0"))
