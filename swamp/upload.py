"""Puts an output from inside a step, and gets it back.

`SWAMP_DATA_URL` and `SWAMP_DATA_TOKEN` say where and who.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, urlsplit

from datastore.errors import SwampError
from swamp.client import ServerError, Unreachable
from swamp.dialling import fits_header
from swamp.protocol import CA_VARIABLE, DATA_TOKEN_VARIABLE, DATA_URL_VARIABLE
from swamp.tls import client_context

TIMEOUT_S = 120.0
"""How long the server may be silent; it answers once the output is on disk."""

_PIECE_BYTES = 256 << 10


class NotInAStep(SwampError):
    """The environment does not say where outputs go."""


def put_output(
    environment: Mapping[str, str], name: str, file: BinaryIO, content_type: str
) -> dict[str, object]:
    """Send the file as output `name`; what the server says of it: name, version, size, sha256.

    NotInAStep, ServerError, Unreachable.
    """
    pieces = iter(lambda: file.read(_PIECE_BYTES), b"")
    with _asked(environment, name) as (connection, path, headers):
        # A refusal comes before the whole body is sent: it may be there to be read.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request("PUT", path, pieces, {**headers, "Content-Type": content_type})
        return _answer(connection.getresponse())


def get_output(environment: Mapping[str, str], name: str) -> bytes:
    """The output `name` as this very step has put it last. Errors as of `put_output`."""
    with _asked(environment, name) as (connection, path, headers):
        connection.request("GET", path, None, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise Unreachable(f"{name} cannot be read back: {_answer(response)}")
        return response.read()


@contextmanager
def _asked(
    environment: Mapping[str, str], name: str
) -> Iterator[tuple[http.client.HTTPConnection, str, dict[str, str]]]:
    """A connection to ask on, the path of the output, and what says who asks."""
    url = environment.get(DATA_URL_VARIABLE)
    token = environment.get(DATA_TOKEN_VARIABLE)
    if token is not None and not fits_header(token):
        raise NotInAStep(f"{DATA_TOKEN_VARIABLE} is no token: leave it as the step was given it")
    if not url or not token:
        raise NotInAStep(
            f"{DATA_URL_VARIABLE} and {DATA_TOKEN_VARIABLE} are not set: outputs are put by steps,"
            " while they run"
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise NotInAStep(f"{DATA_URL_VARIABLE} is no address: {url!r}")
    connection = _connection(parts.scheme, parts.netloc, environment.get(CA_VARIABLE))
    headers = {"Authorization": f"Bearer {token}"}
    try:
        yield connection, f"{parts.path}/{quote(name, safe='')}", headers
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"no answer from {parts.netloc} ({error})") from None
    finally:
        connection.close()


def _connection(scheme: str, place: str, authorities: str | None) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(place, timeout=TIMEOUT_S)
    trust = client_context(Path(authorities) if authorities else None)
    return http.client.HTTPSConnection(place, timeout=TIMEOUT_S, context=trust)


def _answer(response: http.client.HTTPResponse) -> dict[str, object]:
    """The JSON object; ServerError where it says no."""
    try:
        answer = json.loads(response.read())
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Unreachable(f"no swamp server is there: it answered {response.status}")
    if response.status >= 400:
        raise ServerError(str(answer.get("error")), str(answer.get("code")))
    return answer
