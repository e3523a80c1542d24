"""`${{ … }}`: what renders, what is refused and with which words, and what bounds it."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers import expression_engine
from controllers.expressions import (
    ExpressionError,
    Scope,
    check,
    compile_template,
    is_expression,
    needs_thread,
    render,
    render_text,
)

ALL = ("inputs", "self", "env", "run")
INPUTS = {
    "host": "web-1",
    "region": "eu",
    "n": 3,
    "f": 1.5,
    "whole": 2.0,
    "yes": True,
    "nothing": None,
    "accent": "é✓",
    "list": [3, 1, 2],
    "hosts": [{"name": "a", "up": True}, {"name": "b", "up": False}],
    "map": {"z": 1, "a": 2, "m": {"deep": "x"}},
    "odd-key": {"k v": "found"},
    "empty": {},
    "text": "a,b",
    "size": 7,
}
SCOPE = Scope(
    inputs=INPUTS,
    self_={"host": "h1", "item": {"inputs": "i"}},
    env={"HOME": "/root"},
    run={"id": "r-1"},
)


def refused(text: str, scope: Scope = SCOPE) -> str:
    with pytest.raises(ExpressionError) as caught:
        render(text, scope)
    message = str(caught.value)
    assert len(message) <= 300
    return message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain text", "plain text"),
        ("${{ inputs.host }}", "web-1"),
        ("${{inputs.n}}", 3),
        ("${{ inputs.f }}", 1.5),
        ("${{ inputs.yes }}", True),
        ("${{ inputs.nothing }}", None),
        ("${{ inputs.list }}", [3, 1, 2]),
        ("${{ inputs.hosts[1].name }}", "b"),
        ('${{ inputs["odd-key"]["k v"] }}', "found"),
        ("${{ inputs . map['m'] . deep }}", "x"),
        ("${{ inputs.size }}", 7),
        ("${{ self.host }}-${{ env.HOME }}/${{ run.id }}", "h1-/root/r-1"),
        ("n=${{ inputs.n }}", "n=3"),
        ("${{ inputs.n }} ", "3 "),
        ("f=${{ inputs.f }} ${{ inputs.whole }}", "f=1.5 2.0"),
        ("${{ inputs.yes }}!", "true!"),
        ("l=${{ inputs.list }}", "l=[3,1,2]"),
        ("m=${{ inputs.map }} é", 'm={"z":1,"a":2,"m":{"deep":"x"}} é'),
        ("$ {{ no }} ${ no } }} {", "$ {{ no }} ${ no } }} {"),
    ],
)
def test_plain_paths_render_without_cel(text: str, value: Any) -> None:
    assert compile_template(text).plain
    assert not needs_thread(text)
    result = render(text, SCOPE)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("inputs.n + 1", 4),
        ("inputs.n * 2 > 5 && !false", True),
        ("inputs.n > 5 || inputs.region == 'eu'", True),
        ("inputs.yes ? 'on' : 'off'", "on"),
        ("7 / 2", 3),
        ("7.0 / 2.0", 3.5),
        ("2u + 1u", 3),
        ("9223372036854775807u", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("int('42')", 42),
        ("inputs.n == 3.0", True),
        ("null", None),
        ("inputs.accent.size()", 2),
        ("'\U0001f600'.size()", 1),
        ("inputs.host.upperAscii()", "WEB-1"),
        ("inputs.text.split(',')", ["a", "b"]),
        ("['x', 'y'].join('-')", "x-y"),
        ("'%s/%d'.format([inputs.host, inputs.n])", "web-1/3"),
        ("inputs.host.replace('web', 'db')", "db-1"),
        ("inputs.host.matches('^web-[0-9]+$')", True),
        ("has(inputs.host)", True),
        ("has(inputs.hots)", False),
        ("inputs.?missing.orValue('d')", "d"),
        ("inputs.?missing.?deeper.hasValue()", False),
        ("inputs[?'host'].orValue('d')", "web-1"),
        ("[?inputs.?missing, 1]", [1]),
        ("inputs.hosts.filter(h, h.up).map(h, h.name)", ["a"]),
        ("inputs.list.map(x, x * 2)", [6, 2, 4]),
        ("inputs.list.map(self, self + inputs.n)", [6, 4, 5]),
        ("inputs.list.exists(x, x == 3)", True),
        ("has(inputs.hots) ? inputs.hots.map(h, h) : []", []),
        ("size(inputs.empty)", 0),
        ("inputs['ho' + 'st']", "web-1"),
        ("'host' in inputs", True),
        ("self.item.inputs + inputs.region", "ieu"),
        (".inputs.host + self.host", "web-1h1"),
        ("{'b': 1, 'a': {'c': 2}}", {"b": 1, "a": {"c": 2}}),
        ("{1: 'x', true: 'y'}[1]", "x"),
        ("{7: 'x'}", {"7": "x"}),
        ("b'abc'", "abc"),
        ("timestamp('2026-01-02T03:04:05Z')", "2026-01-02T03:04:05Z"),
        ("timestamp('2026-01-02T03:04:05.5Z')", "2026-01-02T03:04:05.500Z"),
        ("duration('90m')", "5400s"),
        ("[duration('1.5s')]", ["1.5s"]),
        ("'}}' + \"}}\"", "}}}}"),
        ("'it\\'s }} ' + inputs.region", "it's }} eu"),
        ("r'\\}}' + 'x'", "\\}}x"),
        ("'''a'}}'''", "a'}}"),
        ("inputs.n // it's a comment\n + 1", 4),
        ("1 + 1 // it's the end", 2),
    ],
)
def test_cel_evaluates(source: str, value: Any) -> None:
    text = f"${{{{ {source} }}}}"
    assert needs_thread(text)
    assert is_expression(text)
    result = render(text, SCOPE)
    assert result == value
    assert type(result) is type(value)


def test_maps_of_plain_paths_keep_their_order_and_those_of_cel_are_sorted() -> None:
    assert list(render("${{ inputs.map }}", SCOPE)) == ["z", "a", "m"]
    assert list(render("${{ {'z': 1, 'b': 2, 'a': 3} }}", SCOPE)) == ["a", "b", "z"]
    assert render("${{ {'z': 1, 'a': inputs.n} }}.", SCOPE) == '{"a":3,"z":1}.'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("${{ inputs.hosst }}", "inputs has no 'hosst'; did you mean 'host'? it has: host, reg"),
        ("${{ inputs.map.q }}", "inputs.map has no 'q'; it has: z, a, m"),
        ("${{ inputs.empty.q }}", "inputs.empty has no 'q'; it is empty"),
        ("${{ inputs.list[3] }}", "inputs.list has no [3]; it has 3 items"),
        ("${{ inputs.list.name }}", "inputs.list is a list"),
        ("${{ inputs.nothing.x }}", "inputs.nothing is null, so it has no 'x'"),
        ("${{ inputs.host.x }}", "inputs.host is a string, so it has no 'x'"),
        ("${{ inputs.hosts[0].nam }}", "inputs.hosts[0] has no 'nam'; did you mean 'name'?"),
        ("${{ 'x' + inputs.hosst }}", "inputs has no 'hosst'; did you mean 'host'?"),
        ("${{ model.x }}", "`model` is not available yet in this version; available: inputs, self"),
        ("${{ data.x }}", "`data` has latest('model', 'name') and version('model', 'name', 3)"),
        ("${{ data.latest(inputs.host, 'b') }}", "with literal arguments"),
        ("${{ data.latest('a', 'b').x }}", "outputs cannot be read here"),
        ("${{ vault.get('a', inputs.host) }}", "a secret stands alone: write"),
        ("${{ 'x' + vault.get('a', 'b') }}", "a secret stands alone: write"),
        ("${{ size(workers.connected()) }}", "`workers` is not available yet"),
        ("${{ workflowRunId }}", "`workflowRunId` is not available yet"),
        ("${{ input.host }}", "there is no `input`; did you mean `inputs`? available: inputs,"),
        ("${{ inptus.host + 'x' }}", "there is no `inptus`; did you mean `inputs`?"),
        ("${{ inputs.odd-key }}", 'a name with a hyphen goes into brackets: ["odd-key"]'),
        ("${{ inputs.n + }}", "it ends too early, at character 11"),
        ("${{ inputs.n +\n  ) }}", "at line 2, character 3"),
        ("${{ inputs.host.shout() }}", "there is no function `shout`, at character 18"),
        ("${{ 'a' + 1 }}", "`+` does not take (string, int); convert one"),
        ("${{ inputs.host + 1 }}", "`+` does not take (string, int64); convert one"),
        ("${{ inputs.hosts[0].name.x + 1 }}", "takes a field of something that is not a map"),
        ("${{ inputs.host && true }}", "`&&` takes only booleans"),
        ("${{ {'a': 1}.b }}", 'a map has no "b"'),
        ("${{ 1 / 0 }}", "divide by zero"),
        ("${{ 9223372036854775807 + 1 }}", "integer overflow"),
        ("${{ inputs.?missing }}", "evaluates to an optional; end it with .orValue(…)"),
        ("${{ [inputs.?missing] }}", "evaluates to an optional"),
        ("${{ type(1) }}", "evaluates to a Type, which is not plain data"),
        ("${{ 1.0 / 0.0 }}", "not a finite number"),
        ("${{ b'\\xff' }}", "bytes that are not UTF-8"),
        ("${{ [9223372036854775808u] }}", "[0] does not fit 64 bits"),
        ("x${{ inputs.nothing }}", "${{ inputs.nothing }}: evaluates to nothing (null)"),
        ("ab ${{ inputs.host", "at character 4 has no closing `}}`"),
        ("${{ 'abc }}", "unexpected ''abc', at character 1"),
        ("${{ 'abc }} it's", "has no closing `}}`"),
        ("${{ {'a': 1 }}", "has no closing `}}`"),
        ("${{ }}", "the expression is empty"),
        ("${{ " + "+".join(["1"] * 100) + " }}", "nested or chained too deeply"),
        ("${{ " + "(" * 500 + "1" + ")" * 500 + " }}", "nested or chained too deeply"),
        ("${{ " + "1" * 4097 + " }}", "it has 4,097 characters; the limit is 4,096"),
        ("${{ inputs." + "x" * 4000 + " }}", "xx… }}: inputs has no 'xxx"),
    ],
)
def test_errors_say_what_was_wrong(text: str, words: str) -> None:
    assert words in refused(text)


def test_what_is_put_together_too_deep_is_refused() -> None:
    deep: Any = "x"
    for _ in range(60):
        deep = [deep]
    scope = Scope(inputs={"deep": deep})
    assert render("${{ [[[[inputs.deep]]]] }}", scope) == [[[[deep]]]]
    assert "is nested deeper than 64 levels" in refused("${{ [[[[[inputs.deep]]]]] }}", scope)


@pytest.mark.parametrize("macro", ["map(z, x)", "all(z, true)"])
def test_cels_own_budget_ends_nested_loops(macro: str) -> None:
    scope = Scope(inputs={"l": list(range(300))})
    nested = f"inputs.l.{'map' if 'map' in macro else 'all'}(x, "
    body = f"{nested}{nested.replace('(x', '(y')}inputs.l.{macro}))"
    started = time.monotonic()
    assert "loops over more than 10,000 items" in refused(f"${{{{ {body} }}}}", scope)
    assert time.monotonic() - started < 5


def test_lists_that_cel_would_copy_for_seconds_are_refused() -> None:
    scope = Scope(inputs={"l": ["h"] * 4_001, "ok": ["h"] * 4_000})
    text = "${{ inputs.l.filter(h, h != 'x') }}"
    assert "takes at most 4,000 items, inputs.l has 4,001" in refused(text, scope)
    assert render("${{ inputs.l.exists(h, h == 'x') }}", scope) is False
    assert len(render("${{ inputs.ok.map(h, h) }}", scope)) == 4_000


def test_results_are_limited_to_a_mebibyte_of_text() -> None:
    scope = Scope(inputs={"big": "x" * 600_000})
    assert "1,200,002 characters" in refused("${{ inputs.big + inputs.big }}", scope)
    assert "1,200,000 characters" in refused("${{ inputs.big }}${{ inputs.big }}", scope)


def test_evaluations_leave_no_memory_behind() -> None:
    # In a process of its own: what CEL keeps would not show in a heap that is warm already.
    program = """
