"""The loader gives plain values their plain meaning and refuses the rest with its position."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from datastore.errors import InvalidFile, Position
from datastore.yaml_loader import Document, load


def value_of(scalar: str) -> Any:
    return load(f"a: {scalar}\n".encode(), "f.yaml").value["a"]


def refusal_of(data: bytes | str) -> InvalidFile:
    with pytest.raises(InvalidFile) as caught:
        load(data if isinstance(data, bytes) else data.encode(), "f.yaml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("f.yaml:")
    return caught.value


@pytest.mark.parametrize(
    "scalar",
    [
        "NO",
        "no",
        "Yes",
        "on",
        "OFF",
        "y",
        "n",
        "12:30",
        "1:2:3",
        "017",
        "08",
        "0x1F",
        "0o17",
        "0b1",
        "1_000",
        "1234e567",
        "1e-999",
        "+1",
        ".5",
        "1.",
        "2024-01-01",
        "2026-02-30",
        "2026-11-29T16:41:31.123Z",
        "nULL",
        "None",
        "nan",
        "inf",
        "=",
        "1.2.3",
        "--",
        "1e",
        "0123e4",
    ],
)
def test_scalars_stay_what_they_look_like(scalar: str) -> None:
    assert value_of(scalar) == scalar


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        *((word, None) for word in ("", "~", "null", "Null", "NULL")),
        *((word, True) for word in ("true", "True", "TRUE")),
        *((word, False) for word in ("false", "False", "FALSE")),
        ("0", 0),
        ("-12", -12),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("1.10", 1.1),
        ("-0.5", -0.5),
        ("1e3", 1000.0),
        ("1.5E-3", 0.0015),
        ("0e7", 0.0),
        ('"1"', "1"),
        ("'true'", "true"),
        ('""', ""),
        ('"<<"', "<<"),
        ("|\n  12", "12\n"),
        ("[a, 1, {b: null}]", ["a", 1, {"b": None}]),
    ],
)
def test_what_json_knows_is_typed(scalar: str, value: Any) -> None:
    assert value_of(scalar) == value
    assert type(value_of(scalar)) is type(value)


@pytest.mark.parametrize("scalar", [".inf", "-.INF", "+.Inf", ".nan", ".NaN"])
def test_numbers_that_are_none_are_refused(scalar: str) -> None:
    error = refusal_of(f"a: {scalar}")
    assert (error.problem, error.position) == (
        f"'{scalar}' is not a finite number: quote it if it is a text",
        Position(1, 4),
    )


@pytest.mark.parametrize("digits", ["9223372036854775808", "-9223372036854775809", "9" * 5000])
def test_integers_beyond_64_bits_are_refused(digits: str) -> None:
    assert "64 bits" in refusal_of(f"a: {digits}").problem


@pytest.mark.parametrize(
    ("data", "line", "column", "problem"),
    [
        ("", 1, 1, "is empty, expected a mapping"),
        ("# only a comment\n", 1, 1, "is empty, expected a mapping"),
        ("---\n", 1, 1, "is empty, expected a mapping"),
        ("\n- a\n", 2, 1, "expected a mapping of keys to values, found a list"),
        ("text", 1, 1, "expected a mapping of keys to values, found a single value"),
        ("a: 1\n---\nb: 2\n", 2, 1, "a second document starts here: a file holds one"),
        ("a: 1\n...\nb: 2\n", 3, 1, "the document has ended: nothing can follow it"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", 4, 3, "key 'c' is here twice, first on line 3"),
        ('a: 1\n"a": 2\n', 2, 1, "key 'a' is here twice, first on line 1"),
        ("a: {1: b}\n", 1, 5, 'keys must be strings: quote it, "1"'),
        ("true: b\n", 1, 1, 'keys must be strings: quote it, "true"'),
        ("? [a]\n: 1\n", 1, 3, "keys must be strings, this is a list"),
        ("<<: {a: 1}\n", 1, 1, "merge keys ('<<') are not supported: write the keys out"),
        ("a: !!str 12\n", 1, 4, "tags are not supported, found '!!str': remove it"),
        ("a: !!python/name:os.system x\n", 1, 4, None),
        ("a: !secret {}\n", 1, 4, "tags are not supported, found '!secret': remove it"),
        ("!x\na: 1\n", 1, 1, "tags are not supported, found '!x': remove it"),
        ("? !x a\n: 1\n", 1, 3, "tags are not supported, found '!x': remove it"),
        ("a: &x {b: *x}\n", 1, 4, "contains itself through an alias"),
        ("a:\n\tb: 1\n", 2, 1, "found a tab: indent with spaces"),
        ("a: |\n\tx\n", 2, 1, "found a tab: indent with spaces"),
        ("a: b: c\n", 1, 5, "a ':' where no key can be: check the indentation, or quote the value"),
        ('b: 1\na: "x\n\n\n', 2, 4, "this quote is never closed"),
        ("a: [1, 2\nb: 3\n", 1, 4, "this '[' list has no ']', or lacks a ',' between items"),
        ("a: @x\n", 1, 4, "a value cannot start with '@': put it in quotes"),
        ("a: *.py\n", 1, 5, "a value cannot start with '*' or '&': put it in quotes"),
        ("a: *x\n", 1, 4, "'*' refers to an anchor that is not there: quote the value"),
        (b"a: 1\nb: \xe4\n", 2, 4, "is not UTF-8, found byte 0xe4: save it as UTF-8"),
        (b"a: \xed\xa0\x80\n", 1, 4, "is not UTF-8, found byte 0xed: save it as UTF-8"),
        ("a: 1\n".encode("utf-16"), 1, 1, "is UTF-16: save it as UTF-8"),
        ("ä: \0\n", 1, 4, 'found the invisible character U+0000: remove it, or write "\\u0000"'),
        (
            "a: b\u2028\n",
            1,
            5,
            'found the invisible character U+2028: remove it, or write "\\u2028"',
        ),
        ("a: b\n\ufeffc: d\n", 2, 1, None),
        ('a: "\\ud800"\n', 1, 7, "the escape names no character"),
        ('a: "\\ud83d\\ude00 \\ude00"\n', 1, 20, "the escape names no character"),
        ('a: "\\ude00\\ud83d"\n', 1, 7, "the escape names no character"),
        ('a: "\\ud83d\\\\ude00"\n', 1, 7, "the escape names no character"),
        ('a: ["\\ud83d\\ude00", @x]\n', 1, 21, "a value cannot start with '@': put it in quotes"),
    ],
)
def test_refused_with_position(
    data: str | bytes, line: int, column: int, problem: str | None
) -> None:
    error = refusal_of(data)
    assert (error.position, error.problem) == (Position(line, column), problem or error.problem)


PAIRS = r"""
# "\ud83d\ude00"
plain: \ud83d\ude00
single: '\ud83d\ude00'
block: |
  "\ud83d\ude00"
