"""The dispatches of this worker, from `dispatch` to a settled result.

A dispatch is taken once however often it is sent. What the orchestrator has no lease for is killed,
and nobody is told of it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datastore.kinds import Outcome
from datastore.kinds.dispatch_name import is_probe
from swamp.execute.calls import CallError, ShellCall
from swamp.execute.ending import WORKER_LOST
from swamp.execute.environment import (
    commands_folder,
    data_environment,
    runner_environment,
    with_commands,
)
from swamp.execute.execution import Execution, Host, Order
from swamp.execute.redaction import Redactor
from swamp.protocol import Accepted, Dispatch, Enrolled, Refused
from swamp.traces import EXECUTION, WORKER, Span, span_of, trace_environment, trace_of
from swamp.worker.outbox import Delivery, Outbox
from swamp.worker.slots import Slots

Report = Callable[..., None]
"""Called with the kind of an event and its fields by name; None fields are left out."""

LOST = WORKER_LOST
CUT_OFF = "cut_off"
LEASE_ENDED = "lease_ended"
"""Why runners are killed. Nobody but the worker's own log hears of the last two."""


class Runners:
    """Slots, runners and what they owe. `changed` is called whenever a runner has ended."""

    def __init__(
        self,
        slots: Slots,
        host: Host,
        report: Report,
        changed: Callable[[], None],
        data_url: str,
        ca_cert: Path | None = None,
    ) -> None:
        self.slots = slots
        self.outbox = Outbox()
        self._host = host
        self._report = report
        self._changed = changed
        self._data_url, self._ca_cert = data_url, ca_cert
        # Once for all: a look-up there costs as much as starting a task.
        self._own = dict(os.environ)
        self._commands = commands_folder()
        self._executions: dict[str, Execution] = {}

    @property
    def settled(self) -> bool:
        """Whether nothing runs and nothing is owed."""
        return not len(self.slots) and not len(self.outbox)

    def take(self, frame: Dispatch, tasks: asyncio.TaskGroup) -> bool:
        """Answer the dispatch; True when it occupies a new slot."""
        name = frame.dispatch
        known = self.outbox.of(name)
        if known is not None:
            self.outbox.say(Accepted(dispatch=name))
            known.repeat_result()
            return False
        refusal = self.slots.admit(name)
        if refusal is not None:
            self.outbox.say(Refused(dispatch=name, reason=refusal))
            return False
        self.outbox.say(Accepted(dispatch=name))
        self._report("dispatch_started", **_names(frame))
        delivery = self.outbox.open(name)
        # At once: what asks to stop it may be the next frame of the same message.
        tasks.create_task(self._carry_out(frame, delivery, self._begun(frame, delivery)))
        return True

    def cancel(self, dispatch: str) -> None:
        """Stop the runner; its result follows. Unknown and finished ones are left as they are."""
        execution = self._executions.get(dispatch)
        if execution is not None:
            execution.stop("cancelled")

    def settle(self, enrolled: Enrolled) -> None:
        """Make this side equal to what the orchestrator holds, on a new socket."""
        for name in self.outbox.finished():
            if name not in enrolled.keep:
                self._tell_late(name)
        for name in [*self.slots.taken(), *enrolled.kill]:
            if name not in enrolled.keep:
                self.abandon(name, LEASE_ENDED)
        for name, have in enrolled.keep.items():
            delivery = self.outbox.of(name)
            if delivery is not None:
                delivery.resume(have)
        for name in self.outbox.finished():
            delivery = self.outbox.of(name)
            if delivery is not None and name not in enrolled.keep:
                delivery.forget_output()
                delivery.repeat_result()

    def abandon(self, dispatch: str, reason: str) -> None:
        """Kill the runner if there is one, and owe nothing for it."""
        self.outbox.close(dispatch)
        execution = self._executions.get(dispatch)
        if execution is not None:
            execution.kill(reason)

    def abandon_running(self, reason: str) -> None:
        """Kill every runner; finished results stay owed."""
        for name in self.slots.taken():
            self.abandon(name, reason)

    def stop_all(self) -> None:
        """TERM to every runner; the results say that the worker was lost."""
        self.outbox.lift_limits()
        for execution in self._executions.values():
            execution.stop(LOST)

    def kill_all(self) -> None:
        """KILL to every runner that is left."""
        for execution in self._executions.values():
            execution.kill(LOST)

    def _tell_late(self, dispatch: str) -> None:
        """The lease of a result that is owed has ended: say what that means for the result."""
        delivery = self.outbox.of(dispatch)
        if delivery is not None:
            unless = " (unless it had arrived before)" if delivery.result_sent else ""
            message = f"the result of {dispatch} came too late and is refused{unless}"
            self._report("warning", message=f"{message}: its lease had ended", dispatchId=dispatch)

    async def _carry_out(
        self, frame: Dispatch, delivery: Delivery, begun: Execution | Outcome
    ) -> None:
        name = frame.dispatch
        start_ns = time.time_ns()
        try:
            outcome = begun if isinstance(begun, Outcome) else await begun.run()
        except Exception as error:
            outcome = _fault(error)
        if self._host.traces is not None and not is_probe(name):
            self._host.traces.emit(_span(frame, start_ns, outcome))
        self._executions.pop(name, None)
        self.slots.release(name)
        delivery.finish(outcome)
        self._report("dispatch_finished", **_names(frame), **_ending(outcome))
        self._changed()

    def _begun(self, frame: Dispatch, delivery: Delivery) -> Execution | Outcome:
        """The execution from here on, there to be stopped; or the outcome of what is none."""
        try:
            execution = self._executions[frame.dispatch] = self._execution(frame, delivery)
        except CallError as error:
            return Outcome(ok=False, reason="start_failed", error=str(error))
        except Exception as error:
            return _fault(error)
        return execution

    def _execution(self, frame: Dispatch, delivery: Delivery) -> Execution:
        """CallError for a call that makes no command."""
        call = ShellCall.parse(frame.call)
        # Our span is nearer than the server's, which is in the frame if the server has traces.
        trace = trace_environment(frame.dispatch, WORKER) if self._host.traces is not None else {}
        shipped = frame.environment | trace
        environment = runner_environment(self._own, shipped, call.env)
        environment |= data_environment(self._data_url, frame.credential, self._ca_cert)
        if call.outputs:
            environment = with_commands(environment, self._commands)
        redactor = Redactor([*frame.secrets, frame.credential])
        order = Order(frame.dispatch, call, environment, frame.timeout_s, redactor)
        return Execution(order, delivery.put, self._host)


