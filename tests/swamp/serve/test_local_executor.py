"""Steps that the server runs itself: what one of them meets is its own affair."""

from __future__ import annotations

import asyncio
from pathlib import Path

from test_hostile_workers import AtOnce
from test_sessions_secrets import ASK

from datastore.clock import SystemClock
from datastore.events import EventLog
from datastore.kinds import KINDS, STEPS, Call, Outcome, StepSpec, StepStatus
from datastore.layout import Layout
from datastore.record import Record
from datastore.repository_init import initialize
from datastore.store import Store
from swamp.serve.dispatch_secrets import DispatchSecrets
from swamp.serve.local_executor import LocalRunner

AT = "2026-11-29T12:00:00.000Z"


def unforeseen(vault: str, key: str) -> str:
    raise ValueError("unforeseen")


async def test_a_fault_of_the_vault_fails_the_step_and_ends_no_server(tmp_path: Path) -> None:
    """Regression: the server ended, and with it all that it ran; a worker's step only failed."""
    initialize(tmp_path, SystemClock().now())
    layout, store = Layout(tmp_path), Store(KINDS.values(), AtOnce())
    events = EventLog(layout.events, SystemClock(), store.after_barrier, layout.expect_root)
    runner = LocalRunner(store, events, layout, DispatchSecrets(read=unforeseen))
    ended = asyncio.Queue[tuple[str, Outcome]]()
    runner.bind(lambda step, outcome: ended.put_nowait((step, outcome)))
    calls: dict[str, Call] = {}
    for name, value in (("r.j.asks", ASK), ("r.j.other", "given")):
        call = calls[name] = Call(
            model_type="command/shell", model="m", method="execute",
            arguments={"run": "true", "env": {"K": value}},
        )  # fmt: skip
        spec = StepSpec(run="r", workflow="w", job="j", step=name.split(".")[2], call=call)
        store.commit([Record(STEPS, name, name, AT, spec, StepStatus(state="running"))])
    async with asyncio.TaskGroup() as group:
        running = group.create_task(runner.run("http://127.0.0.1/"))
        async with asyncio.timeout(20):
            for name in calls:
                runner.start(name, calls[name], None)
            found = dict([await ended.get() for _ in "12"])
        running.cancel()
    await asyncio.to_thread(events.close, 5.0)
    asks = found["r.j.asks"]
    assert (asks.ok, asks.reason) == (False, "start_failed")
    assert asks.error == ("secret 'KEY' of vault 'main': its vault is damaged (ValueError)")
    assert found["r.j.other"].ok
    assert not runner.running("r.j.asks")
