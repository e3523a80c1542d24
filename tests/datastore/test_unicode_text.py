from __future__ import annotations

from typing import Any

import pytest

from datastore.unicode_text import is_unicode, lone_surrogate, made_unicode


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("caf\udce9", "the text"),
        ({"a": {"b": ["x", "y\ud800"]}}, "a.b[1]"),
        ({"a\ud800": 1}, "a name"),
        ({"a": {"b\udfff": 1}}, "a name in a"),
        ([["\ud800"], "\ud801"], "[0][0]"),
        ({"a": "caf\u00e9 \U0001f600", "b": [1, None, True, {}]}, None),
        ("\ud83d\ude00", "the text"),
    ],
)
def test_the_first_text_that_no_utf8_can_hold_is_found(value: Any, where: str | None) -> None:
    assert lone_surrogate(value) == where


def test_what_is_said_of_it_can_be_written_itself() -> None:
    found = lone_surrogate({"a\ud800": {"b": "\ud800"}})
    assert found is not None
    assert is_unicode(found)


def test_each_is_replaced_and_all_else_stays() -> None:
    value = {"a\ud800": ["x\udce9y", 1, None, {"b": "z"}]}
    assert made_unicode(value) == {"a\ufffd": ["x\ufffdy", 1, None, {"b": "z"}]}
