"""What must never happen (looked at after every step), and what must have happened in the end.

Numbers are those of the promises in the design. Whatever leaves the server is compared with the
disk at that instant: if the server were killed now, would it still be true?
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import filterfalse
from typing import Any

from controllers.pauses import holds
from controllers.placement import available, matches
from datastore.kinds import LEASES, PAUSES, PENDING, RUNS, STEPS, WORKERS, Counts, is_given_up
from datastore.kinds.dispatch_name import is_probe, run_of
from datastore.kinds.probe import PROBES
from datastore.store import Store
from sim.models import MODELS
from sim.world import World
from swamp.protocol import Ack, Dispatch, Enrolled, ToWorker

IDLE_SLOT_S = 1.5
"""How long a slot may stay free beside a step that could use it."""

IDLE_SLOT_LATE_S = 6.0
"""The same when changes are told up to two seconds late."""

IDLE_SLOT_REFUSED_S = 36.0
"""The same when workers refuse without a reason: after some in a row they are asked ever later."""

IDLE_SLOT_AFTER_LOSS_S = 33.0
"""The same when some are never told: until the next resync, and a little."""


DISK_HAS_ALL_S = 6.1
"""How long after a refusal the disk has taken all: it may be slow then."""


def step_of(dispatch: str) -> str:
    """The step's record of a dispatch id."""
    return dispatch.rpartition(".")[0]


