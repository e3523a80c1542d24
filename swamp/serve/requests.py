"""What a request says, in its parameters or its body: as it must be, or refused with the reason.

What nobody knows is refused, too: with a misspelt parameter passed over, the answer would be one to
another question.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection, Mapping
from typing import Any

from aiohttp import web

from datastore.definitions.suggest import did_you_mean
from datastore.plain_values import Unfit, from_json
from swamp.serve.answers import ApiError, Handler

_LARGE_BYTES = 64 * 1024
"""The values of a larger body are looked at in a thread: those of a megabyte take some 30 ms."""
STALLED_S = 30.0
"""How long a body may stand still."""

_SECONDS_MOST = 100 * 365.25 * 86_400
_KINDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    (int, float): "a number",
    bool: "true or false",
}
"""What a field must be, in words; of `object` that is said where it is used."""
_FLAGS = {"1": True, "true": True, "0": False, "false": False}


def bad_request(message: str) -> ApiError:
    """The refusal of something that is not what it must be."""
    return ApiError(400, "bad_request", message)


class Parameters:
    """The parameters of a request, after the `?`; ApiError for one that is not `known`."""

    def __init__(self, request: web.Request, known: Collection[str]) -> None:
        self._given = request.query
        _refuse_unknown("parameter", self._given, known)

    def text(self, name: str) -> str | None:
        """One that may be given once."""
        found = self._given.getall(name, [])
        if len(found) > 1:
            raise bad_request(f"{name} is given {len(found)} times")
        return found[0] if found else None

    def texts(self, name: str) -> list[str]:
        """One that may be given many times, each value once, in their order."""
        return list(dict.fromkeys(self._given.getall(name, [])))

    def one_of(self, name: str, known: Collection[str]) -> str | None:
        """One of these words."""
        text = self.text(name)
        if text is not None and text not in known:
            raise bad_request(f"{name} must be one of {', '.join(known)}")
        return text

    def flag(self, name: str) -> bool:
        """One that is true or false; false if it is not given."""
        text = self.one_of(name, _FLAGS)
        return text is not None and _FLAGS[text]

    def number(self, name: str, default: int, least: int, most: int | None = None) -> int:
        """A whole number in a range."""
        text = self.text(name)
        if text is None:
            return default
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
        if number < least or (most is not None and number > most):
            limits = f"from {least}" + ("" if most is None else f" to {most}")
            raise bad_request(f"{name} must be a number {limits}")
        return number


def no_parameters(handler: Handler) -> Handler:
    """A handler of questions that know none."""

    @functools.wraps(handler)
    async def refusing(request: web.Request) -> web.StreamResponse:
        Parameters(request, ())
        return await handler(request)

    return refusing


async def body_of(
    request: web.Request,
    needed: Mapping[str, Any],
    optional: Mapping[str, Any] | None = None,
    passed_over: Collection[str] = (),
) -> dict[str, Any]:
    """The request's JSON object: with all that is needed, of these types, and nothing unknown.

    `passed_over`: fields of older clients that mean nothing any more.
    """
    data = await _whole(request)
    try:
        # Bytes would be taken in more than one way, and some of what is no Unicode as it is.
        text = data.decode() or "{}"
        large = len(data) > _LARGE_BYTES
        body = await asyncio.to_thread(from_json, text) if large else from_json(text)
    except Unfit as error:
        raise bad_request(f"in the body, {error}") from None
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        raise bad_request(f"the body must be a JSON object: {error}") from None
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    for field, kind in needed.items():
        if field not in body:
            raise bad_request(f"the body needs '{field}', {_KINDS[kind]}")
        _refuse_other(kind, field, body[field])
    allowed = optional or {}
    for field, kind in allowed.items():
        if body.get(field) is not None:
            _refuse_other(kind, field, body[field])
    given = [field for field in body if field not in passed_over]
    _refuse_unknown("field in the body", given, {*needed, *allowed})
    return body


async def _whole(request: web.Request) -> bytes:
    """The body, however slowly it comes; ApiError once nothing more of it does."""
    if request.content.is_eof():
        return await request.read()
    if (request.content_length or 0) > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size)
    body = bytearray()
    while piece := await _piece(request):
        body += piece
        if len(body) > request.client_max_size:
            raise web.HTTPRequestEntityTooLarge(request.client_max_size)
    return bytes(body)


async def _piece(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(STALLED_S):
            return await request.content.readany()
    except TimeoutError:
        raise ApiError(408, "stalled", f"the body stood still for {STALLED_S:g}s") from None


def seconds_of(body: Mapping[str, Any], field: str, *, zero: bool = False) -> float:
    """A duration that the body holds: more than nothing, `zero` aside, and at most 100 years."""
    value = body[field]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (0 < value <= _SECONDS_MOST or (zero and value == 0)):
        raise bad_request(
            f"'{field}' must be seconds, {'from' if zero else 'more than'} 0, and at most 100 years"
        )
    return float(value)


def _refuse_other(kind: Any, field: str, value: Any) -> None:
    """ApiError for a value that is not of the type; true and false are no numbers."""
    is_one = isinstance(value, kind) and (kind in (bool, object) or not isinstance(value, bool))
    if not is_one:
        raise bad_request(f"'{field}' in the body must be {_KINDS[kind]}")


def _refuse_unknown(what: str, given: Collection[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            there = f"there are {', '.join(sorted(known))}" if known else "there are none here"
            raise bad_request(f"no {what} '{name}': {did_you_mean(name, known) or there}")
