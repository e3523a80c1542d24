"""All controllers of a process, wired and run together: the same in `swamp serve` and in tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from controllers.access import AccessController
from controllers.controller import RESYNC_S, Controller, Reconciler
from controllers.enrollment import EnrollmentController
from controllers.lease import LeaseController
from controllers.ports import ForgetEvents, WorkerLink
from controllers.probes import Verification
from controllers.retention import Keep, Retention, no_events
from controllers.run.context import RunContext
from controllers.run.controller import RunController
from controllers.scheduler import Scheduler
from datastore.store import Store


@dataclass(frozen=True, slots=True)
class Settings:
    """What people may choose, and what depends on that."""

    grace_s: float = 60.0
    resync_s: float | None = RESYNC_S
    keep: Keep = field(default_factory=Keep)
    verification: Verification = field(default_factory=Verification)


class Manager:
    """Builds the controllers over a loaded and swept store, runs them, and stops them."""

    def __init__(
        self,
        store: Store,
        link: WorkerLink,
        context: RunContext,
        settings: Settings,
        randomness: random.Random,
        forget_events: ForgetEvents = no_events,
    ) -> None:
        new_uid: Callable[[], str] = context.new_uid
        self.scheduler = Scheduler(store, context.clock, new_uid, grace_s=settings.grace_s)
        self.leases = LeaseController(store, link, context.clock, grace_s=settings.grace_s)
        self.enrollment = EnrollmentController(
            store, link, context.clock, new_uid, settings.verification
        )
        self.runs = RunController(store, context)
        self.retention = Retention(store, context.clock, settings.keep, forget_events)
        reconcilers: dict[str, Reconciler] = {"run": self.runs, "retention": self.retention}
        if context.only_run is None:
            reconcilers["scheduler"] = self.scheduler
            reconcilers["lease"] = self.leases
            reconcilers["enrollment"] = self.enrollment
            reconcilers["access"] = AccessController(store, context.clock)
        self._controllers = [
            Controller(
                name,
                one,
                randomness=randomness,
                behind=lambda: store.behind,
                resync_s=settings.resync_s,
            )
            for name, one in reconcilers.items()
        ]

    def session_changed(self, worker: str) -> None:
        """A worker's socket opened or closed."""
        self.enrollment.session_changed(worker)
        self.leases.session_changed(worker)

    async def run(self) -> None:
        """Run all controllers until `stop`."""
        async with asyncio.TaskGroup() as group:
            for controller in self._controllers:
                group.create_task(controller.run())

    def stop(self) -> None:
        """Take on nothing more; what is under way ends, and `run` returns."""
        for controller in self._controllers:
            controller.stop()
