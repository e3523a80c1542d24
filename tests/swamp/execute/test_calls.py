"""A wrong call is refused with the thing, what was found and the way out."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import pytest

from datastore.kinds import Call
from swamp.execute.calls import CallError, ShellCall, methods_of


def call(
    arguments: dict[str, Any], model_type: str = "command/shell", method: str = "execute"
) -> Call:
    return Call(model_type=model_type, model="build", method=method, arguments=arguments)


def test_all_arguments() -> None:
    parsed = ShellCall.parse(
        call(
            {"run": "x", "workingDir": "/", "timeout": 5, "env": {"A": ""}, "ignoreExitCode": True}
        )
    )
    assert parsed == ShellCall("x", "/", 5, {"A": ""}, True)
    assert ShellCall.parse(call({"run": "x"})) == ShellCall("x")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "'run' is missing"),
        ({"run": " \n"}, "'run' is empty"),
        ({"run": 3}, "'run' must be text"),
        ({"run": "a\0b"}, "'run' holds a NUL character"),
        ({"run": "x", "timeOut": 1}, "unknown argument 'timeOut'; did you mean 'timeout'?"),
        ({"run": "x", "zzz": 1}, "unknown argument 'zzz'; arguments: run, workingDir"),
        ({"run": "x", "timeout": 0}, "'timeout' must be a positive whole number"),
        ({"run": "x", "timeout": True}, "'timeout' must be a positive whole number"),
        ({"run": "x", "env": ["A"]}, "'env' must be a map"),
        ({"run": "x", "env": {"PORT": 80}}, "'env.PORT' must be text"),
        ({"run": "x", "env": {"A=B": "1"}}, "'A=B' cannot be the name"),
        ({"run": "x", "ignoreExitCode": "yes"}, "'ignoreExitCode' must be true or false"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(CallError, match="model 'build'") as refused:
        ShellCall.parse(call(arguments))
    assert says in str(refused.value)


def test_values_are_not_repeated_in_errors() -> None:
    with pytest.raises(CallError) as refused:
        ShellCall.parse(call({"run": ["s3cret"]}))
    assert "s3cret" not in str(refused.value)


def test_unknown_type_and_method_name_what_exists() -> None:
    with pytest.raises(CallError, match=r"unknown model type 'command/shel'; did you mean"):
        methods_of("command/shel")
    with pytest.raises(CallError, match=r"no method 'run'; methods: execute"):
        ShellCall.parse(call({"run": "x"}, method="run"))


@pytest.mark.parametrize("outputs", ["x", [1], [""], ["a/b"], [".a"], ["x" * 65], {"a": 1}])
def test_outputs_are_names(outputs: object) -> None:
    with pytest.raises(CallError, match="outputs"):
        ShellCall.parse(call({"run": "true", "outputs": outputs}))
    assert ShellCall.parse(call({"run": "true", "outputs": ["a", "B-2_c.d"]})).outputs == (
        "a",
        "B-2_c.d",
    )


def test_a_probe_is_run_by_the_very_python_that_runs_the_worker() -> None:
    asked = {"probeMarker": "it's me", "outputs": ["probe-result"]}
    parsed = ShellCall.parse(call(asked, "swamp/fleet-probe", "verify"))
    assert shlex.split(parsed.run) == [sys.executable, "-m", "swamp.execute.probe", "it's me"]
    assert parsed.outputs == ("probe-result",)


@pytest.mark.parametrize("arguments", [{}, {"probeMarker": ""}, {"probeMarker": "m", "run": "x"}])
def test_a_probe_takes_its_marker_and_no_command(arguments: dict[str, Any]) -> None:
    with pytest.raises(CallError, match="it takes 'probeMarker'"):
        ShellCall.parse(call(arguments, "swamp/fleet-probe", "verify"))
