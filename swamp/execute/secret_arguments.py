"""Secrets put into the arguments of a call, right before it leaves for where it is executed.

In the command itself a secret becomes a variable of the environment: command lines show in process
lists, and whatever characters it has, the shell takes it as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from controllers.expression_references import SecretRef, secrets_in, with_secrets
from datastore.kinds import Call
from swamp.execute.calls import CallError

_VARIABLE = "__SWAMP_VAULT_"
_QUOTING = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|(?<![^\s;&|(])#[^\n]*", re.DOTALL)


def filled(call: Call, values: Mapping[SecretRef, str]) -> Call:
    """The call with its secrets; CallError where one stands in single quotes of the command.

    The quotes of a here-document are not seen: a secret in one arrives as a variable's name.
    """
    arguments: dict[str, Any] = with_secrets(
        {name: value for name, value in call.arguments.items() if name != "run"}, values
    )
    run = call.arguments.get("run")
    if isinstance(run, str):
        names = {ref: f"{_VARIABLE}{n}" for n, ref in enumerate(sorted(secrets_in(run), key=str))}
        _refuse_single_quotes(call, run)
        arguments["run"] = with_secrets(run, {ref: f"${{{name}}}" for ref, name in names.items()})
        extra = {name: values[ref] for ref, name in names.items()}
        if extra:
            arguments["env"] = {**(arguments.get("env") or {}), **extra}
    return call.model_copy(update={"arguments": arguments})


def _refuse_single_quotes(call: Call, run: str) -> None:
    # The quotes of the expression itself are not the shell's.
    blank = with_secrets(run, _Anything())
    for quoted in _QUOTING.findall(blank):
        if quoted.startswith("'") and _Anything.MARK in quoted:
            raise CallError(
                f"model '{call.model}' ({call.model_type} {call.method}): a secret of 'run' stands"
                " in single quotes, where the shell does not put it in: use double quotes"
            )


class _Anything(dict[SecretRef, str]):
    """Every secret is the mark."""

    MARK = "\0"

    def __missing__(self, ref: SecretRef) -> str:
        return self.MARK
