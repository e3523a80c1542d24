"""No piece of a stream ever shows a secret, wherever the pieces are cut."""

from __future__ import annotations

import base64
import itertools
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swamp.execute.redaction import RedactedStream, Redactor

SECRET = 'hunter2/ +é"quoted\\'


@pytest.mark.parametrize(
    "leak",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        quote(SECRET, safe=""),
        base64.b64encode(SECRET.encode()).decode(),
        base64.b64encode(b"a" + SECRET.encode()).decode(),
        base64.b64encode(b"ab" + SECRET.encode() + b"c").decode(),
        base64.urlsafe_b64encode(b"??>" + SECRET.encode()).decode(),
    ],
)
def test_every_usual_form_is_masked(leak: str) -> None:
    redacted = Redactor([SECRET]).text(f"before {leak} after")
    assert "***" in redacted
    assert redacted.startswith("before ") and redacted.endswith(" after")
    longest = max(len(piece) for piece in redacted.split("***"))
    assert longest < len("before ") + 8


def test_each_line_of_a_key_is_masked_and_short_values_are_left_alone() -> None:
    key = "-----BEGIN-----\nabcdefghijkl\nend\n"
    redactor = Redactor([key, "abc"])
    assert redactor.text("x abcdefghijkl y") == "x *** y"
    assert redactor.text("abc end") == "abc end"
    assert not Redactor(["abc"])


@given(
    st.lists(st.text(alphabet="abAB", min_size=4, max_size=6), min_size=1, max_size=3),
    st.text(alphabet="abAB", max_size=60),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_a_stream_cut_anywhere_reads_like_the_whole_text(
    values: list[str], text: str, cuts: list[int]
) -> None:
    redactor = Redactor(values)
    data = text.encode()
    stream = RedactedStream(redactor)
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    pieces = [stream.feed(data[a:b]) for a, b in itertools.pairwise(edges)]
    shown = b"".join([*pieces, stream.flush()]).decode()
    for value in values:
        assert value not in shown.replace("***", "\0")


def test_what_only_begins_like_a_value_comes_out_at_the_end() -> None:
    stream = RedactedStream(Redactor(["secret-value"]))
    assert stream.feed(b"a secret-") == b"a "
    assert stream.flush() == b"secret-"
