"""The run controller: makes every live run go on, and end.

Makes true: a step whose dependencies are met has been started; a run whose steps have ended has
ended, with its story. Reads runs, steps, pending dispatches and leases, and the workflow and models
as they were when the run started; writes runs and steps, the spec of pending dispatches, and the
wish to cancel a lease. Woken by all four kinds. It must never run a placed step itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from controllers.controller import Wait, sooner
from controllers.model_locks import ModelLocks
from controllers.run.context import RunContext
from controllers.run.edits import run_as_asked
from controllers.run.line import ModelLine
from controllers.run.live import LiveRun, ended_run, live_run
from controllers.run.planner import Planner
from controllers.run.starter import Starter
from controllers.run.steps import StepKeeper
from controllers.run.telling import RunTeller
from controllers.workqueue import WorkQueue
from datastore.clock import stamp
from datastore.definitions.workflow import Workflow, workflow_from_source
from datastore.errors import SwampError
from datastore.history import build_story
from datastore.journal import Story
from datastore.kinds import (
    LEASES,
    PENDING,
    RUNS,
    STEPS,
    Outcome,
    Run,
    RunSpec,
    RunStatus,
)
from datastore.kinds.dispatch_name import run_of
from datastore.record import Record
from datastore.store import Store

log = logging.getLogger(__name__)

LOOKS_AT_ONCE, LOOKS_FOR_S = 200, 0.003
"""How many changed steps one look at a run takes on, and for how long, before others get a turn:
to cancel a step that waits takes ten times as long as to tell that it waits."""

COUNTS_EVERY_S = 1.0
"""How often a run's record is rewritten at most just because its counts moved."""