"key \uD83D\uDE00": &a
  - "a\ud83d\ude00\ud83d\ude01
     b\\\ud83d\ude00\n"
  - "\\ud83d\\ude00"
again: *a
last: 1
"""


def test_a_pair_of_escapes_is_the_character_that_it_names() -> None:
    """Regression: what `json.dumps` writes was refused."""
    written, smile = r"\ud83d\ude00", "\U0001f600"
    listed = [f"a{smile}\U0001f601 b\\{smile}\n", written]
    document = load(PAIRS.encode(), "f.yaml")
    assert document.value == {
        "plain": written,
        "single": written,
        "block": f'"{written}"\n',
        f"key {smile}": listed,
        "again": listed,
        "last": 1,
    }
    assert document.position("last") == Position(12, 1)
    value = {"n": [smile, {f"{smile}k": f"\\{smile}\\u"}], "m": 1}
    found = load(json.dumps(value).encode(), "f.json")
    assert found.value == value
    assert found.position("m") == Position(1, json.dumps(value).index('"m"') + 1)
    assert load(json.dumps(value, indent=2).encode(), "f.json").value == value


def test_a_key_that_is_here_twice_by_its_escapes_is_found() -> None:
    problem = refusal_of('"\\ud83d\\ude00": 1\n"\U0001f600": 2\n').problem
    assert problem == "key '\U0001f600' is here twice, first on line 1"


@pytest.mark.parametrize("marker", ["<<<<<<< HEAD", "|||||||", "=======", ">>>>>>> a branch"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_merge_conflicts_are_named_as_such(marker: str, newline: str) -> None:
    error = refusal_of(f"a: |{newline}  text{newline}{marker}{newline}  more{newline}")
    assert error.position == Position(3, 1)
    assert "merge conflict" in error.problem


def test_lines_that_only_resemble_conflict_marks_are_fine() -> None:
    document = load(b"a: |\n  <<<<<<< x\n  =======\n# ========\nb: =======\n", "f.yaml")
    assert document.value == {"a": "<<<<<<< x\n=======\n", "b": "======="}


def test_a_byte_order_mark_and_crlf_are_fine() -> None:
    document = load(b"\xef\xbb\xbfa: 1\r\nb: |\r\n  x\r\n  y\r\n", "f.yaml")
    assert document.value == {"a": 1, "b": "x\ny\n"}
    assert document.position("a") == Position(1, 1)


def test_oversized_files_are_refused_before_they_are_parsed() -> None:
    load(b"a: b", "f.yaml", max_bytes=4)
    with pytest.raises(InvalidFile, match="is longer than 4 bytes: make it shorter"):
        load(b"a: [[", "f.yaml", max_bytes=4)


def nested(levels: int) -> bytes:
    return b"a: " + b"[" * (levels - 1) + b"x" + b"]" * (levels - 1)


def test_depth_is_limited() -> None:
    load(nested(64), "f.yaml")
    for data in (nested(65), b"[" * 3000, b"- " * 500_000, b"a:\n" + b"- " * 100 + b"x"):
        assert refusal_of(data).problem == "is nested deeper than 64 levels"


def test_of_what_the_server_wrote_the_limit_that_holds_is_told() -> None:
    load(nested(192), "f.yaml", own=True)
    for data in (nested(193), b"[" * 3000):
        with pytest.raises(InvalidFile, match="is nested deeper than 192 levels"):
            load(data, "f.yaml", own=True)


def test_depth_is_limited_through_aliases_too() -> None:
    lines = ["l0: &l0 x"]
    lines += [f"l{n}: &l{n} [[[*l{n - 1}]]]" for n in range(1, 30)]
    assert refusal_of("\n".join(lines)).problem == "is nested deeper than 64 levels"


def test_aliases_have_a_small_budget() -> None:
    shared = "a: &a {k: [1, 2, 3]}\nb: ["
    assert len(load((shared + "*a, " * 64 + "]").encode(), "f.yaml").value["b"]) == 64
    assert "64 aliases" in refusal_of(shared + "*a, " * 65 + "]").problem


def test_an_alias_bomb_is_refused_at_once() -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 7)]
    assert "100000 values" in refusal_of("\n".join(lines)).problem


def test_what_the_server_wrote_may_be_longer_but_is_no_alias_bomb() -> None:
    many = ("a: [" + "1, " * 100_001 + "]").encode()
    with pytest.raises(InvalidFile, match="100000 values"):
        load(many, "f.yaml", max_bytes=len(many))
    assert len(load(many, "f.yaml", max_bytes=len(many), own=True).value["a"]) == 100_001
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 7)]
    with pytest.raises(InvalidFile, match="100000 values"):
        load("\n".join(lines).encode(), "f.yaml", own=True)


TEXT = b"""\
# about
spec:
  labels: {pool: gpu}
  steps:
    - name: a
    - name: b
      needs: [a]
"""


@pytest.mark.parametrize(
    ("keys", "line", "column"),
    [
        ((), 2, 1),
        (("spec",), 2, 1),
        (("spec", "labels", "pool"), 3, 12),
        (("spec", "steps", 1), 6, 7),
        (("spec", "steps", 1, "needs", 0), 7, 15),
        (("spec", "steps", 7, "name"), 4, 3),
        (("spec", "labels", "arch"), 3, 3),
        (("status",), 2, 1),
        (("spec", "labels", "pool", "x"), 3, 12),
    ],
)
def test_positions(keys: tuple[str | int, ...], line: int, column: int) -> None:
    assert load(TEXT, "f.yaml").position(*keys) == Position(line, column)


@given(
    st.one_of(st.binary(max_size=60), st.text(":-[]{}&*!|>'\"#%@` \t\nab10.<=?,\\").map(str.encode))
)
@example(b"%YAML 9.9\n---\na: 1")
def test_any_bytes_are_a_document_or_an_invalid_file(data: bytes) -> None:
    try:
        document = load(data, "f.yaml")
    except InvalidFile as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(document, Document)
        assert isinstance(document.value, dict)