def _fault(error: Exception) -> Outcome:
    """At the edge of a dispatch: a fault in one must not end the others, nor the connection."""
    return Outcome(ok=False, reason="start_failed", error=f"fault in the worker: {error!r}")


def _span(frame: Dispatch, start_ns: int, outcome: Outcome) -> Span:
    """The execution as this worker saw it, inside of the server's view of it.

    By this machine's clock, and from before the server can have heard of it.
    """
    reason = {} if outcome.ok else {"swamp.reason": outcome.reason}
    return Span(
        name=f"swamp.{WORKER}",
        trace=trace_of(frame.run),
        id=span_of(frame.dispatch, WORKER),
        parent=span_of(frame.dispatch, EXECUTION),
        start_ns=start_ns,
        end_ns=time.time_ns(),
        attributes={"swamp.dispatch": frame.dispatch, "swamp.outcome": outcome.reason, **reason},
        error=None if outcome.ok else outcome.error or outcome.reason,
    )


def _names(frame: Dispatch) -> dict[str, str]:
    return {
        "dispatchId": frame.dispatch,
        "modelType": frame.call.model_type,
        "methodName": frame.call.method,
        "workflowName": frame.workflow,
        "stepName": frame.step,
    }


def _ending(outcome: Outcome) -> dict[str, Any]:
    return {
        "status": "success" if outcome.ok else "error",
        "durationMs": outcome.duration_ms,
        "error": outcome.error,
    }
