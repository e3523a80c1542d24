"""Puts an output from inside a step, and gets it back.

`SWAMP_DATA_URL` and `SWAMP_DATA_TOKEN` say where and who. A server that is away for a moment, since
it starts again, costs no step: it is asked again, and what broke on the way is sent from its
beginning. A refusal is final. What comes through a pipe is read before anybody is asked: whoever
makes it may take longer for that than a server waits.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO
from urllib.parse import SplitResult, quote, urlsplit

from datastore.errors import SwampError
from swamp.client import PATIENCE_S, RETRY_MOST_S, ServerError, Unreachable
from swamp.dialling import fits_header
from swamp.protocol import CA_VARIABLE, DATA_TOKEN_VARIABLE, DATA_URL_VARIABLE
from swamp.tls import client_context

TIMEOUT_S = 120.0
"""How long the server may be silent; it answers once the output is on disk."""

_CONNECT_S = 15.0
_FIRST_RETRY_S = 0.5
_PIECE_BYTES = 256 << 10
_IN_MEMORY_BYTES = 1 << 20
_AHEAD_MOST_BYTES = 1 << 30
"""So much of a pipe is read ahead; a server takes no more of it, unless it was told to."""
_PASSING_STATUS = frozenset((408, 502, 503, 504))
"""A server that stops or whose disk refuses, and what stands in front of one that is away; and who
waited for us in vain, say while this machine was asleep."""


class NotInAStep(SwampError):
    """The environment does not say where outputs go."""


class Unreadable(SwampError):
    """What is to be put cannot be read."""


class _Away(Unreachable):
    """Nobody answers just now, which may pass."""


class _NotNow(ServerError):
    """The server answers that it cannot, which may pass."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server that is away is tried again; who is told of the first time, and of all."""

    most_s: float = PATIENCE_S
    notice: Callable[[str], None] = lambda line: None
    detail: Callable[[str], None] = lambda line: None
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic


def put_output(
    environment: Mapping[str, str],
    name: str,
    file: BinaryIO,
    content_type: str,
    patience: Patience,
) -> dict[str, object]:
    """Send the file as output `name`; what the server says of it: name, version, size, sha256.

    NotInAStep, ServerError, Unreachable, Unreadable.
    """

    def send() -> dict[str, object]:
        with _asked(environment, name) as (connection, path, headers):
            pieces = source.from_its_beginning()
            # A refusal comes before the whole body is sent: it may be there to be read.
            with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
                connection.request("PUT", path, pieces, {**headers, "Content-Type": content_type})
            return _answer(connection.getresponse())

    _who(environment)
    with ExitStack() as closing:
        source = _Source(file, closing)
        return _answered(send, patience, lambda: source.is_whole)


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
    parts, token = _who(environment)
    connection = _connection(parts.scheme, parts.netloc, environment.get(CA_VARIABLE))
    headers = {"Authorization": f"Bearer {token}"}
    try:
        connection.connect()
        connection.sock.settimeout(TIMEOUT_S)
        yield connection, f"{parts.path}/{quote(name, safe='')}", headers
    except (OSError, http.client.HTTPException) as error:
        kind = _Away if _may_pass(error) else Unreachable
        raise kind(f"no answer from {parts.netloc} ({error})") from None
    finally:
        connection.close()


def _who(environment: Mapping[str, str]) -> tuple[SplitResult, str]:
    """Where to ask, and with which token. NotInAStep."""
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
    return parts, token


def _connection(scheme: str, place: str, authorities: str | None) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(place, timeout=_CONNECT_S)
    trust = client_context(Path(authorities) if authorities else None)
    return http.client.HTTPSConnection(place, timeout=_CONNECT_S, context=trust)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    return isinstance(error, (OSError, http.client.IncompleteRead))


def _answer(response: http.client.HTTPResponse) -> dict[str, object]:
    """The JSON object; ServerError where it says no."""
    try:
        answer = json.loads(response.read())
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        kind = _Away if response.status in _PASSING_STATUS else Unreachable
        raise kind(f"no swamp server is there: it answered {response.status}")
    if response.status >= 400:
        refusal = _NotNow if response.status in _PASSING_STATUS else ServerError
        raise refusal(str(answer.get("error")), str(answer.get("code")))
    return answer


def _answered(
    ask: Callable[[], dict[str, object]], patience: Patience, may_again: Callable[[], bool]
) -> dict[str, object]:
    """The answer, asked for again while the server is away and patience lasts."""
    tries, lost_at = 0, 0.0
    while True:
        try:
            return ask()
        except (_Away, _NotNow) as lost:
            lost_at = patience.now() if tries == 0 else lost_at
            if not may_again() or patience.now() - lost_at >= patience.most_s:
                raise
            tell = patience.notice if tries == 0 else patience.detail
            tell(f"{lost}; trying again for {patience.most_s:.0f} s")
            tries += 1
            # Spread: all steps of a fleet lose the same server at the same moment.
            most_s = min(_FIRST_RETRY_S * 2.0**tries, RETRY_MOST_S)
            patience.sleep(random.uniform(most_s / 2, most_s))


class _Source:
    """What is put, to be read as often as it takes.

    Of what can be read only once (a pipe), a copy is made. What there is no room for is sent as it
    comes, once.
    """

    def __init__(self, file: BinaryIO, closing: ExitStack) -> None:
        """Unreadable."""
        self._file = file
        self._closing = closing
        self._start = file.tell() if file.seekable() else None
        self._memory = bytearray()
        self._disk: IO[bytes] | None = None
        self._left = b""
        self.is_whole = True
        """Whether it can be read from its beginning once more."""
        if self._start is None:
            with _readable():
                self._read_ahead()

    def from_its_beginning(self) -> Iterator[bytes]:
        """All of it, in pieces. Unreadable."""
        with _readable():
            if self._start is not None:
                self._file.seek(self._start)
            else:
                yield bytes(self._memory)
                if self._disk is not None:
                    self._disk.seek(0)
                    yield from _pieces(self._disk)
                yield self._left
            for piece in _pieces(self._file):
                if self._start is None:
                    self._keep(piece)
                yield piece

    def _read_ahead(self) -> None:
        read = 0
        for piece in _pieces(self._file):
            self._left = piece[self._keep(piece) :]
            read += len(piece)
            if not self.is_whole or read >= _AHEAD_MOST_BYTES:
                return

    def _keep(self, piece: bytes) -> int:
        """How much of it there was room for."""
        if self._disk is None and len(self._memory) + len(piece) <= _IN_MEMORY_BYTES:
            self._memory += piece
            return len(piece)
        kept = 0
        try:
            if self._disk is None:
                # Unbuffered: what is written is there, whatever becomes of the rest.
                unnamed = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
                self._disk = self._closing.enter_context(unnamed)
            while kept < len(piece):
                kept += self._disk.write(piece[kept:])
        except OSError:
            self.is_whole = False
        return kept


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unreadable(f"what is to be put cannot be read: {error.strerror}") from None


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: file.read(_PIECE_BYTES), b"")
