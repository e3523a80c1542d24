from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from datastore.plain_values import INT_MAX, INT_MIN, MAX_DEPTH, Unfit, from_json, made_fit, unfit
from datastore.unicode_text import WHAT, is_unicode
from datastore.yaml_emitter import emit_readable


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("caf\udce9", f"it {WHAT}"),
        ({"a": {"b": ["x", "y\ud800"]}}, f"a.b[1] {WHAT}"),
        ({"a\ud800": 1}, f"a name {WHAT}"),
        ({"a": {"b\udfff": 1}}, f"a name in a {WHAT}"),
        ([["\ud800"], "\ud801"], f"[0][0] {WHAT}"),
        ("\ud83d\ude00", f"it {WHAT}"),
        ({"a": [1.5, float("nan")]}, "a[1] is nan, no finite number"),
        (float("-inf"), "it is -inf, no finite number"),
        ({"id": INT_MAX + 1}, "id does not fit 64 bits: quote it if it is an id"),
        ([INT_MIN - 1], "[0] does not fit 64 bits: quote it if it is an id"),
        (nested(MAX_DEPTH + 1), "nested deeper than 64 levels"),
        ({"a": nested(5_000)}, "nested deeper than 64 levels"),
        ([{"a": nested(MAX_DEPTH)}] * 3, "nested deeper than 64 levels"),
    ],
)
def test_the_first_value_that_cannot_be_kept_is_found(value: Any, found: str) -> None:
    said = unfit(value)
    assert said is not None
    assert found in said
    assert is_unicode(said)
    assert len(said) < 200


@pytest.mark.parametrize(
    "value",
    [
        {"a": "caf\u00e9 \U0001f600", "b": [1, None, True, {}], "c": -0.0},
        [INT_MAX, INT_MIN, 1.7e308, "99999999999999999999", "1e999"],
        nested(MAX_DEPTH),
        [nested(MAX_DEPTH - 1)] * 100,
    ],
)
def test_what_can_be_kept_is_fit(value: Any) -> None:
    assert unfit(value) is None
    assert from_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        '"\\ud800"',
        '{"a": ["x\\uDFFFy"]}',
        "1e999",
        '[-1E+400 , "x"]',
        "[" + "1" * 400 + ".0]",
        "1" + "0" * 310 + "e5",
        "[1" + "0" * 308 + "e10]",
        "[1" + "0" * 400 + ".0]",
        '{"a":9223372036854775808}',
        "1" * 5_000,
        '{"a": [-' + "1" * 5_000 + ', "x"]}',
        "[" * 65 + "]" * 65,
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_json_that_cannot_be_kept_is_unfit(text: str) -> None:
    with pytest.raises(Unfit):
        from_json(text)


def test_to_say_where_takes_no_room() -> None:
    """Regression: a body of 70 kB took 600 MB, as the way to each of its values was written out."""
    text = json.dumps({"k" * 30_000: [1] * 20_000 + [1 << 64]})
    tracemalloc.start()
    try:
        with pytest.raises(Unfit, match="k… does not fit 64 bits"):
            from_json(text)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_a_number_too_long_for_python_is_told_as_any_other_that_is_too_large() -> None:
    """Regression: another error, with advice for programmers; an output with it became a text."""
    with pytest.raises(Unfit, match=r"^a\[1\] does not fit 64 bits: quote it if it is an id$"):
        from_json('{"a": [1, %s]}' % ("9" * 5_000))
    assert from_json('["%s", 1]' % ("9" * 5_000)) == ["9" * 5_000, 1]


@pytest.mark.parametrize(
    "text",
    ["NaN", "[Infinity]", "[1" + "1" * 5_000, "[NaN, 1" + "1" * 5_000 + "]", "[", "", "{'a': 1}"],
)
def test_what_is_no_json_is_another_error(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        from_json(text)
    assert not isinstance(caught.value, Unfit)


def test_what_has_to_be_written_is_made_fit() -> None:
    value = {"a\ud800": ["x\udce9y", 1, None, {"b": "z"}, float("nan"), 1 << 64]}
    fit = {"a\ufffd": ["x\ufffdy", 1, None, {"b": "z"}, "nan", "18446744073709551616"]}
    assert made_fit(value) == fit
    assert emit_readable(value) == emit_readable(fit)
