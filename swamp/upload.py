"""Puts an output from inside a step: `SWAMP_DATA_URL` and `SWAMP_DATA_TOKEN` say where and who."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, urlsplit

from datastore.errors import SwampError
from swamp.client import ServerError, Unreachable
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
    url = environment.get(DATA_URL_VARIABLE)
    token = environment.get(DATA_TOKEN_VARIABLE)
    if not url or not token:
        raise NotInAStep(
            f"{DATA_URL_VARIABLE} and {DATA_TOKEN_VARIABLE} are not set: outputs are put by steps,"
            " while they run"
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise NotInAStep(f"{DATA_URL_VARIABLE} is no address: {url!r}")
    connection = _connection(parts.scheme, parts.netloc, environment.get(CA_VARIABLE))
    headers = {"Authorization": f"Bearer {token}", "Content-Type": content_type}
    pieces = iter(lambda: file.read(_PIECE_BYTES), b"")
    try:
        connection.request("PUT", f"{parts.path}/{quote(name, safe='')}", pieces, headers)
        return _answer(connection)
    except (BrokenPipeError, ConnectionResetError) as error:
        # A refusal comes before the whole body is sent: it may be there to be read.
        try:
            return _answer(connection)
        except (OSError, http.client.HTTPException):
            raise Unreachable(f"lost the connection to {parts.netloc} ({error})") from None
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"no answer from {parts.netloc} ({error})") from None
    finally:
        connection.close()


def _connection(scheme: str, place: str, authorities: str | None) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(place, timeout=TIMEOUT_S)
    trust = client_context(Path(authorities) if authorities else None)
    return http.client.HTTPSConnection(place, timeout=TIMEOUT_S, context=trust)


def _answer(connection: http.client.HTTPConnection) -> dict[str, object]:
    response = connection.getresponse()
    try:
        answer = json.loads(response.read())
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Unreachable(f"{connection.host} is no swamp server: it answered {response.status}")
    if response.status >= 400:
        raise ServerError(str(answer.get("error")), str(answer.get("code")))
    return answer