import pathlib, re
from controllers.expressions import Scope, render
scope = Scope(inputs={"l": ["h"] * 1000})
for _ in range(40):
    render("${{ inputs.l.map(h, h) }}", scope)
status = pathlib.Path("/proc/self/status").read_text()
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(done.stdout) < 300, "40 evaluations kept their intermediate lists (17 MB each)"


def test_only_the_entries_that_an_expression_names_are_converted() -> None:
    unconvertible = object()
    scope = Scope(inputs={"a": 1, "b": unconvertible})
    assert render("${{ inputs.a + 1 }}", scope) == 2
    assert "Non-CEL value" in refused("${{ size(inputs) }}", scope)


@pytest.mark.parametrize("value", ["a\0b", ["a", "\0"], {"k": {"\0": 1}}])
def test_text_that_cel_would_cut_off_is_refused(value: Any) -> None:
    scope = Scope(inputs={"x": value, "y": 1})
    assert "NUL character" in refused("${{ [inputs.x] }}", scope)
    assert render("${{ inputs.x }}", scope) == value
    assert render("${{ inputs.y + 1 }}", scope) == 2


def test_values_nested_too_deeply_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(3_000):
        deep = {"a": deep}
    assert "nested too deeply" in refused("${{ [inputs.deep] }}", Scope(inputs={"deep": deep}))


