"""New records of steps and of their waiting, filled from the plan or from what was asked before."""

from __future__ import annotations

from collections.abc import Callable

from controllers.run.graph import StepKey
from controllers.run.live import LiveRun
from controllers.run.plan import StepPlan
from datastore.clock import Clock, stamp
from datastore.kinds import PENDING, STEPS, Pending, PendingSpec, Step, StepSpec, StepStatus
from datastore.record import Record


class StepRecords:
    """Makes records; commits nothing."""

    def __init__(self, clock: Clock, new_uid: Callable[[], str]) -> None:
        self._clock = clock
        self._new_uid = new_uid

    def pending(self, live: LiveRun, key: StepKey, spec: PendingSpec) -> Pending:
        """The dispatch of one episode of waiting."""
        return Record(
            kind=PENDING,
            name=f"{live.step_name(key)}.{spec.episode}",
            uid=self._new_uid(),
            created_at=stamp(self._clock.now()),
            owner=live.run,
            spec=spec,
        )

    def step(
        self,
        live: LiveRun,
        key: StepKey,
        status: StepStatus,
        asked: StepPlan | PendingSpec | None = None,
    ) -> Step:
        """The step itself; without `asked` where it ended before it was planned."""
        return Record(
            kind=STEPS,
            name=live.step_name(key),
            uid=self._new_uid(),
            created_at=stamp(self._clock.now()),
            owner=live.run,
            spec=StepSpec(
                run=live.run,
                workflow=live.workflow.name,
                job=key[0],
                step=key[1],
                template=live.template(key),
                call=None if asked is None else asked.call,
                placement=None if asked is None else asked.placement,
            ),
            status=status,
        )
