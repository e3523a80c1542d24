"""What is emitted means the same to our loader, to PyYAML (1.1) and to ruamel.yaml (1.2)."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
import ruamel.yaml
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from datastore.yaml_emitter import emit, emit_scalar
from datastore.yaml_loader import load

TRICKY = [
    *(
        "",
        " ",
        "y",
        "NO",
        "off",
        "null",
        "~",
        "<<",
        "=",
        "-",
        "?",
        ":",
        "---",
        "...",
        "a: b",
        "a #b",
    ),
    *(
        "a:",
        "#a",
        "12:30",
        "017",
        "0x1F",
        "1_000",
        "1234e567",
        "1e3",
        ".inf",
        "-1",
        "+1",
        "1.",
        ".5",
    ),
    *(
        "2026-11-29",
        "2026-11-29T16:41:31.123Z",
        "e5",
        "deadbeef1",
        "&a",
        "*a",
        "!a",
        "%a",
        "@a",
        "`a",
    ),
    *(
        "|",
        ">",
        "[a]",
        "{a}",
        "'a'",
        '"a"',
        "a ",
        " a",
        "a  b",
        "/a/b",
        "a-b",
        "a,b",
        "\t",
        "\ta",
        "a\t",
    ),
    *(
        "\n",
        "\n\n",
        "a\n",
        "a\nb",
        "a\nb\n\n",
        "\na",
        " a\nb",
        "a \nb",
        "a\n b",
        "a\n\tb",
        "a\n\nb",
        "a\n ",
    ),
    *(
        "a\r\nb",
        "a\x85b",
        "a\u2028b",
        "a\n\u2029b",
        "\ufeff",
        "a\n\ufeffb",
        "\x00",
        "\x7f",
        "\x9f",
        "é",
        "\U0001f600",
    ),
    *(
        "a\tb\nc\td",
        "<<<<<<< a\n=======\n>>>>>>> b",
        "# a\n---\n...\nb: c",
        "\ufffe",
        "\xa0",
        "a\n\xa0",
        "k" * 1100,
    ),
]
texts = st.one_of(
    st.sampled_from(TRICKY),
    st.text(max_size=12),
    st.text("ab01 \n\t-:#'\"e.", max_size=12),
    st.text("0123456789abcdef-:.e_xT", max_size=10),
)
scalars = st.one_of(
    texts,
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
documents = st.dictionaries(texts, values, max_size=5)


def exact(value: Any) -> str:
    """Order, types and all."""
    return json.dumps(value)


def by_us(text: str) -> Any:
    return load(text.encode(), "x.yaml").value


def by_pyyaml(text: str) -> Any:
    return yaml.load(text, Loader=yaml.CSafeLoader)


def by_ruamel(text: str) -> Any:
    parser = ruamel.yaml.YAML(typ="safe", pure=True)
    parser.version = (1, 2)
    return parser.load(StringIO(text, newline=""))


@given(documents)
@settings(max_examples=300, deadline=None)
def test_our_loader_and_pyyaml_read_back_what_was_emitted(document: dict[str, Any]) -> None:
    text = emit(document)

    assert exact(by_us(text)) == exact(document)
    assert exact(by_pyyaml(text)) == exact(document)


@given(documents)
@settings(max_examples=100, deadline=None)
def test_a_second_parser_that_knows_yaml_1_2_reads_the_same(document: dict[str, Any]) -> None:
    assert exact(by_ruamel(emit(document))) == exact(document)


@pytest.mark.parametrize("text", TRICKY)
def test_tricky_texts_survive_as_key_value_and_item(text: str) -> None:
    document = {text: text, "in": {text: [text, [text], {text: text}]}, "last": text}
    emitted = emit(document)

    assert exact(by_us(emitted)) == exact(document)
    assert exact(by_pyyaml(emitted)) == exact(document)
    assert exact(by_ruamel(emitted)) == exact(document)
    assert by_us(f"[{emit_scalar(text)}, b]".join(("k: ", "\n")))["k"] == [text, "b"]


@given(documents)
@settings(max_examples=100, deadline=None)
def test_no_line_can_be_taken_for_more_than_it_is(document: dict[str, Any]) -> None:
    text = emit(document)

    assert text.endswith("\n")
    assert text.isprintable() or all(c in "\n\t" or c.isprintable() or c >= "\xa0" for c in text)
    assert emit(by_us(text)) == text


def test_a_record_looks_as_a_person_would_write_it() -> None:
    document = {
        "apiVersion": "swamp/v1",
        "metadata": {"name": "build-7", "uid": "0192aa", "createdAt": "2026-11-29T16:41:31.123Z"},
        "spec": {
            "labels": {"pool": "gpu", "legacy": "no"},
            "script": "set -e\n\nmake all\n",
            "steps": [{"name": "a", "needs": []}, {"name": "b", "needs": ["a", 2]}, ["x", {}]],
            "limit": 1e20,
        },
        "status": None,
    }

    assert emit(document) == (
        "apiVersion: swamp/v1\n"
        "metadata:\n"
        "  name: build-7\n"
        '  uid: "0192aa"\n'
        '  createdAt: "2026-11-29T16:41:31.123Z"\n'
        "spec:\n"
        "  labels:\n"
        "    pool: gpu\n"
        '    legacy: "no"\n'
        "  script: |\n"
        "    set -e\n"
        "\n"
        "    make all\n"
        "  steps:\n"
        "    - name: a\n"
        "      needs: []\n"
        "    - name: b\n"
        "      needs:\n"
        "        - a\n"
        "        - 2\n"
        "    - - x\n"
        "      - {}\n"
        "  limit: 1.0e+20\n"
        "status: null\n"
    )


def test_an_empty_document_is_an_empty_mapping() -> None:
    assert emit({}) == "{}\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", "a\n\udfff", 2**63])
@pytest.mark.parametrize("where", ["value", "item"])
def test_what_no_reader_could_take_back_is_refused(value: Any, where: str) -> None:
    with pytest.raises(ValueError):
        emit({"a": value} if where == "value" else {"a": [value]})


@pytest.mark.parametrize("document", [{1: "a"}, {"a": {None: 1}}, {"a": b"x"}, {"a": {1, 2}}])
def test_what_is_no_json_is_refused(document: dict[Any, Any]) -> None:
    with pytest.raises(TypeError):
        emit(document)
