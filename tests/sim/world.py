"""What everything in one simulated world shares: time, chance, the disk, the trace, the truth.

The truth is what an observer outside would know: which runners really run, which bytes are really
stored, what was really told to somebody. Invariants compare the records with it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from datastore.desired import DesiredFile
from datastore.journal import Story
from datastore.kinds import WORKERS
from datastore.record import Kind, Record
from datastore.store import Wake
from sim.faults import Rates
from sim.loop import SimLoop

EPOCH = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


class Violation(AssertionError):
    """A promise was broken."""


class SimClock:
    """Wall time: virtual time with jumps."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.jumped_s = 0.0

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._loop.now + self.jumped_s)


@dataclass
class Disk:
    """What survives a crash of the server."""

    records: dict[tuple[str, str], Record[Any, Any]] = field(default_factory=dict)
    stories: dict[str, Story] = field(default_factory=dict)
    logs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    desired: dict[tuple[str, str], tuple[Kind[Any, Any], DesiredFile]] = field(default_factory=dict)

    def find(self, kind: Kind[Any, Any], name: str) -> Record[Any, Any] | None:
        return self.records.get((kind.folder, name))


@dataclass
class Truth:
    """What really happened, whatever the records say."""

    running: dict[str, str] = field(default_factory=dict)
    """Dispatches whose runner runs now, and on which worker."""
    asleep: dict[str, str] = field(default_factory=dict)
    """The same for those whose machine stands still, or woke up only just now."""
    started: dict[str, list[str]] = field(default_factory=dict)
    """Dispatches executed so far, by step."""
    stored: set[str] = field(default_factory=set)
    """Dispatches of which a byte of output is stored."""
    pieces: dict[str, int] = field(default_factory=dict)
    """Pieces of output of dispatches whose runner ended by itself."""
    settled: set[str] = field(default_factory=set)
    """Leases whose result was acknowledged."""
    told_ends: dict[tuple[str, str], str] = field(default_factory=dict)
    """Folder and name of records whose end was published, and how they ended."""
    runs: dict[str, bool] = field(default_factory=dict)
    """Runs whose creation was confirmed, and whether a cancel of it was."""
    placed: dict[tuple[str, str], bool] = field(default_factory=dict)
    """By workflow and job/step as written: whether it names a placement."""

    def over(self, dispatch: str) -> None:
        """Its runner is no more."""
        self.running.pop(dispatch, None)
        self.asleep.pop(dispatch, None)


class World:
    """One seed's world."""

    def __init__(self, seed: int, *, only_disk: bool = False) -> None:
        """`only_disk`: nothing goes wrong but the disk, and sockets that are cut and had again."""
        self.seed = seed
        self.rng = random.Random(seed)
        self.edit_rng = random.Random(f"edits {seed}")
        self.model_rng = random.Random(f"models {seed}")
        self.cancel_rng = random.Random(f"cancels {seed}")
        self.sleep_rng = random.Random(f"sleeps {seed}")
        self.file_rng = random.Random(f"files {seed}")
        self.full_rng = random.Random(f"full disks {seed}")
        self.loop = SimLoop()
        self.loop.set_exception_handler(self._callback_failed)
        self.clock = SimClock(self.loop)
        self.disk = Disk()
        self.truth = Truth()
        self.drawn = self.rates = Rates.drawn(self.rng)
        self.only_disk = only_disk
        if only_disk:
            self.drawn = self.rates = self.rates.of_the_disk()
        self.full_until = 0.0
        """When the disk of the server has room again."""
        self.trace: list[str] = []
        self.violations: list[str] = []
        self.away_until: dict[str, float] = {}
        self.starts: Counter[str] = Counter()
        """How many processes a machine has had."""
        """Machines without a network, and until when."""
        self.changed = False
        """Whether something happened since the invariants were looked at."""

    def say(self, what: str) -> None:
        """Add a line to the trace."""
        self.changed = True
        self.trace.append(f"{self.loop.now:9.3f} {what}")

    def fail(self, problem: str) -> None:
        """A promise is broken; the loop stops after this pass."""
        self.say(f"VIOLATION {problem}")
        self.violations.append(problem)

    def chance(self, probability: float) -> bool:
        return probability > 0.0 and self.rng.random() < probability

    def latency_s(self) -> float:
        """How long one frame travels."""
        if self.chance(self.rates.late_frame):
            return self.rng.uniform(0.5, 4.0)
        return self.rng.uniform(0.0002, 0.005)

    def deliver(self, wake: Wake, name: str) -> None:
        """Tell a watcher: at once, late, twice or not at all."""
        rates = self.rates
        if self.chance(rates.lost):
            return
        if self.chance(rates.late):
            self.loop.call_later(self.rng.uniform(0.001, 2.0), wake, name)
            return
        wake(name)
        if self.chance(rates.doubled):
            self.loop.call_later(self.rng.uniform(0.0, 1.0), wake, name)

    def desire(self, worker: str, schedulable: bool) -> DesiredFile:
        """A person edits the desired file of a worker."""
        digest = f"{self.rng.getrandbits(64):016x}"
        file = DesiredFile({"schedulable": schedulable}, digest)
        self.disk.desired[WORKERS.folder, worker] = (WORKERS, file)
        return file

    def ask(self, kind: Kind[Any, Any], name: str, spec: dict[str, Any]) -> DesiredFile:
        """A person edits some other desired file; draws nothing of the world's own."""
        file = DesiredFile(spec, f"{self.edit_rng.getrandbits(64):016x}")
        self.disk.desired[kind.folder, name] = (kind, file)
        return file

    def _callback_failed(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.fail(f"unhandled: {context.get('message')}: {error!r}")
