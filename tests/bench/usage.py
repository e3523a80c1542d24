"""What processes have used so far, as the kernel counts it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Used:
    """Of one process: its CPU time with that of children that it waited for, and its writes."""

    cpu_s: float
    written_bytes: int


def used(pid: int) -> Used:
    """So far, since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15]))
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    counts = dict(line.split(": ") for line in lines)
    return Used(ticks * TICK_S, int(counts["write_bytes"]))


def cpu_s(pids: Iterable[int]) -> float:
    """The CPU time of several processes and the children that they waited for, seconds."""
    return sum(used(pid).cpu_s for pid in pids)


def own_children_cpu_s() -> float:
    """The CPU time of what this process started and waited for, seconds."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def pss_bytes(pids: Iterable[int]) -> int:
    """The proportional share of memory of several processes."""
    return sum(_pss(pid) for pid in pids)


def _pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no Pss of process {pid}")


def children(pid: int) -> list[int]:
    """The processes that it has started and that are alive."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    return [pid, *(below for child in children(pid) for below in family(child))]
