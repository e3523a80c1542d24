"""Ending whole trees of processes: by process group, and by a marker in their environment.

Standard library only, for the guard process imports it without anything else. The marker finds what
left the group (`setsid`, double forks); it needs `/proc` and is a no-op on systems without. Each
execution has a mark of its own: equal dispatch ids of two servers must not kill each other.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

DISPATCH_VARIABLE = "SWAMP_DISPATCH"
"""Tells each process of a dispatch the dispatch id."""

MARK_VARIABLE = "SWAMP_RUNNER"
"""Holds the mark of the execution, which every process of it inherits."""

_PASSES_MAX = 20
_DEAD = (None, b"Z", b"X")
_DIE_WITHIN_S = 1.0
_FORKS_PER_S = 100_000
"""More than a machine starts: before so many, no pid has been given twice."""

_BORN_MEANWHILE = 1_000
"""Processes of the whole machine between the start of one and the next instruction: not so many."""

_FEW = 128
"""Pids that are looked at one by one while others wait."""


def signal_group(group: int, number: signal.Signals) -> bool:
    """Send the signal to every process of the group; False when nobody is left in it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # macOS answers EPERM for a group of zombies; on Linux it would mean that a step changed
        # its user, which no signal of ours can reach.
        return False
    return True


def group_exists(group: int) -> bool:
    """Whether any process of the group, be it a zombie, is there: until then its number is too."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def group_alive(group: int) -> bool:
    """Whether any process of the group still runs; blocking like `kill_marked`.

    A zombie does not run. It matters: in a container, nobody may ever reap the orphans of a step.
    """
    if not group_exists(group):
        return False
    pids = _pids()
    return not pids or any(_runs_in(pid, group) for pid in pids)


def kill_marked(marks: Collection[str], after: Birth | None = None) -> int:
    """KILL every process that carries one of these marks; says how many.

    Blocking, about 20 µs per process of the machine, or of those born after the given birth. It
    looks again until a pass finds nobody, since a process may fork between being seen and being
    killed.
    """
    wanted = {f"{MARK_VARIABLE}={mark}".encode() for mark in marks}
    return _kill(lambda variables: bool(wanted & variables), after)


def kill_descendants(*families: str) -> int:
    """As `kill_marked`: every process whose mark is of one of these families (`FAMILY.…`)."""
    begins = tuple(f"{MARK_VARIABLE}={family}.".encode() for family in families)
    return _kill(lambda variables: any(one.startswith(begins) for one in variables), None)


@dataclass(frozen=True, slots=True)
class Birth:
    """A process that was born: its descendants have later pids, until pids begin anew."""

    pid: int
    at_s: float
    """By the monotonic clock."""
    counted: bool = True
    """Whether the system tells the pids that it gives: in some containers it tells of others."""

    @classmethod
    def of(cls, pid: int) -> Birth:
        """The birth of a process that was started just now."""
        newest = _newest_pid()
        counted = newest is not None and 0 <= newest - pid <= _BORN_MEANWHILE
        return cls(pid, time.monotonic(), counted)

    def later(self, pids: Iterable[int]) -> list[int]:
        """Those which may be younger; all of them when pids may have gone all the way round."""
        found = list(pids)
        newest = self._newest()
        if newest is None:
            return found
        if newest >= self.pid:
            return [pid for pid in found if self.pid < pid <= newest]
        return [pid for pid in found if pid > self.pid or pid <= newest]

    def nobody_after(self, others: Collection[int]) -> bool:
        """Whether none but these others may be younger and still be there.

        Waits for nothing, and so it says no where that takes a longer look.
        """
        newest = self._newest()
        if newest is None or not 0 <= newest - self.pid <= _FEW:
            return False
        for pid in range(self.pid + 1, newest + 1):
            if pid not in others and _exists(pid):
                return False
        # One that has gone may have left another behind, which is the newest then.
        return _newest_pid() == newest

    def _newest(self) -> int | None:
        """The pid that was given last, None if any pid may have been given since."""
        if not self.counted or time.monotonic() - self.at_s > _pid_max() / _FORKS_PER_S:
            return None
        return _newest_pid()


def _kill(is_wanted: Callable[[set[bytes]], bool], after: Birth | None) -> int:
    # One that is being killed may be seen again by the next pass.
    killed: set[int] = set()
    own = os.getpid()
    for _ in range(_PASSES_MAX):
        pids = _pids() if after is None else after.later(_pids())
        found = [pid for pid in pids if pid != own and is_wanted(_variables(pid))]
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed.update(found)
        if not found:
            break
    _let_die(killed)
    return len(killed)


def _let_die(pids: Iterable[int]) -> None:
    """Return once they do not run any more: a signal is sent before it is obeyed."""
    until_s = time.monotonic() + _DIE_WITHIN_S
    for pid in pids:
        while _state(pid) not in _DEAD and time.monotonic() < until_s:
            time.sleep(0.0005)


def _state(pid: int) -> bytes | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
            return stat.read(4096).rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _newest_pid() -> int | None:
    """The pid that was given last, in our own namespace; None where nobody says."""
    load = _load()
    with suppress(OSError, ValueError, IndexError):
        return None if load is None else int(os.pread(load, 256, 0).split()[4]) or None
    return None


@cache
def _load() -> int | None:
    """The file that tells it, open."""
    with suppress(OSError):
        return os.open("/proc/loadavg", os.O_RDONLY)
    return None


@cache
def _pid_max() -> int:
    with suppress(OSError, ValueError), open("/proc/sys/kernel/pid_max", "rb") as number:
        return int(number.read())
    return 0


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
