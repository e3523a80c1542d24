"""`/metrics`: everything that is measured, and how the fleet and the queue are this instant.

What is told of this instant comes from memory: live records, and sizes that are kept anyway. It
does not wait for the disk: a server that cannot write is what somebody wants to see here.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Mapping

from aiohttp import web

from controllers.requirement import requirement
from datastore.kinds import KINDS, LEASES, PENDING, WORKERS
from datastore.meter import About, Gauge, Instrument, Labels
from swamp import __version__
from swamp.serve.metrics_text import CONTENT_TYPE, as_text
from swamp.serve.served import Served
from swamp.views import worker_state

REQUIREMENTS_MOST = 100
WORKERS_MOST = 500
"""What is told one by one, the biggest or the first by name; the rest is `other`, but keeps its
reason or state: there are few of those, and alerts ask for them."""

WORKERS_AT_ONCE = 200
"""Workers that are counted in one piece, so that others get their turn."""

OTHER = "other"

WORKER_STATES = ("idle", "busy", "draining", "cordoned", "unverified", "disconnected")


class Metrics:
    """The route, and the values behind it."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._store = served.store
        self._scheduler = served.manager.scheduler

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self.metrics)]

    async def metrics(self, request: web.Request) -> web.Response:
        text = as_text(await self.collect())
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def collect(self) -> list[Instrument]:
        """Every instrument with its values."""
        served = self._served
        slots, workers = await self._fleet()
        degraded = served.degraded
        return [
            Gauge(
                About(
                    "swamp_queue_depth",
                    "Dispatches that wait for a worker.",
                    ("requirement", "reason"),
                ),
                await self._queue(),
            ),
            Gauge(
                About("swamp_worker_slots", "Slots of connected workers.", ("worker", "state")),
                slots,
            ),
            Gauge(About("swamp_workers", "Workers that are known.", ("state",)), workers),
            *served.measured(),
            Gauge(
                About("swamp_index_records", "Records in memory and index.", ("kind",)),
                {(kind.folder,): self._store.count(kind) for kind in KINDS.values()},
            ),
            Gauge(
                About("swamp_invalid_files", "Files of people that are not in force."),
                {(): len(served.problems())},
            ),
            Gauge(
                About("swamp_degraded", "1 while the disk refuses writes."),
                {(): int(degraded is not None)},
            ),
            Gauge(
                About("swamp_build_info", "Always 1; the label says what runs.", ("version",)),
                {(__version__,): 1},
            ),
        ]

    async def _queue(self) -> Mapping[Labels, float]:
        """How many wait, by requirement and reason.

        Why a requirement waits is worked out once per requirement; others get their turn between.
        """
        found: Tally[Labels] = Tally()
        sizes = self._scheduler.waiting.sizes()
        for number, (key, size) in enumerate(sizes.most_common()):
            first = self._scheduler.waiting.first(key, 1)
            pending = self._store.find(PENDING, first[0]) if first else None
            if pending is not None and pending.live:
                reason = self._scheduler.reasons.of_dispatch(pending.spec).code
                told = number < REQUIREMENTS_MOST
                found[requirement(pending.spec.placement) if told else OTHER, reason] += size
                await asyncio.sleep(0)
        return found

    async def _fleet(self) -> tuple[Mapping[Labels, float], Mapping[Labels, float]]:
        """Slots by worker and state, and workers by state; others get their turn between."""
        slots: Tally[Labels] = Tally()
        live = self._store.live(WORKERS)
        states = Tally(dict.fromkeys(WORKER_STATES, 0))
        states["disconnected"] = self._store.count(WORKERS) - len(live)
        for number, worker in enumerate(sorted(live, key=lambda one: one.name)):
            used = self._store.count_by(LEASES, "worker", worker.name)
            states[worker_state(worker, used > 0)] += 1
            capacity = worker.status.capacity if worker.status is not None else 0
            name = worker.name if number < WORKERS_MOST else OTHER
            slots[name, "used"] += used
            slots[name, "free"] += max(0, capacity - used)
            if number % WORKERS_AT_ONCE == WORKERS_AT_ONCE - 1:
                await asyncio.sleep(0)
        return slots, {(state,): count for state, count in states.items()}