def test_importing_costs_no_engine() -> None:
    program = """
import sys
from controllers.expressions import Scope, render
assert render("${{ inputs.a }}!", Scope(inputs={"a": 1})) == "1!"
assert "cel_expr_python" not in sys.modules
assert render("${{ inputs.a + 1 }}", Scope(inputs={"a": 1})) == 2
assert "cel_expr_python" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_render_walks_values_but_not_keys() -> None:
    value = {
        "${{ inputs.n }}": ["${{ inputs.n }}", {"x": "a${{ self.host }}"}, 5, None],
        "tuple": ("${{ inputs.yes }}",),
    }
    assert render(value, SCOPE) == {
        "${{ inputs.n }}": [3, {"x": "ah1"}, 5, None],
        "tuple": [True],
    }
    assert value["tuple"] == ("${{ inputs.yes }}",)


def test_render_text_is_always_text() -> None:
    assert render_text("${{ inputs.n }}", SCOPE) == "3"
    assert render_text("${{ inputs.list.map(x, x + 1) }}", SCOPE) == "[4,2,3]"
    with pytest.raises(ExpressionError, match="evaluates to nothing"):
        render_text("${{ inputs.nothing }}", SCOPE)


def test_rendered_values_are_not_read_as_expressions_again() -> None:
    assert render("${{ inputs.x }}!", Scope(inputs={"x": "${{ env.K }}"})) == "${{ env.K }}!"


def test_with_self_replaces_only_self() -> None:
    other = SCOPE.with_self({"host": "h2"})
    assert render("${{ self.host + inputs.region }}", other) == "h2eu"
    assert render("${{ self.host + inputs.region }}", SCOPE) == "h1eu"


@pytest.mark.parametrize(
    ("text", "roots", "plain"),
    [
        ("none", set(), True),
        ("${{ inputs.a }}${{ self.b }}", {"inputs", "self"}, True),
        ("${{ inputs.a + env.B }}", {"inputs", "env"}, False),
        ("${{ inputs.l.map(self, self) }}", {"inputs"}, False),
        ("${{ inputs.l.map(self, self) + [self.x] }}", {"inputs", "self"}, False),
        ("${{ inputs.run + 'self' }}", {"inputs"}, False),
        ("${{ 1 + 1 }}", set(), False),
    ],
)
def test_templates_know_their_roots(text: str, roots: set[str], plain: bool) -> None:
    template = compile_template(text)
    assert template.roots == roots
    assert template.plain is plain


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("${{ inputs.a }}", True),
        ("${{ '}}' }}", True),
        ("${{ a }}${{ b }}", False),
        ("${{ a }} ", False),
        ("a", False),
        ("", False),
        ("${{ a", False),
    ],
)
def test_is_expression(text: str, whole: bool) -> None:
    assert is_expression(text) is whole


def test_check_names_every_problem_and_its_place() -> None:
    value = {
        "inputs": {"run": "echo ${{ self.host }}", "fine": "${{ inputs.x + 1 }}"},
        "labels": ["${{ inputs. }}", "${{ data.x }}", "${{ open"],
    }
    problems = check(value, ("inputs", "env"))
    assert len(problems) == 4
    assert problems[0] == "inputs.run: `self` is not available here; available: inputs, env"
    assert problems[1].startswith("labels[0]: ${{ inputs. }}: unexpected '.', at character 8")
    assert problems[2].startswith("labels[1]: ${{ data.x }}: `data` has latest(")
    assert problems[3].startswith("labels[2]: `${{ open` at character 1 has no closing")
    assert check({"a": "${{ inputs.nosuch.key }}"}, ALL) == []


@given(st.text().filter(lambda text: "${{" not in text))
def test_text_without_expressions_renders_to_itself(text: str) -> None:
    assert render(text, SCOPE) == text
    assert compile_template(text).plain


@given(st.text(alphabet="${} '\"\\/ab.[0]+\n", max_size=30))
@settings(max_examples=300)
def test_any_text_renders_or_is_refused_in_words(text: str) -> None:
    for candidate in (text, f"${{{{{text}}}}}"):
        try:
            render(candidate, SCOPE)
        except ExpressionError as error:
            assert 0 < len(str(error)) <= 300


KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
LEAVES = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5
) | st.integers(-(2**63), 2**63 - 1)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(KEYS, inner, max_size=3) | st.lists(inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, NESTED, min_size=1, max_size=4), st.data())
@settings(max_examples=200)
def test_a_plain_path_equals_cels_answer(inputs: dict[str, Any], data: st.DataObject) -> None:
    source, value = "inputs", inputs
    while (
        isinstance(value, dict | list)
        and value
        and (source == "inputs" or data.draw(st.booleans()))
    ):
        if isinstance(value, dict):
            key = data.draw(st.sampled_from(sorted(value)))
            source += data.draw(st.sampled_from([f".{key}", f"['{key}']", f'["{key}"]']))
        else:
            key = data.draw(st.integers(0, len(value) - 1))
            source += f"[{key}]"
        value = value[key]
    scope = Scope(inputs=inputs)
    try:
        by_cel = expression_engine.evaluate(source, scope.roots())
    except ExpressionError:
        with pytest.raises(ExpressionError):  # `inputs.in`: CEL's grammar refuses some names.
            render(f"${{{{ {source} }}}}", scope)
        return
    assert render(f"${{{{ {source} }}}}", scope) == by_cel
