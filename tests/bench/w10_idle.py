"""W10: what a server and a worker cost while nothing happens: memory, CPU, writes."""

from __future__ import annotations

import time

import fleet
import usage
from figures import Bench, Figure, Goal

MIB = 1 << 20


def measure(bench: Bench) -> None:
    """After some work, so that everything is loaded that a first run loads."""
    with fleet.site() as site:
        site.workflow("one")
        site.worker(8)
        site.run("one", 8)
        # Files and checkpoint follow within seconds, the index of definitions at the next rescan.
        time.sleep(bench.size(35, 6))
        server = usage.family(site.server.process.pid)
        worker = usage.family(site.workers[0].process.pid)
        assert len(worker) == 2, "a worker and its guard"
        memory: tuple[list[float], list[float]] = ([], [])
        cpu, written = [], []
        for number in range(bench.rounds):
            bench.say(f"W10 round {number + 1}")
            idle_s = bench.size(40, 8)
            before = [usage.used(pid) for pid in (*server, *worker)]
            time.sleep(idle_s)
            after = [usage.used(pid) for pid in (*server, *worker)]
            spent = sum(now.cpu_s - then.cpu_s for then, now in zip(before, after, strict=True))
            wrote = sum(
                now.written_bytes - then.written_bytes
                for then, now in zip(before, after, strict=True)
            )
            cpu.append(100 * spent / idle_s)
            written.append(wrote * 60 / idle_s)
            memory[0].append(usage.pss_bytes(server) / MIB)
            memory[1].append(usage.pss_bytes(worker) / MIB)
    bench.add(Figure("W10", "memory of the server (PSS)", "MiB", memory[0], goal=Goal(at_most=90)))
    bench.add(Figure("W10", "worker with its guard (PSS)", "MiB", memory[1], goal=Goal(at_most=50)))
    bench.add(Figure("W10", "CPU of all, idle", "%", cpu, goal=Goal(at_most=1)))
    bench.add(Figure("W10", "written per minute, idle", "bytes", written, goal=Goal(at_most=0)))
