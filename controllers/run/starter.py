"""Opens the steps of runs that are ready and starts their copies; takes on what had started.

What cannot be opened or planned just now, as too many files are open, say, is tried again later and
holds up nothing else of its run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import count

from controllers.controller import Wait
from controllers.run.graph import StepKey, Unit
from controllers.run.line import ModelLine
from controllers.run.live import LiveRun
from controllers.run.planner import Planner, kept_name
from controllers.run.steps import StepKeeper
from controllers.run.telling import RunTeller
from datastore.errors import SwampError
from datastore.kinds import RUNS
from datastore.store import Store

log = logging.getLogger(__name__)

STARTS_AT_ONCE = 10
"""How many steps one look at a run starts before others get their turn."""

LOOKS_AT_ONCE = 200
"""How many names of copies are looked up before others get their turn."""

TRY_AGAIN_S = 1.0
"""After how long what was refused is tried again."""


class Starter:
    """Of all live runs. Every method is for one of them."""

    def __init__(
        self, store: Store, planner: Planner, keeper: StepKeeper, teller: RunTeller, line: ModelLine
    ) -> None:
        self._store = store
        self._planner = planner
        self._keeper = keeper
        self._teller = teller
        self._line = line

    async def catch_up(self, live: LiveRun, known: Callable[[StepKey], bool]) -> None:
        """Take on what an earlier process started, before anything is started or given up.

        A cancel must reach those steps, and they count against the limits. OSError if one of them
        cannot be: it is all to be done anew.
        """
        later: list[Unit] = []
        any_started = self._keeper.knows_any(live)
        await self._keeper.episodes.learn(live.run)
        await self._teller.first_jobs(live)
        for number in count(1):
            if number % STARTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            unit = live.graph.take_opening()
            if unit is not None and self._planner.is_to_wait(live, unit):
                later.append(unit)
                continue
            was_opened = False
            if unit is None and later and any_started:
                unit = self._planner.take_opened(live, later)
                was_opened = True
            if unit is None:
                break
            if await self._opened(live, unit, was_opened=was_opened) and any_started:
                await self._take_on(live, unit, known)
            self._teller.jobs(live)
        live.graph.put_back(*later)

    async def _opened(self, live: LiveRun, unit: Unit, *, was_opened: bool) -> bool:
        try:
            await self._open(live, unit)
        except OSError:
            if was_opened or self._planner.was_opened(live, unit):
                raise
            live.graph.set_aside(unit)
            live.try_again_at_s = _now_s()
            return False
        return True

    async def _take_on(self, live: LiveRun, unit: Unit, known: Callable[[StepKey], bool]) -> None:
        """Look at every copy of a unit once, a slice at a time."""
        job, started = unit.job.name, list[str]()
        for number, name in enumerate(tuple(unit.ready), 1):
            if known((job, name)):
                started.append(name)
            if number % LOOKS_AT_ONCE == 0:
                await asyncio.sleep(0)
        live.graph.take_on(unit, started)
        for number, name in enumerate(started, 1):
            key = (job, name)
            live.key_of[live.step_name(key)] = key
            self._keeper.look(live, key)
            if number % STARTS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def start_ready(self, live: LiveRun) -> bool:
        """Start what may start, a slice at a time; True if there is more."""
        if live.try_again_at_s is not None and _now_s() >= live.try_again_at_s:
            live.try_again_at_s = None
            live.graph.try_again()
        self._teller.jobs(live)
        for _ in range(STARTS_AT_ONCE):
            if (unit := live.graph.take_opening()) is not None:
                try:
                    await self._open(live, unit)
                except OSError as error:
                    self._refused(live, unit, error)
                except BaseException:
                    _set_aside(live, unit)
                    raise
                continue
            if (key := live.graph.take_ready()) is None:
                break
            await self._start(live, key)
        self.tell_skips(live)
        return live.graph.has_ready

    def look_at_line(self, live: LiveRun) -> None:
        """Start the steps whose model is free by now, or give them up."""
        if live.cancelled:
            for key in self._line.leave(live.run):
                self._keeper.cancel_unstarted(live, key)
        while (first := self._line.take(live.run)) is not None:
            self._keeper.start(live, *first)

    def tell_skips(self, live: LiveRun) -> None:
        """Record the steps that will not run."""
        while (skip := live.graph.take_skip()) is not None:
            self._keeper.skip(live, skip.key, skip.reason)

    async def _open(self, live: LiveRun, unit: Unit) -> None:
        kept = await self._planner.open(live, unit)
        run = self._store.get(RUNS, live.run)
        if kept is not None and run.live and run.status is not None:
            for_each = {**(run.status.for_each or {}), kept_name(unit): kept}
            status = run.status.model_copy(update={"for_each": for_each})
            self._store.commit([run.with_status(status)])

    async def _start(self, live: LiveRun, key: StepKey) -> None:
        live.key_of[live.step_name(key)] = key
        if self._keeper.known(live, key):
            self._keeper.look(live, key)
            return
        if (early := live.failed_early.pop(key, None)) is not None:
            self._fail_early(live, key, early)
            return
        try:
            plan = await self._planner.plan(live, key)
        except SwampError as error:
            self._fail_early(live, key, str(error))
            return
        except OSError as error:
            del live.key_of[live.step_name(key)]
            self._refused(live, key, error)
            return
        except BaseException:
            del live.key_of[live.step_name(key)]
            _set_aside(live, key)
            raise
        if live.cancelled or self._store.get(RUNS, live.run).spec.cancel:
            self._keeper.cancel_unstarted(live, key)
            return
        if plan.placement is None and (reason := self._line.held(plan)) is not None:
            self._keeper.is_ready(live, key, plan)
            self._keeper.tell.held(live, key, reason)
            self._line.join(live.run, key, plan)
            return
        self._keeper.start(live, key, plan)

    def _fail_early(self, live: LiveRun, key: StepKey, error: str) -> None:
        task = live.written(key)[1].task
        model = task.model_id_or_name or task.model_name or ""
        self._keeper.tell.started(live, key, model, task.method_name)
        self._keeper.fail(live, key, error)

    # -- what is refused -------------------------------------------------------------------------

    def _refused(self, live: LiveRun, handed: Unit | StepKey, error: OSError) -> None:
        """Set it aside. Why is told of one of many, and again when it changes."""
        _set_aside(live, handed)
        why = str(error)
        if why == live.refused:
            return
        live.refused = why
        key = handed.key if isinstance(handed, Unit) else handed
        reason = f"cannot be prepared just now: {why}; it is tried again"
        self._keeper.tell.refused(live, key, reason)
        log.warning("run %s: step %s/%s: %s", live.run, *key, reason)

    def again_in(self, live: LiveRun) -> Wait | None:
        """When to look at the run for what was refused."""
        if live.try_again_at_s is None:
            return None
        return Wait(max(0.0, live.try_again_at_s - _now_s()))


def _set_aside(live: LiveRun, handed: Unit | StepKey) -> None:
    """Have it come again in a while."""
    live.graph.set_aside(handed)
    if live.try_again_at_s is None:
        live.try_again_at_s = _now_s() + TRY_AGAIN_S


def _now_s() -> float:
    return asyncio.get_running_loop().time()
