"""Which methods of which model types exist, and the checked form of their arguments.

The server validates with it before anything is dispatched, the worker again before it starts.
"""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from datastore.errors import SwampError
from datastore.kinds import Call
from datastore.kinds.probe import MARKER, PROBE_METHOD, PROBE_TYPE

SHELL = "command/shell"
ARGUMENTS = ("run", "workingDir", "timeout", "env", "ignoreExitCode", "outputs")
_OUTPUT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


class CallError(SwampError):
    """A call that names an unknown type, method or argument, or gives a value that cannot be.

    `argument` is the one to blame, where there is one.
    """

    def __init__(self, message: str, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


@dataclass(frozen=True, slots=True)
class ShellCall:
    """A checked `command/shell` call. `timeout_ms` None: no limit of its own.

    `outputs` are the names that the step may put.
    """

    run: str
    working_dir: str | None = None
    timeout_ms: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    ignore_exit_code: bool = False
    outputs: tuple[str, ...] = ()

    @staticmethod
    def parse(call: Call) -> ShellCall:
        """The call, checked; CallError names the argument, what was found and what fits."""
        methods = methods_of(call.model_type)
        if call.method not in methods:
            raise CallError(
                f"{call.model_type} has no method '{call.method}'"
                f"{_instead(call.method, methods, 'methods')}"
            )
        return methods[call.method](call)


def check_written(call: Call, computed: Collection[str]) -> None:
    """CallError for a call that no values of its `computed` arguments could mend.

    Those are checked by name; all others are in the call.
    """
    unknown: dict[str, Any] = dict.fromkeys(computed)
    if "run" in unknown:
        unknown["run"] = "computed"
    ShellCall.parse(call.model_copy(update={"arguments": {**call.arguments, **unknown}}))


def methods_of(model_type: str) -> Mapping[str, Callable[[Call], ShellCall]]:
    """The methods of the type, each with the parser of its arguments; CallError if unknown."""
    if model_type not in _TYPES:
        raise CallError(
            f"unknown model type '{model_type}'{_instead(model_type, _TYPES, 'model types')}"
        )
    return _TYPES[model_type]


def _parse_shell(call: Call) -> ShellCall:
    arguments = call.arguments
    for name in arguments:
        if name not in ARGUMENTS:
            raise CallError(
                f"{_where(call)}: unknown argument '{name}'"
                f"{_instead(name, ARGUMENTS, 'arguments')}",
                name,
            )
    if "run" not in arguments:
        raise CallError(f"{_where(call)}: 'run' is missing; it is the command to execute", "run")
    run = _text(call, "run", arguments["run"])
    if not run.strip():
        raise CallError(f"{_where(call)}: 'run' is empty; it is the command to execute", "run")
    directory = arguments.get("workingDir")
    ignore = arguments.get("ignoreExitCode")
    if ignore is not None and not isinstance(ignore, bool):
        raise _wrong(call, "ignoreExitCode", "true or false", ignore)
    return ShellCall(
        run=run,
        working_dir=None if directory is None else _text(call, "workingDir", directory),
        timeout_ms=_timeout(call, arguments.get("timeout")),
        env=_env(call, arguments.get("env")),
        ignore_exit_code=bool(ignore),
        outputs=_outputs(call, arguments.get("outputs")),
    )


def _parse_probe(call: Call) -> ShellCall:
    """Shows that this machine executes steps; this very Python does it, whatever else is there."""
    marker = call.arguments.get(MARKER)
    if set(call.arguments) - {MARKER, "outputs"} or not isinstance(marker, str) or not marker:
        raise CallError(f"{_where(call)}: it takes '{MARKER}', a text, and 'outputs'", MARKER)
    command = [sys.executable, "-m", "swamp.execute.probe", marker]
    return ShellCall(run=shlex.join(command), outputs=_outputs(call, call.arguments.get("outputs")))


def _timeout(call: Call, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise _wrong(call, "timeout", "a positive whole number of milliseconds", value)
    return value


def _env(call: Call, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(call, "env", "a map of names to texts", value)
    for name, text in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise CallError(
                f"{_where(call)}: {name!r} cannot be the name of a variable in 'env'", "env"
            )
        _text(call, f"env.{name}", text)
    return dict(value)


def _outputs(call: Call, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _wrong(call, "outputs", "a list of names", value)
    for name in value:
        if not isinstance(name, str) or not _OUTPUT_NAME.match(name):
            raise CallError(
                f"{_where(call)}: an output's name has at most 64 letters, digits, '.', '_' and"
                f" '-', the first one a letter or digit; 'outputs' holds {str(name)[:80]!r}",
                "outputs",
            )
    return tuple(value)


def _text(call: Call, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(call, name, "text (put it in quotes)", value)
    if "\0" in value:
        raise CallError(
            f"{_where(call)}: '{name}' holds a NUL character, no command can take it",
            name.partition(".")[0],
        )
    return value


def _wrong(call: Call, name: str, expected: str, value: Any) -> CallError:
    # The type alone: a value may be a secret, and this line goes into logs and records.
    found = "nothing" if value is None else type(value).__name__
    problem = f"'{name}' must be {expected}, not a value of type {found}"
    return CallError(f"{_where(call)}: {problem}", name.partition(".")[0])


def _where(call: Call) -> str:
    return f"model '{call.model}' ({call.model_type} {call.method})"


def _instead(wrong: str, known: Iterable[str], what: str) -> str:
    names = list(known)
    close = difflib.get_close_matches(wrong, names, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; {what}: {', '.join(names)}"


_TYPES: Mapping[str, Mapping[str, Callable[[Call], ShellCall]]] = {
    SHELL: {"execute": _parse_shell},
    PROBE_TYPE: {PROBE_METHOD: _parse_probe},
}
