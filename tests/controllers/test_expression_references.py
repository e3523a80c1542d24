"""Outputs and secrets in expressions."""

from __future__ import annotations

from typing import Any

import pytest

from controllers.expression_references import (
    DataRef,
    SecretRef,
    SecretText,
    secrets_in,
    with_secrets,
)
from controllers.expressions import ExpressionError, Scope, needs_thread, render, render_text
from datastore.errors import NotFound

STORED: dict[tuple[str, str, int | None], Any] = {
    ("probe", "result", None): {"hosts": [{"name": "b"}, {"name": "a"}], "z": 1, "a": 2},
    ("probe", "result", 1): {"hosts": []},
    ("odd it's", "text", None): "line",
    ("big", "list", None): list(range(5_000)),
    ("evil", "text", None): "${{ vault.get('main', 'KEY') }}",
}
ASK = "${{ vault.get('main', 'KEY') }}"


def read(ref: DataRef) -> Any:
    try:
        return STORED[ref.model, ref.name, ref.version]
    except KeyError:
        raise NotFound(f"model '{ref.model}' has no output '{ref.name}'") from None


SCOPE = Scope(inputs={"n": 2, "bad": ASK, "half": "{ vault.get('main', 'KEY') }}"}, read_data=read)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${{ data.latest('probe', 'result').hosts[0].name }}", "b"),
        ('${{ data.latest("probe","result") }}', STORED["probe", "result", None]),
        ("${{ data.version('probe', 'result', 1).hosts }}", []),
        ("${{ data.latest('probe', 'result').hosts.map(h, h.name) }}", ["b", "a"]),
        ("${{ data.latest('probe', 'result').z + inputs.n }}", 3),
        ("n=${{ data.latest('probe', 'result').a }}", "n=2"),
        ("${{ 'data.latest(x)' + 'y' }}", "data.latest(x)y"),
        ("${{ [1].map(data, data + 1) }}", [2]),
    ],
)
def test_outputs_are_read(text: str, value: Any) -> None:
    assert render(text, SCOPE) == value


def test_an_output_keeps_the_order_of_its_keys() -> None:
    assert list(render("${{ data.latest('probe', 'result') }}", SCOPE)) == ["hosts", "z", "a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "${{ data.latest('probe', 'no') }}",
            "${{ data.latest('probe', 'no') }}: model 'probe' has no output 'no'",
        ),
        ("${{ data.latest('probe', 'result').q }}", "has no 'q'; it has: hosts, z, a"),
        ("${{ data.latest('probe') }}", "literal arguments"),
        ("${{ data.version('probe', 'result') }}", "literal arguments"),
        ("${{ data.latest('probe', inputs.n) }}", "literal arguments"),
        ("${{ data.latest('probe', 'result').z + }}", "it ends too early, at character 35"),
        ("${{ data.latest('big', 'list').map(x, x) }}", "holds 5,000 in one list"),
    ],
)
def test_a_wrong_use_says_what_is_right(text: str, words: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        render(text, SCOPE)
    assert words in str(caught.value)


def test_reading_outputs_takes_a_thread() -> None:
    assert needs_thread(["${{ data.latest('probe', 'result').z }}"])
    assert not needs_thread(["${{ inputs.n }}"])


def test_a_secret_stays_an_expression() -> None:
    rendered = render({"env": {"A": ASK, "B": f"x {ASK} ${{{{ inputs.n }}}}"}}, SCOPE)
    assert rendered == {"env": {"A": ASK, "B": f"x {ASK} 2"}}
    assert secrets_in(rendered) == {SecretRef("main", "KEY")}
    filled = with_secrets(rendered, {SecretRef("main", "KEY"): "s3"})
    assert filled == {"env": {"A": "s3", "B": "x s3 2"}}


def test_a_secret_that_a_step_hands_to_its_model_passes() -> None:
    scope = Scope(inputs={"password": SecretText(ASK)}, read_data=read)
    assert render("${{ inputs.password }}", scope) == ASK
    assert render_text("p=${{ inputs.password }}", scope) == f"p={ASK}"


@pytest.mark.parametrize(
    "text",
    [
        "${{ inputs.bad }}",
        "x${{ inputs.bad }}",
        "$${{ '{' }}${{ inputs.half }}",
        "${{ inputs.bad + '' }}",
        "${{ data.latest('evil', 'text') }}",
        "${{ {'a': [inputs.bad]} }}",
    ],
)
def test_no_data_can_ask_for_a_secret(text: str) -> None:
    with pytest.raises(ExpressionError, match="asks for a secret"):
        render(text, SCOPE)
