"""What a request says is what it must be, or refused with the reason."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from datastore.definitions import suggest
from datastore.plain_values import from_json
from swamp.serve import requests
from swamp.serve.answers import ApiError
from swamp.serve.requests import Parameters, body_of, no_parameters, seconds_of


def asked(query: str) -> Parameters:
    request = make_mocked_request("GET", f"/x?{query}")
    return Parameters(request, ("all", "limit", "name", "status"))


def posted(data: bytes) -> web.Request:
    request = make_mocked_request("POST", "/x")
    request._read_bytes = data
    return request


def test_what_is_not_given_has_its_default() -> None:
    none = asked("")
    assert (none.flag("all"), none.number("limit", 50, 1), none.text("status")) == (False, 50, None)
    assert (none.texts("name"), none.one_of("status", ("a",))) == ([], None)


def test_what_is_given_is_taken() -> None:
    some = asked("all=true&limit=7&name=b&name=a&name=b&status=a")
    assert (some.flag("all"), some.number("limit", 50, 1, 9)) == (True, 7)
    assert (some.texts("name"), some.one_of("status", ("a",))) == (["b", "a"], "a")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("nam=w1", "no parameter 'nam': did you mean 'name'?"),
        ("zzzzzz=1", "no parameter 'zzzzzz': there are all, limit, name, status"),
        ("all=banana", "all must be one of 1, true, 0, false"),
        ("status=bogus", "status must be one of a, b"),
        ("status=", "status must be one of a, b"),
        ("limit=1&limit=2", "limit is given 2 times"),
        ("limit=%D9%A1", "limit must be a number from 1 to 9"),
        ("limit=-1", "limit must be a number from 1 to 9"),
        ("limit=10", "limit must be a number from 1 to 9"),
        (f"limit={'9' * 5000}", "limit must be a number from 1 to 9"),
    ],
)
def test_all_else_is_refused(query: str, said: str) -> None:
    with pytest.raises(ApiError) as refused:
        found = asked(query)
        found.flag("all")
        found.one_of("status", ("a", "b"))
        found.number("limit", 5, 1, 9)
    assert (refused.value.status, str(refused.value)) == (400, said)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"a": "x", "bb": 1}, "no field in the body 'bb': did you mean 'b'?"),
        ({"b": 1}, "the body needs 'a', a text"),
        ({"a": True}, "'a' in the body must be a text"),
        ({"a": None}, "'a' in the body must be a text"),
        ({"a": "x", "b": True}, "'b' in the body must be a whole number"),
        ({"a": "x", "c": 1}, "'c' in the body must be true or false"),
        ({"a": "\ud800"}, "in the body, a holds a character that is no Unicode (a lone surrogate)"),
        ({"a": [1 << 64]}, "in the body, a[0] does not fit 64 bits: quote it if it is an id"),
        ({"a": "x" * 100_000, "b": [1 << 64]}, "in the body, b[0] does not fit 64 bits: quote it"),
        ([], "the body must be a JSON object"),
    ],
)
async def test_a_body_is_refused(body: Any, said: str) -> None:
    with pytest.raises(ApiError) as refused:
        await body_of(posted(json.dumps(body).encode()), {"a": str}, {"b": int, "c": bool})
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "the body must be a JSON object: Expecting property name"),
        (b'{"a": NaN}', "the body must be a JSON object: NaN is no JSON"),
        (b"[" * 100_000, "in the body, it is nested deeper than 64 levels"),
        (b"\xff", "the body is not UTF-8 at byte 0"),
        (b"3", "the body must be a JSON object"),
        (b'{"a": "\xed\xa0\x80"}', "the body is not UTF-8 at byte 7"),
        ('{"a": "\\ud800"}'.encode("utf-16"), "the body is not UTF-8 at byte 0"),
    ],
)
async def test_what_is_no_object_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ApiError) as refused:
        await body_of(posted(data), {})
    assert str(refused.value).startswith(said)


async def test_a_body_is_taken() -> None:
    data = b'{"a": "x", "b": null}'
    assert await body_of(posted(data), {"a": str}, {"b": int}) == {"a": "x", "b": None}
    assert await body_of(posted(b""), {}) == {}
    assert await body_of(posted(b'{"a": true}'), {}, {"a": object}) == {"a": True}


@pytest.mark.parametrize(("length", "aside"), [(10, False), (100_000, True)])
async def test_the_values_of_a_large_body_are_looked_at_aside(
    monkeypatch: pytest.MonkeyPatch, *, length: int, aside: bool
) -> None:
    """Of a megabyte that takes 30 ms, in which nobody else had a turn."""
    threads = []

    def noted(text: str) -> Any:
        threads.append(threading.current_thread())
        return from_json(text)

    monkeypatch.setattr(requests, "from_json", noted)
    await body_of(posted(json.dumps({"a": "x" * length}).encode()), {"a": str})
    assert [one is not threading.main_thread() for one in threads] == [aside]


@pytest.mark.parametrize("value", [0, -1, 1e300, 3.2e9, True, "1", None, 10**18])
def test_seconds_that_are_none_or_too_many(value: Any) -> None:
    with pytest.raises(
        ApiError, match="'forS' must be seconds, more than 0, and at most 100 years"
    ):
        seconds_of({"forS": value}, "forS")


def test_seconds() -> None:
    assert seconds_of({"forS": 1}, "forS") == 1.0
    assert seconds_of({"forS": 3.1e9}, "forS") == 3.1e9
    assert seconds_of({"forS": 0}, "forS", zero=True) == 0.0


async def test_a_field_of_older_clients_is_passed_over_and_not_advertised() -> None:
    given = posted(b'{"a": "x", "old": 1}')
    assert await body_of(given, {"a": str}, passed_over=("old",)) == {"a": "x", "old": 1}
    with pytest.raises(ApiError) as refused:
        await body_of(posted(b'{"a": "x", "zz": 1}'), {"a": str}, passed_over=("old",))
    assert str(refused.value) == "no field in the body 'zz': there are a"


async def test_a_field_of_megabytes_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: that took most of a second, in which nobody else had a turn."""
    monkeypatch.setattr(suggest, "get_close_matches", lambda *_, **__: pytest.fail("compared"))
    with pytest.raises(ApiError, match="there are b"):
        await body_of(posted(json.dumps({"a" * 100_000: 1}).encode()), {}, {"b": int})


async def test_a_question_without_parameters_refuses_each() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="all")

    wrapped = no_parameters(answer)
    assert (await wrapped(make_mocked_request("GET", "/x"))).status == 200
    with pytest.raises(ApiError, match="no parameter 'y': there are none here"):
        await wrapped(make_mocked_request("GET", "/x?y=1"))
