"""Secrets put into calls, and masked in what comes back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from controllers.expression_references import SecretRef
from datastore.kinds import Call, Outcome
from swamp.execute.calls import CallError, ShellCall
from swamp.execute.environment import data_environment, runner_environment
from swamp.execute.execution import Execution, Host, Order
from swamp.execute.redaction import Redactor, masked_piece
from swamp.execute.secret_arguments import filled

KEY, TWO = SecretRef("main", "KEY"), SecretRef("main", "TWO")
VALUES = {KEY: "s3cret-value$`\"'", TWO: "another one"}
ASK, ASK_TWO = "${{ vault.get('main', 'KEY') }}", '${{vault.get("main","TWO")}}'


def call(**arguments: Any) -> Call:
    return Call(model_type="command/shell", model="m", method="execute", arguments=arguments)


def test_a_secret_of_the_command_is_a_variable_of_its_environment() -> None:
    made = filled(call(run=f'echo "{ASK}" {ASK_TWO} {ASK}', env={"A": "b"}), VALUES)
    run, env = made.arguments["run"], made.arguments["env"]
    assert run == 'echo "${__SWAMP_VAULT_0}" ${__SWAMP_VAULT_1} ${__SWAMP_VAULT_0}'
    assert env == {"A": "b", "__SWAMP_VAULT_0": VALUES[KEY], "__SWAMP_VAULT_1": VALUES[TWO]}


def test_elsewhere_a_secret_is_put_in_as_it_is() -> None:
    made = filled(call(run="true", env={"A": f"x{ASK}"}, workingDir=ASK_TWO), VALUES)
    assert made.arguments == {
        "run": "true",
        "env": {"A": f"x{VALUES[KEY]}"},
        "workingDir": VALUES[TWO],
    }


@pytest.mark.parametrize("run", [f"echo '{ASK}'", f"a \"x'y\" 'b {ASK} c'", f"# no\n'{ASK}'"])
def test_single_quotes_are_refused(run: str) -> None:
    with pytest.raises(CallError, match="single quotes"):
        filled(call(run=run), VALUES)


@pytest.mark.parametrize("run", [f'echo "it\'s {ASK}"', f"# don't\necho {ASK}", f"\\' {ASK} \\'"])
def test_what_only_looks_like_single_quotes_is_not(run: str) -> None:
    assert "${__SWAMP_VAULT_0}" in filled(call(run=run), VALUES).arguments["run"]


async def execute(folder: Path, run: str, redactor: Redactor, **more: str) -> tuple[Outcome, bytes]:
    streamed = bytearray()

    async def sink(stream: str, data: bytes) -> None:
        streamed.extend(data)

    shell = ShellCall.parse(call(run=run, env=more))
    environment = runner_environment({"PATH": os.environ["PATH"]}, {}, shell.env)
    order = Order("r.j.s.1", shell, environment, None, redactor)
    outcome = await Execution(order, sink, Host(folder)).run()
    return outcome, bytes(streamed)


async def test_output_is_masked_also_where_a_value_comes_in_two_pieces(tmp_path: Path) -> None:
    redactor = Redactor(["topsecret"])
    run = "printf 'a tops'; sleep 0.2; printf 'ecret b'; printf 'é tops'; exit 3"
    outcome, streamed = await execute(tmp_path, run, redactor)
    assert outcome.stdout == "a *** bé tops"
    assert streamed.decode() == outcome.stdout


async def test_masked_values_do_not_come_back_by_the_cut_of_a_long_output(tmp_path: Path) -> None:
    """The kept head and tail are cut after masking: no half of a value can be left."""
    redactor = Redactor(["topsecret"])
    run = "i=0; while [ $i -lt 4000 ]; do echo topsecret$i; i=$((i+1)); done"
    outcome, streamed = await execute(tmp_path, run, redactor)
    assert "bytes cut" in outcome.stdout
    assert "secret" not in outcome.stdout
    assert streamed.count(b"***") == 4000 and b"secret" not in streamed


async def test_an_error_is_masked(tmp_path: Path) -> None:
    shell = ShellCall.parse(call(run="true", workingDir="topsecret/none"))
    order = Order("r.j.s.1", shell, {}, None, Redactor(["topsecret"]))

    async def sink(stream: str, data: bytes) -> None:
        await asyncio.sleep(0)

    outcome = await Execution(order, sink, Host(tmp_path)).run()
    assert outcome.error is not None
    assert "topsecret" not in outcome.error


def test_pieces_of_both_forms_are_masked() -> None:
    redactor = Redactor(["topsecret"])
    assert masked_piece("a topsecret", None, redactor) == {"text": "a ***"}
    assert masked_piece(None, "/3RvcHNlY3JldP8=", redactor) == {"data": "/yoqKv8="}
    assert masked_piece(None, "/3RvcHM=", Redactor(())) == {"data": "/3RvcHM="}


def test_a_runner_learns_where_outputs_go_only_with_a_credential() -> None:
    assert data_environment("u", "c") == {"SWAMP_DATA_URL": "u", "SWAMP_DATA_TOKEN": "c"}
    assert data_environment("u", "") == {}