class RunController:
    """Reconciles runs by id."""

    def __init__(self, store: Store, context: RunContext) -> None:
        self.queue = WorkQueue()
        self._store = store
        self._context = context
        self.planner = Planner(store, context)
        self._teller = RunTeller(store, context.clock, context.events)
        self._live: dict[str, LiveRun] = {}
        self._untold: set[str] = set()
        self._line = ModelLine(ModelLocks(store, context.only_run))
        self._keeper = StepKeeper(
            store, context.clock, context.events, context.executor, context.new_uid, context.data
        )
        self._starter = Starter(store, self.planner, self._keeper, self._teller, self._line)
        store.watch(RUNS, self.queue.add)
        store.watch(STEPS, self._step_changed)
        store.watch(PENDING, self._dispatch_changed)
        store.watch(LEASES, self._lease_changed)

    def live_keys(self) -> Iterable[str]:
        for live in self._live.values():
            live.dirty.update(dict.fromkeys(live.key_of))
        return [run.name for run in self._store.live(RUNS) if self._is_ours(run.name)]

    def _is_ours(self, run: str) -> bool:
        return self._context.only_run in (None, run)

    def _step_changed(self, name: str) -> None:
        self._touch(run_of(name), name)
        self._models_changed()

    def _lease_changed(self, name: str) -> None:
        self._dispatch_changed(name)
        self._models_changed()

    def _dispatch_changed(self, name: str) -> None:
        self._touch(run_of(name), name.rpartition(".")[0])

    def _models_changed(self) -> None:
        """An execution may have ended: a step that waits here for its model may start."""
        for run in self._line.could_go():
            self.queue.add(run)

    def _touch(self, run: str, step: str) -> None:
        live = self._live.get(run)
        if live is not None and step in live.key_of:
            live.dirty[step] = None
            self.queue.add(run)

    # -- commands --------------------------------------------------------------------------------

    def create(self, workflow: Workflow, spec: RunSpec, name: str) -> Run:
        """A new run of that workflow; it starts as soon as the controller looks."""
        now = stamp(self._context.clock.now())
        run = Record(
            kind=RUNS,
            name=name,
            uid=name,
            created_at=now,
            owner=workflow.name,
            spec=spec,
            status=RunStatus(state="running", started_at=now),
        )
        self._store.commit([run])
        return self._store.get(RUNS, name)

    def cancel(self, name: str, reason: str | None) -> Run:
        """Wish the run to end; finished ones stay as they are. NotFound without it."""
        run = self._store.get(RUNS, name)
        if run.live and not run.spec.cancel:
            self._store.commit([run.with_spec(cancel=True, cancel_reason=reason)])
        return run

    def tell_again(self, names: Iterable[str]) -> None:
        """Finished runs whose event log lacks its end: a crash took it. It is told again."""
        for name in names:
            self._untold.add(name)
            self.queue.add(name)

    def local_ended(self, step: str, outcome: Outcome) -> None:
        """A step that the orchestrator runs itself has ended."""
        live = self._live.get(run_of(step))
        key = live.key_of.get(step) if live is not None else None
        if live is not None and key is not None:
            self._keeper.end_local(live, key, outcome)
            self.queue.add(live.run)

    def totals(self, name: str) -> dict[str, int] | None:
        """The exact counts of a live run; its record shows them at most a second late.

        None, so that the record's hold, until all has been taken on that a restart left of it.
        """
        live = self._live.get(name)
        return live.totals().model_dump() if live is not None and live.taken_on else None

    def upcoming(self) -> Iterator[Mapping[str, int]]:
        """Steps that will ask for a worker, by requirement as far as it is known: per live run."""
        return (live.upcoming() for live in tuple(self._live.values()) if live.taken_on)

    # -- reconciling -----------------------------------------------------------------------------

    async def reconcile(self, name: str) -> Wait | None:
        run = self._store.find(RUNS, name)
        if run is None or not run.live or not self._is_ours(name):
            self._live.pop(name, None)
            if name in self._untold and run is not None:
                await self._tell_again(run)
            return None
        run = run_as_asked(self._store, run)
        live = self._live.get(name)
        if live is None:
            live = await self._adopt(run)
            if live is None:
                return None
        run = self._store.get(RUNS, name)
        if run.spec.cancel and not live.cancelled:
            live.cancelled = True
            live.graph.stop()
            live.dirty.update(dict.fromkeys(live.key_of))
        self._look_at_dirty(live)
        self._starter.look_at_line(live)
        more = await self._starter.start_ready(live)
        self._teller.jobs(live)
        if live.graph.done and not live.dirty:
            await self._finish(live)
            return None
        if more or live.dirty:
            self.queue.add(name)
            return None
        return sooner(self._write_counts(live), self._starter.again_in(live))

    async def _adopt(self, run: Run) -> LiveRun | None:
        try:
            workflow = workflow_from_source(run.spec.definition)
        except (SwampError, ValueError) as error:
            self._end_run(run, "failed", f"its workflow cannot be read: {error}", None)
            return None
        live = self._live[run.name] = self._live_run(run, workflow)
        self._teller.run_started(live)
        live.cancelled = run.spec.cancel
        try:
            await self._starter.catch_up(live, lambda key: self._keeper.known(live, key))
        except BaseException:
            # What had started cannot all be found just now: it is taken on anew.
            del self._live[run.name]
            raise
        self._starter.tell_skips(live)
        if live.cancelled:
            live.graph.stop()
        live.taken_on = True
        return live

    def _live_run(self, run: Run, workflow: Workflow) -> LiveRun:
        return live_run(run, workflow, self._context.env, self._context.data.read)

    async def _tell_again(self, run: Run) -> None:
        """Complete the log of a finished run. Its workflow may be unreadable: then just the end."""
        self._untold.discard(run.name)
        with contextlib.suppress(SwampError, ValueError, OSError):
            live = self._live_run(run, workflow_from_source(run.spec.definition))
            live.cancelled = run.spec.cancel
            self._teller.run_started(live)
            await self._starter.catch_up(
                live, lambda key: self._store.is_finished(STEPS, live.step_name(key))
            )
            self._starter.tell_skips(live)
            self._teller.jobs(live)
        self._teller.run_ended(run)

    def _look_at_dirty(self, live: LiveRun) -> None:
        time_s = asyncio.get_running_loop().time
        until_s = time_s() + LOOKS_FOR_S
        for name in list(islice(live.dirty, LOOKS_AT_ONCE)):
            if time_s() > until_s:
                return
            del live.dirty[name]
            key = live.key_of.get(name)
            if key is not None:
                self._keeper.look(live, key)

    def _write_counts(self, live: LiveRun) -> Wait | None:
        """Bring the counts in the run's record up to date, at most once a second."""
        counts = live.totals()
        if counts == live.written_counts:
            return None
        now_s = asyncio.get_running_loop().time()
        left_s = live.written_at_s + COUNTS_EVERY_S - now_s
        if left_s > 0:
            return Wait(left_s)
        run = self._store.get(RUNS, live.run)
        live.written_counts, live.written_at_s = counts, now_s
        if run.status is not None and run.status.counts != counts:
            status = run.status.model_copy(update={"counts": counts, "jobs": live.graph.jobs})
            self._store.commit([run.with_status(status)])
        return None

    # -- ending ----------------------------------------------------------------------------------

    async def _finish(self, live: LiveRun) -> None:
        """Write the run's end and its story in one commit."""
        run = self._store.get(RUNS, live.run)
        outcome = live.graph.outcome
        failure = live.failure if outcome == "failed" else None
        if outcome == "cancelled":
            failure = run.spec.cancel_reason or "cancelled"
        ended = ended_run(run, outcome, failure, self._context.clock.now(), live)
        assert ended.status is not None
        steps = self._store.by(STEPS, "run", run.name)
        pendings = self._store.by(PENDING, "run", run.name)
        leases = self._store.by(LEASES, "run", run.name)
        text = await self._context.offload(lambda: build_story(ended, steps, pendings, leases))
        run = self._store.get(RUNS, live.run)
        if not run.live:
            return
        story = Story(run.spec.workflow, run.name, text)
        self._store.commit([run.with_status(ended.status)], story=story)
        self._tell_end(run.name)

    def _end_run(self, run: Run, state: str, failure: str, live: LiveRun | None) -> None:
        self._store.commit([ended_run(run, state, failure, self._context.clock.now(), live)])
        self._tell_end(run.name)

    def _tell_end(self, name: str) -> None:
        self._live.pop(name, None)
        self._teller.run_ended(self._store.get(RUNS, name))
