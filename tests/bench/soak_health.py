"""What a server holds while nothing happens, and whether that is more than it was."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import usage
from figures import Figure, Goal

MIB = 1 << 20
LOOK_S = 6.0
"""Longer than the server takes to tidy up its journal and its memory: every 5 s."""
SETTLES_WITHIN_S = 90.0


@dataclass(frozen=True)
class Health:
    """One look at a server and its repository. Sizes in bytes."""

    pss: int
    rss: int
    fds: int
    threads: int
    journal: int
    """What `journal.db` holds, without the pages that wait to be used again."""
    index: int
    """The same of `index.db`."""
    databases: int
    """Both files with their WALs: as large as at the fullest moment, SQLite gives nothing back."""
    files: int
    """Below `.swamp/` and `datastore/observed/`."""


@dataclass(frozen=True)
class Allowance:
    """How much more than before is no growth: a share, and something on top."""

    share: float = 0.0
    plus: int = 0

    def most(self, before: int) -> float:
        """The most that may be there afterwards."""
        return before * (1 + self.share) + self.plus


ALLOWED: Mapping[str, tuple[str, int, Allowance]] = {
    "pss": ("MiB", MIB, Allowance(0.2, 8 * MIB)),
    "rss": ("MiB", MIB, Allowance(0.2, 8 * MIB)),
    "fds": ("", 1, Allowance()),
    "threads": ("", 1, Allowance(0.0, 2)),
    "journal": ("KiB", 1024, Allowance(0.0, 64 * 1024)),
    "index": ("MiB", MIB, Allowance(0.1, MIB)),
    "databases": ("MiB", MIB, Allowance(1.0, 8 * MIB)),
    "files": ("", 1, Allowance(0.0, 5)),
}
"""By field: the unit it is shown in, its size, and what is no growth. Memory: the allocator keeps
what was needed at the fullest moment, in pieces. Databases: the same, on disk. Threads: two
pools may lack one each at the first look, as they start them when none of their own is idle."""


def look(pid: int, repository: Path) -> Health:
    """At this moment."""
    private = repository / ".swamp"
    status = Path(f"/proc/{pid}/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return Health(
        pss=usage.pss_bytes([pid]),
        rss=int(rss.split()[1]) * 1024,
        fds=_count(Path(f"/proc/{pid}/fd")),
        threads=_count(Path(f"/proc/{pid}/task")),
        journal=_held(private / "journal.db"),
        index=_held(private / "index.db"),
        databases=_sizes(private, "*.db*"),
        files=_files(private) + _files(repository / "datastore" / "observed"),
    )


def settled(pid: int, repository: Path) -> Health:
    """Once two looks in a row are the same but for memory, or after SETTLES_WITHIN_S."""
    until = time.monotonic() + SETTLES_WITHIN_S
    before = look(pid, repository)
    while True:
        time.sleep(LOOK_S)
        now = look(pid, repository)
        same = all(getattr(now, name) == getattr(before, name) for name in ("files", "journal"))
        # The server looks at its garbage every few seconds; memory is at rest after that.
        if (same and abs(now.pss - before.pss) < MIB // 4) or time.monotonic() > until:
            return now
        before = now


GROWS_AT_FIRST = ("pss", "rss", "threads")
"""Judged once the server is warm: memory, and the threads of a pool that begins with none."""


def compared(what: str, before: Health, after: Health, *, memory: bool) -> list[Figure]:
    """One figure for each thing, with what is allowed as its floor; `memory`: it is judged too."""
    figures = []
    for name, (unit, size, allowance) in ALLOWED.items():
        was, now = getattr(before, name), getattr(after, name)
        # Nothing, and nothing allowed: one is enough to tell, and divides.
        most = max(allowance.most(was), 1)
        beginning = f"{was / size:.4g} {unit}".strip()
        title = f"{what}: {name}, {beginning} at the beginning"
        goal = Goal(at_most=1) if memory or name not in GROWS_AT_FIRST else Goal()
        figures.append(Figure("soak", title, unit, [now / size], [most / size], "allowed", goal))
    return figures


def document(health: Health) -> dict[str, int]:
    """For the JSON file."""
    return asdict(health)


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


def _sizes(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


def _held(path: Path) -> int:
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        pages, free, size = (
            db.execute(f"PRAGMA {what}").fetchone()[0]
            for what in ("page_count", "freelist_count", "page_size")
        )
    finally:
        db.close()
    return int((pages - free) * size)


def _files(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if path.is_file())
