"""An edit changes one path and not one character more than that takes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datastore.errors import InvalidFile, Position
from datastore.yaml_edit import Scalar, clear_field, new_file, set_field
from datastore.yaml_emitter import emit
from datastore.yaml_loader import load

FLAG = ("spec", "flag")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("spec:\n  flag: true  # why\n  a: 1\n", "spec:\n  flag: false  # why\n  a: 1\n"),
        ("spec:\n  flag: 'x''y'\n", "spec:\n  flag: false\n"),
        ("spec:\n  flag: x\n    y # z\n", "spec:\n  flag: false # z\n"),
        ("spec:\n  flag:   # why\n  a: 1\n", "spec:\n  flag: false   # why\n  a: 1\n"),
        ("spec:\n  flag:  \n  a: 1", "spec:\n  flag: false\n  a: 1"),
        ("spec:\n  flag: ~\n", "spec:\n  flag: false\n"),
        ("spec: {flag: 1, a: 2} # c\n", "spec: {flag: false, a: 2} # c\n"),
        ('{"spec": {"flag": "a"}}', '{"spec": {"flag": false}}'),
        (
            "spec:\n  flag: |- # n\n    x\n\n    y\n\n\n# c\nb: 1\n",
            "spec:\n  flag: false # n\n\n\n# c\nb: 1\n",
        ),
        ("spec:\n  flag: >\n    x\n  # c\n", "spec:\n  flag: false\n  # c\n"),
        ("? spec\n: flag: 1\n", "? spec\n: flag: false\n"),
        ("é: '😀' # é😀\nspec:\n  flag: '😀'\n", "é: '😀' # é😀\nspec:\n  flag: false\n"),
    ],
)
def test_an_existing_value_is_replaced(before: str, after: str) -> None:
    assert set_field(before, FLAG, False, "f.yaml") == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "spec:\n  flag: false\n"),
        ("# c\n\n# d\n", "# c\n\n# d\nspec:\n  flag: false\n"),
        ("# c", "# c\nspec:\n  flag: false"),
        ("# c\n--- # d\n", "# c\n--- # d\nspec:\n  flag: false\n"),
        ("{}\n", "{spec: {flag: false}}\n"),
        ("a: 1\n", "a: 1\nspec:\n  flag: false\n"),
        ("a: 1", "a: 1\nspec:\n  flag: false"),
        ("a: 1 # c\n# d\n...\n", "a: 1 # c\n# d\nspec:\n  flag: false\n...\n"),
        ("a:\n- 1\n- b: 2\n", "a:\n- 1\n- b: 2\nspec:\n  flag: false\n"),
        ("a:\n    b: 1\n", "a:\n    b: 1\nspec:\n    flag: false\n"),
        ("a: |+\n  x\n\n", "a: |+\n  x\n\nspec:\n  flag: false\n"),
        ("a: |\n  x\n\n\n", "a: |\n  x\nspec:\n  flag: false\n\n\n"),
        ("spec:\nb: 1\n", "spec:\n  flag: false\nb: 1\n"),
        ("spec:", "spec:\n  flag: false"),
        (
            "spec: # c\n  # flag: true\n\n# d\nb: 1\n",
            "spec: # c\n  # flag: true\n  flag: false\n\n# d\nb: 1\n",
        ),
        ("spec: null # c\n", "spec: {flag: false} # c\n"),
        ("spec: {}\n", "spec: {flag: false}\n"),
        ("spec: {a: 1} # c\n", "spec: {a: 1, flag: false} # c\n"),
        ("spec: {a: [1], }\n", "spec: {a: [1], flag: false }\n"),
        ("spec: {\n  a: 1 # c\n}\n", "spec: {\n  a: 1, flag: false # c\n}\n"),
        (
            "spec:\n  a: 1 # c\n  # d\n# e\nb: 2\n",
            "spec:\n  a: 1 # c\n  # d\n  flag: false\n# e\nb: 2\n",
        ),
        (
            "spec:\n   a:\n     b: [1,\n 2]\n\nc: 1\n",
            "spec:\n   a:\n     b: [1,\n 2]\n   flag: false\n\nc: 1\n",
        ),
        (
            "a: 1\r\nspec:\r\n  b: 1\r\nc: 1\r\n",
            "a: 1\r\nspec:\r\n  b: 1\r\n  flag: false\r\nc: 1\r\n",
        ),
        ("\ufeffspec:\r\n", "\ufeffspec:\r\n  flag: false\r\n"),
    ],
)
def test_a_missing_key_goes_to_the_end_of_its_parent(before: str, after: str) -> None:
    assert set_field(before, FLAG, False, "f.yaml") == after


@pytest.mark.parametrize(
    ("value", "written"),
    [("no", '"no"'), ("a: b", '"a: b"'), ("l1\nl2", '"l1\\nl2"'), (1.5, "1.5"), (None, "null")],
)
def test_values_are_written_so_that_they_stay_what_they_are(value: Scalar, written: str) -> None:
    assert set_field("a: 1 # c\n", ("a",), value, "f.yaml") == f"a: {written} # c\n"


@pytest.mark.parametrize("text", ["a: 'x' # c", 'a: "x"', "a: x\n", "{a: x}"])
def test_a_value_that_is_there_already_changes_nothing(text: str) -> None:
    assert set_field(text, ("a",), "x", "f.yaml") == text


@pytest.mark.parametrize(("text", "value"), [("a: 1\n", True), ("a: 1.0\n", 1), ("a: '1'\n", 1)])
def test_equal_in_python_is_not_the_same_value(text: str, value: Scalar) -> None:
    assert set_field(text, ("a",), value, "f.yaml") == f"a: {json.dumps(value)}\n"


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("spec: [1]\n", Position(1, 1)),
        ("a: 1\nspec: 5\n", Position(2, 1)),
        ("spec: ''\n", Position(1, 1)),
        ("spec:\n  flag: {a: 1}\n", Position(2, 3)),
        ("spec:\n  flag: [a]\n", Position(2, 3)),
        ("a: &x {flag: 1}\nspec: *x\n", Position(1, 8)),
        ("spec: {flag: &x 1}\na: *x\n", Position(1, 8)),
        ("spec: {flag}\n", Position(1, 8)),
        ("spec:\n  flag: 1\n  flag: 2\n", Position(3, 3)),
    ],
)
def test_what_cannot_be_done_safely_is_refused(text: str, position: Position) -> None:
    with pytest.raises(InvalidFile) as caught:
        set_field(text, FLAG, "x", "f.yaml")
    assert (caught.value.path, caught.value.position) == ("f.yaml", position)


def test_a_new_file_has_its_comment_on_top() -> None:
    text = new_file({"spec": {"a": 1}}, "What it is.\n\nMore.")
    assert text == "# What it is.\n#\n# More.\n\nspec:\n  a: 1\n"


names = st.sampled_from(["a", "b", "no", "k 1"])
scalars = st.sampled_from(["x", "l1\nl2", "l1\nl2\n\n", "no", 1, True, None, 1.5])
trees = st.recursive(
    st.one_of(scalars, st.just([])),
    lambda inner: st.one_of(
        st.dictionaries(names, inner, max_size=3), st.lists(inner, min_size=1, max_size=2)
    ),
    max_leaves=8,
)


@st.composite
def commented(draw: st.DrawFn) -> str:
    """A file with comments behind and between its lines, where they are no part of a text."""
    document = draw(st.dictionaries(names, trees, max_size=3))
    lines = []
    for line in emit(document).splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        kind = draw(st.integers(0, 3))
        plain = line.endswith((":", "x", "1", "true", '"', "}", "]"))
        lines.append(f"{line} # same {len(lines)}" if kind == 0 and plain else line)
        if kind == 1:
            lines.append(f"{indent}# own {len(lines)}")
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    return newline.join(lines) + draw(st.sampled_from([newline, ""]))


@given(commented(), st.lists(names, min_size=1, max_size=3), scalars)
@settings(max_examples=300, deadline=None)
def test_any_edit_changes_one_path_or_is_refused(text: str, keys: list[str], value: Any) -> None:
    try:
        before = load(text.encode(), "f.yaml").value
        changed = set_field(text, tuple(keys), value, "f.yaml")
    except InvalidFile:
        return
    wanted: Any = copy.deepcopy(before)
    inner = wanted
    for key in keys[:-1]:
        inner[key] = inner.get(key) or {}
        inner = inner[key]
    inner[keys[-1]] = value
    assert json.dumps(load(changed.encode(), "f.yaml").value) == json.dumps(wanted)
    was, now = text.splitlines(keepends=True), changed.splitlines(keepends=True)
    top = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), len(was))
    tail = was[top + 1 :]
    assert tail == now[len(now) - len(tail) :] or "|" in text


@given(st.lists(names, min_size=1, max_size=3), scalars, st.dictionaries(names, scalars))
def test_files_of_plain_mappings_can_always_be_edited(
    keys: list[str], value: Any, spec: dict[str, Any]
) -> None:
    text = emit({"spec": spec}) + "# end\n"
    changed = set_field(text, ("spec", "new", *keys), value, "f.yaml")
    found: Any = load(changed.encode(), "f.yaml").value["spec"]["new"]
    for key in keys:
        found = found[key]
    assert found == value
    assert changed.endswith("# end\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("spec:\n  flag: x  # why\n  a: 1\n", "spec:\n  flag: null  # why\n  a: 1\n"),
        ("spec:\n  a: 1\n", "spec:\n  a: 1\n"),
        ("spec:\n  flag: ~ # none\n", "spec:\n  flag: ~ # none\n"),
        ("\ufeffspec:\n", "\ufeffspec:\n"),
        ("# nothing\n", "# nothing\n"),
    ],
)
def test_a_value_is_cleared_where_there_is_one(before: str, after: str) -> None:
    assert clear_field(before, FLAG, "f") == after
