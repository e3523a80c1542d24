"""The simulated event log: published after the barrier, written a little later, lost in between.

It keeps the promises of `datastore.events.EventLog` on virtual time: one event per key, output in
numbered pieces, `written` called once the piece is in the file. A kill loses what was not written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datastore.kinds import RUNS
from datastore.store import Store
from sim.world import World

Written = Callable[[], None]


class SimEvents:
    """`RunEvents` and `OutputLog` for one life of the server."""

    def __init__(self, world: World, store: Store, check: Callable[[dict[str, Any]], None]) -> None:
        """`check` looks at each event at the instant it is published."""
        self._world = world
        self._store = store
        self._check = check
        self._keys: dict[str, set[str]] = {}
        self._pieces: dict[str, int] = {}
        self._lines: list[tuple[dict[str, Any] | None, Written | None]] = []
        self._writing = False
        self._alive = True
        self.untold = [
            name
            for name in store.names(RUNS)
            if store.is_finished(RUNS, name) and not _is_complete(world.disk.logs.get(name))
        ]
        for run in [*(record.name for record in store.live(RUNS)), *self.untold]:
            events = world.disk.logs.get(run, [])
            self._keys[run] = {event["key"] for event in events}
            for event in events:
                if event["kind"] == "output":
                    self._pieces[event["dispatch"]] = event["number"]
        self._stored = dict(self._pieces)

    def kill(self) -> None:
        """The process is gone, and with it every line that was not written."""
        self._alive = False
        self._lines.clear()

    def emit(self, run: str, key: str, kind: str, **fields: Any) -> None:
        keys = self._keys.setdefault(run, set())
        if key in keys:
            return
        keys.add(key)
        event = {"run": run, "key": key, "kind": kind, **fields}
        self._store.after_barrier(lambda: self._publish(event, None))

    def output(
        self, run: str, dispatch: str, number: int, event: dict[str, Any], written: Written
    ) -> None:
        have = self._pieces.get(dispatch, 0)
        if number <= have:
            self._store.after_barrier(lambda: self._queue(None, written))
            return
        if number != have + 1:
            self._world.fail(f"output of {dispatch}: piece {number} follows piece {have}")
        self._pieces[dispatch] = number
        line = {"run": run, "key": f"{dispatch}#{number}", "kind": "output", **event}
        line |= {"dispatch": dispatch, "number": number}
        self._store.after_barrier(lambda: self._publish(line, written))

    def output_count(self, run: str, dispatch: str) -> int:
        return self._stored.get(dispatch, 0)

    def _publish(self, event: dict[str, Any], written: Written | None) -> None:
        if not self._alive:
            return
        self._check(event)
        self._queue(event, written)

    def _queue(self, event: dict[str, Any] | None, written: Written | None) -> None:
        self._lines.append((event, written))
        if not self._writing:
            self._writing = True
            world = self._world
            slow = world.chance(world.rates.slow_event_log)
            delay_s = world.rng.uniform(0.5, 3.0) if slow else world.rng.uniform(0.0001, 0.002)
            world.loop.call_later(delay_s, self._write)

    def _write(self) -> None:
        self._writing = False
        lines, self._lines = self._lines, []
        for event, _ in lines:
            if event is not None:
                self._world.disk.logs.setdefault(event["run"], []).append(event)
                if event["kind"] == "output":
                    self._stored[event["dispatch"]] = event["number"]
        for _, written in lines:
            if written is not None:
                written()


def _is_complete(events: list[dict[str, Any]] | None) -> bool:
    return bool(events) and events[-1]["kind"] == "run_completed"
