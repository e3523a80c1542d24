"""How much goes wrong, drawn once per world: every fault has a rate of its own, often zero."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass
class Rates:
    """Chances are per occasion, `_s` are seconds."""

    lost: float = 0.0
    late: float = 0.0
    doubled: float = 0.0
    late_frame: float = 0.0
    busy_by_mistake: float = 0.0
    slow_disk: float = 0.0
    failing_disk: float = 0.0
    slow_event_log: float = 0.0
    silent_cut: float = 0.0
    crashes: int = 0
    cuts: int = 0
    partitions: int = 0
    deaths: int = 0
    drains: int = 0
    cordons: int = 0
    clock_jumps: int = 0

    def of_the_disk(self) -> Rates:
        """Of these, what the server's disk does, and some cuts."""
        return Rates(slow_disk=self.slow_disk, failing_disk=self.failing_disk, cuts=self.cuts)

    @classmethod
    def drawn(cls, rng: random.Random) -> Rates:
        def sometimes(most: float) -> float:
            return rng.uniform(0.0, most) if rng.random() < 0.5 else 0.0

        def count(most: int) -> int:
            return rng.randint(1, most) if rng.random() < 0.6 else 0

        return cls(
            lost=sometimes(0.3),
            late=sometimes(0.3),
            doubled=sometimes(0.2),
            late_frame=sometimes(0.15),
            busy_by_mistake=sometimes(0.3),
            slow_disk=sometimes(0.05),
            failing_disk=sometimes(0.05),
            slow_event_log=sometimes(0.4),
            silent_cut=sometimes(0.5),
            crashes=count(5),
            cuts=count(8),
            partitions=count(2),
            deaths=count(4),
            drains=count(3),
            cordons=count(3),
            clock_jumps=count(2),
        )
