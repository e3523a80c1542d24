"""How an execution ended, in words: exit code, signal and reason kept apart."""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from datastore.kinds import Outcome
from swamp.execute.calls import ShellCall

NOT_FOUND = 127
NOT_EXECUTABLE = 126

WORKER_LOST = "worker_lost"
"""The reason of an execution that its worker did not see to the end."""

TIMED_OUT = "timed_out"

_STOPPED = {
    "cancelled": "Command was cancelled",
    WORKER_LOST: "Command was killed: its worker was lost or stopped",
    "cut_off": "Command was killed: the server was out of reach for the whole grace window",
    "lease_ended": "Command was killed: the server had given the step up meanwhile",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """`code` as the system has it (negative: a signal); `stopped` is why we ended it, if we did."""

    code: int
    stopped: str | None
    limit_s: float | None


def describe(ending: Ending, call: ShellCall, texts: tuple[str, str]) -> Outcome:
    """The outcome of a process that ran; `texts` are what is kept of stdout and stderr."""
    ok, reason, error = _judge(ending, call)
    return Outcome(
        ok=ok,
        reason=reason,
        exit_code=ending.code if ending.code >= 0 else None,
        signal=-ending.code if ending.code < 0 else None,
        stdout=texts[0],
        stderr=texts[1],
        error=error,
    )


def never_begun(stopped: str, limit_s: float | None = None) -> Outcome:
    """The outcome of a process that was unwanted before there was one, say by its time limit."""
    if stopped == TIMED_OUT:
        error = f"{_timed_out(limit_s)}, before it could be started"
        return Outcome(ok=False, reason=stopped, error=error)
    return Outcome(ok=False, reason=stopped, error=_STOPPED.get(stopped, "Command was stopped"))


def not_started(error: Exception, call: ShellCall, environment: Mapping[str, str]) -> Outcome:
    """The outcome of a process that could not be created."""
    return Outcome(
        ok=False,
        reason="start_failed",
        error=f"Command could not be started: {_cause(error, call, environment)}",
    )


def _judge(ending: Ending, call: ShellCall) -> tuple[bool, str, str | None]:
    code = ending.code
    if ending.stopped == TIMED_OUT:
        return False, TIMED_OUT, _timed_out(ending.limit_s)
    if ending.stopped is not None:
        return False, ending.stopped, _STOPPED.get(ending.stopped, "Command was stopped")
    if code < 0:
        return False, "signalled", f"Command was killed by signal {-code} ({_signal_name(-code)})"
    if code == 0 or call.ignore_exit_code:
        return True, "completed", None
    if code == NOT_FOUND:
        return False, "not_found", f"Command not found (exit code {code})"
    if code == NOT_EXECUTABLE:
        return False, "failed", f"Command is not executable (exit code {code})"
    return False, "failed", f"Command exited with code {code}"


def _timed_out(limit_s: float | None) -> str:
    return f"Command timed out after {round((limit_s or 0) * 1000)} ms"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def _cause(error: Exception, call: ShellCall, environment: Mapping[str, str]) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.errno == errno.E2BIG:
        name, size = max(
            [("run", len(call.run.encode()))]
            + [(f"env {name}", len(value.encode())) for name, value in environment.items()],
            key=lambda part: part[1],
        )
        return f"command and environment are too large; the largest part, {name}, has {size} bytes"
    if call.working_dir is not None and error.errno in (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EACCES,
    ):
        return f"working directory '{call.working_dir}': {error.strerror}"
    return error.strerror or str(error)