class Watchman:
    """Looks at one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._could_run_since: dict[str, float] = {}
        self._idle_slot_s = IDLE_SLOT_LATE_S if world.rates.late else IDLE_SLOT_S
        if world.rates.lost:
            self._idle_slot_s = IDLE_SLOT_AFTER_LOSS_S
        if world.rates.busy_by_mistake:
            self._idle_slot_s = IDLE_SLOT_REFUSED_S
        self._disk_refused_at = -math.inf
        self.capacity: dict[str, int] = {}
        """Slots of each machine, by its name."""

    # -- what leaves the server ------------------------------------------------------------------

    def frame_leaves(self, frame: ToWorker) -> None:
        """A frame is about to be sent to a worker."""
        world, disk = self._world, self._world.disk
        if isinstance(frame, Dispatch):
            lease = disk.find(LEASES, frame.dispatch)
            if lease is None:
                world.fail(f"promise 1: {frame.dispatch} is sent before its lease is durable")
            elif not is_probe(lease.name):
                worker = disk.find(WORKERS, lease.spec.worker)
                if worker is not None and worker.state == "unverified":
                    world.fail(f"{frame.dispatch} is sent to an unverified worker")
            world.say(f"-> dispatch {frame.dispatch}")
        elif isinstance(frame, Ack):
            lease = disk.find(LEASES, frame.dispatch)
            # The records of a probe go with its verdict.
            gone = lease is None and is_probe(frame.dispatch)
            if not gone and (lease is None or lease.live):
                state = "not there" if lease is None else lease.state
                world.fail(f"promise 3: {frame.dispatch} is acknowledged, its lease is {state}")
            world.truth.settled.add(frame.dispatch)
            world.say(f"-> ack {frame.dispatch}")
        elif isinstance(frame, Enrolled):
            if disk.find(WORKERS, frame.worker) is None:
                world.fail(f"promise 3: {frame.worker} is told to be enrolled, but is not durable")
            world.say(f"-> enrolled {frame.worker} keep {sorted(frame.keep)} kill {frame.kill}")

    def event_published(self, event: dict[str, Any]) -> None:
        """An event becomes readable for clients."""
        run, key, kind = event["run"], event["key"], event["kind"]
        disk, world = self._world.disk, self._world
        world.say(f"event {run[-6:]} {key}")
        if kind == "run_completed":
            record = disk.find(RUNS, run)
            if record is None or record.state != event["status"]:
                world.fail(f"promise 3: the end of run {run} is published before it is durable")
            world.truth.told_ends["runs", run] = event["status"]
        elif key.startswith("dispatched/"):
            lease = disk.find(LEASES, event["dispatch"])
            if lease is None or lease.state == "bound":
                world.fail(f"promise 3: {key} is published before it is durable")
        elif key.startswith("queued/"):
            pending = disk.find(PENDING, event["dispatch"])
            if pending is None or pending.status is None:
                world.fail(f"promise 3: {key} is published before it is durable")
        elif key.startswith("ended/"):
            self._step_end_published(event)

    def _step_end_published(self, event: dict[str, Any]) -> None:
        world = self._world
        found = [
            record
            for (folder, name), record in world.disk.records.items()
            if folder == "steps"
            and run_of(name) == event["run"]
            and (record.spec.job, record.spec.step) == (event["job"], event["step"])
        ]
        if not found or found[0].live:
            world.fail(f"promise 3: {event['key']} is published before the step's end is durable")
            return
        world.truth.told_ends["steps", found[0].name] = str(found[0].state)

    def byte_stored(self, dispatch: str) -> None:
        """The first byte of an output of the dispatch is durable."""
        lease = self._world.disk.find(LEASES, dispatch)
        if lease is None or lease.status.wrote_at is None:
            self._world.fail(f"promise 2: {dispatch} stores a byte, but wroteAt is not durable")
        self._world.truth.stored.add(dispatch)
        self._world.say(f"byte stored {dispatch}")

    # -- after every step ------------------------------------------------------------------------

    def look(self, store: Store | None) -> None:
        """Check everything that must hold at every instant."""
        world = self._world
        per_machine = Counter(world.truth.running.values())
        for machine, running in per_machine.items():
            if running > self.capacity.get(machine, running):
                world.fail(f"promise 5: {running} runners on {machine}")
        steps: set[str] = set()
        for dispatch in world.truth.running:
            step = step_of(dispatch) if world.truth.running[dispatch] != "server" else dispatch
            if step in steps:
                world.fail(f"promise 5: two runners of {step}")
            steps.add(step)
        if store is not None:
            self._look_at(store)

    def _look_at(self, store: Store) -> None:
        leases = store.live(LEASES)
        per_step = Counter(step_of(lease.name) for lease in leases)
        for step, count in per_step.items():
            if count > 1:
                self._world.fail(f"promise 5: {step} has {count} live leases")
        per_worker = Counter(lease.spec.worker for lease in leases)
        for name, count in per_worker.items():
            worker = store.get(WORKERS, name)
            assert worker.status is not None
            if count > worker.status.capacity:
                self._world.fail(f"promise 5: {count} live leases on {name}")
        per_model = self._look_at_models(store)
        self._look_at_waiting(store, per_worker, per_model)

    def _look_at_models(self, store: Store) -> Counter[str]:
        """The executions of each model, by the records and by the truth, are never too many."""
        leases = store.live(LEASES)
        steps = [one for one in store.live(STEPS) if one.spec.placement is None and one.spec.call]
        per_model = Counter([lease.spec.model for lease in leases])
        per_model.update(step.spec.call.model for step in steps if step.spec.call)
        really: Counter[str] = Counter()
        for name in self._world.truth.running:
            found = store.find(PENDING, name) or store.find(STEPS, name)
            if found is not None and found.spec.call:
                really[found.spec.call.model] += 1
        for counted, what in ((per_model, "live executions"), (really, "runners")):
            for model, count in counted.items():
                if 0 < MODELS.get(model, 0) < count:
                    self._world.fail(f"model lock: {count} {what} of {model}")
        return per_model

    def _look_at_waiting(
        self, store: Store, per_worker: Counter[str], per_model: Counter[str]
    ) -> None:
        """No step waits while an eligible worker has a free slot."""
        now = self._world.loop.now
        if store.trouble is not None:
            self._disk_refused_at = now
        if now - self._disk_refused_at <= DISK_HAS_ALL_S:
            # Nothing is placed before the disk has taken what it had refused.
            self._could_run_since.clear()
            return
        free = [
            worker
            for worker in store.live(WORKERS)
            if available(worker)
            and worker.status is not None
            and per_worker[worker.name] < worker.status.capacity
        ]
        could_run = {
            pending.name: pending
            for pending in store.live(PENDING)
            if not is_probe(pending.name)
            and not pending.spec.cancel
            and not any(holds(one.spec, pending.spec.placement) for one in store.live(PAUSES))
            and not 0 < MODELS[pending.spec.call.model] <= per_model[pending.spec.call.model]
            and any(matches(pending.spec.placement, worker) for worker in free)
        }
        for name in [name for name in self._could_run_since if name not in could_run]:
            del self._could_run_since[name]
        for name in could_run:
            since = self._could_run_since.setdefault(name, now)
            if now - since > self._idle_slot_s:
                self._world.fail(f"{name} waits for {now - since:.1f}s beside a free slot")

    def machine_sleeps(self) -> None:
        """When it is back, it refuses steps while it still kills what it has to."""
        self._idle_slot_s = max(self._idle_slot_s, IDLE_SLOT_LATE_S)

    def server_woke(self) -> None:
        """It could give nothing away while it stood still."""
        self._could_run_since.clear()

    # -- after a crash ---------------------------------------------------------------------------

    def swept(self, store: Store) -> None:
        """The store was rebuilt and swept: nothing told is lost, nothing says what is not."""
        world, truth = self._world, self._world.truth
        self._could_run_since.clear()
        for run, cancelled in truth.runs.items():
            record = store.find(RUNS, run)
            if record is None:
                world.fail(f"promise 7: the confirmed run {run} is gone")
            elif cancelled and record.live and not record.spec.cancel:
                world.fail(f"promise 7: the confirmed cancel of run {run} is gone")
        for dispatch in filterfalse(is_probe, truth.settled):
            lease = store.find(LEASES, dispatch)
            if lease is None or lease.live:
                world.fail(f"promise 7: the acknowledged end of {dispatch} is gone")
        kinds = {kind.folder: kind for kind in (RUNS, STEPS)}
        for (folder, name), state in truth.told_ends.items():
            found = store.find(kinds[folder], name)
            if found is None or found.state != state:
                world.fail(f"promise 7: the published end of {folder}/{name} is gone")
        self._nothing_without_owner(store)

    def _nothing_without_owner(self, store: Store) -> None:
        fail = self._world.fail
        live_runs = {run.name for run in store.live(RUNS)}
        if store.live(WORKERS):
            fail("promise 7: a worker is connected after the sweep")
        for pending in store.live(PENDING):
            if pending.status is not None or pending.spec.run not in live_runs:
                fail(f"promise 7: {pending.name} waits after the sweep")
        for lease in store.live(LEASES):
            owned = lease.spec.run in live_runs or is_given_up(lease)
            if lease.state != "recovering" or not owned:
                fail(f"promise 7: the lease {lease.name} is {lease.state} after the sweep")
        for step in store.live(STEPS):
            assert step.status is not None
            here = step.status.state == "running" and step.status.worker is None
            if here or step.spec.run not in live_runs:
                fail(f"promise 7: the step {step.name} is {step.state} after the sweep")

    # -- in the end ------------------------------------------------------------------------------

    def unsettled(self, store: Store) -> list[str]:
        """What is still on its way."""
        truth = self._world.truth
        return [
            f"{kind.title} {record.name} {record.state}"
            for kind in (RUNS, STEPS, PENDING, LEASES)
            for record in store.live(kind)
        ] + [f"runner {name}" for name in sorted(truth.running | truth.asleep)]

    def settled(self, store: Store) -> None:
        """Everything has ended: the records agree with each other and with the events."""
        for worker in store.live(WORKERS):
            if worker.state == "unverified":
                self._world.fail(f"{worker.name} is still unverified, though nothing is wrong")
        for kind in (PENDING, LEASES):
            if left := store.names_by(kind, "run", PROBES):
                self._world.fail(f"of probes there is still {left}")
        for run in store.list(RUNS):
            self._run_adds_up(store, run.name)
        for lease in store.list(LEASES):
            self._output_is_whole(lease)
            if self._world.only_disk and "away for longer" in (lease.status.reason or ""):
                self._world.fail(f"{lease.name} was lost, though only the disk was at fault")
        for record in (*store.list(PENDING), *store.list(LEASES)):
            self._cancelled_for_good(store, record)
        self._few_orphans(store)
        for dispatch in filterfalse(is_probe, sorted(self._world.truth.stored)):
            lease = store.get(LEASES, dispatch)
            if lease.status is None or lease.status.wrote_at is None:
                self._world.fail(f"promise 2: {dispatch} stored a byte without wroteAt")

    def _run_adds_up(self, store: Store, run: str) -> None:
        fail = self._world.fail
        status = store.get(RUNS, run).status
        steps = store.by(STEPS, "run", run)
        assert status is not None
        states = Counter(str(step.state) for step in steps)
        counts: Counts = status.counts
        for state in ("succeeded", "failed", "skipped"):
            if states[state] != getattr(counts, state):
                fail(f"run {run} counts {counts}, its steps are {dict(states)}")
        if states["cancelled"] > counts.cancelled or counts.waiting or counts.running:
            fail(f"run {run} counts {counts}, its steps are {dict(states)}")
        if run not in self._world.disk.stories:
            fail(f"run {run} has no story")
        log = self._world.disk.logs.get(run, [])
        keys = Counter(event["key"] for event in log)
        for key, count in keys.items():
            if count > 1:
                fail(f"run {run}: the event {key} was published {count} times")
        for step in steps:
            if f"ended/{step.spec.job}/{step.spec.step}" not in keys:
                fail(f"run {run}: the end of {step.name} was never told")
        if log and log[-1]["kind"] != "run_completed":
            fail(f"run {run}: the last event is {log[-1]['key']}")

    def _cancelled_for_good(self, store: Store, record: Any) -> None:
        """What somebody cancelled while it lived is not tried again."""
        step, _, episode = record.name.rpartition(".")
        again = f"{step}.{int(episode) + 1}"
        if record.spec.cancel and store.find(PENDING, again) is not None:
            self._world.fail(f"{record.kind.title} {record.name} was cancelled, {again} followed")

    def _few_orphans(self, store: Store) -> None:
        """However often the server was restarted: the newest, and the one before it at a cancel."""
        orphans = Counter(
            step_of(pending.name)
            for pending in store.list(PENDING)
            if pending.state == "orphaned" and not store.has(LEASES, pending.name)
        )
        if many := {step: count for step, count in orphans.items() if count > 2}:
            self._world.fail(f"orphaned dispatches pile up: {many}")

    def _output_is_whole(self, lease: Any) -> None:
        outcome = lease.status.outcome
        made = self._world.truth.pieces.get(lease.name)
        if made is None or outcome is None or outcome.reason not in ("completed", "failed"):
            return
        if lease.spec.cancel and lease.status.recovering_at is not None:
            # Its step was over before: `is_given_up`.
            return
        log = self._world.disk.logs.get(lease.spec.run, [])
        numbers = [
            event["number"]
            for event in log
            if event.get("dispatch") == lease.name and event["kind"] == "output"
        ]
        if numbers != list(range(1, made + 1)):
            self._world.fail(f"{lease.name} printed {made} pieces, the log has {numbers}")
