"""A small synchronous client of `swamp serve`, over TCP or the repository's own socket.

Promises: every failure is one `SwampError` that says what to do; `events` hands out a run's events
in order and without gaps, however often the connection drops on the way.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from datastore.errors import SwampError
from datastore.regular_file import read_bytes
from swamp.dialling import DEGRADED_HEADER, VERSION_HEADER, fits_header
from swamp.server_address import CONNECT_TIMEOUT_S, Address, address_of, connect_unix
from swamp.tls import client_context, untrusted

if TYPE_CHECKING:
    from datastore.layout import Layout

UNARY_TIMEOUT_S = 30.0
PATIENCE_S = 60.0
"""How long a lost connection is tried again; a server may take so long to start again."""
RETRY_MOST_S = 5.0
SLOW_S = 3.0
"""After so long without an answer the person is told who is waited for."""
SOCKET_WAIT_S, START_WAIT_S = 2.0, 60.0
_LAST_EVENT = "run_completed"
_NOT_NOW = (502, 503, 504)
"""A server that does not serve yet, or a proxy before it, says so: as if nobody listened."""
_QUOTED_BYTES = 200


class ServerError(SwampError):
    """The server answered, and said no. `code` is the machine's word for it."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Unreachable(SwampError):
    """No answer from the server: nobody listens, or the connection broke."""


class BadToken(SwampError):
    """A text that no access token can be."""


class RunLeft(Unreachable):
    """The server that runs a run is out of reach; the run is not over for that."""

    code = "unreachable"

    def __init__(self, message: str, run: str) -> None:
        super().__init__(message)
        self.run_id = run


class NoSuchEvent(SwampError):
    """The run is over and has no event of that number."""


class Client:
    """Talks to one server. Every call has a connection of its own; nothing to close."""

    degraded: str | None = None
    """Why the last answer may show more than is on disk; None while the server's disk is well."""

    slow: Callable[[str], None] | None = None
    """Told in one line whom a call waits for when the answer takes long."""

    pid: int | None = None
    """The server's process, where that is known."""

    def __init__(
        self,
        server: str | Path,
        *,
        token: str | None = None,
        ca_cert: Path | None = None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`server` is a URL (http, https, ws or wss), or the path of a socket.

        `token`: an access token. `ca_cert`: a PEM file of the authorities to trust, in place of the
        machine's. BadUrl for a URL that is none, BadToken for a token, TlsError for a file that
        does not do.
        """
        self._address = (
            address_of(server) if isinstance(server, str) else Address(str(server), server)
        )
        self._token = token.strip() if token is not None else None
        if self._token and not fits_header(self._token):
            # Not shown: it is a secret all the same.
            raise BadToken("the access token holds characters that none has: it is NAME.SECRET")
        self._trust = client_context(ca_cert) if self._address.tls else None
        self._sleep = sleep
        self._now = now

    @property
    def is_local(self) -> bool:
        """Whether it is the server of a repository of this machine, asked over its socket."""
        return self._address.socket is not None

    def get(self, path: str, **query: Any) -> Any:
        """The JSON answer; parameters that are None are left out. ServerError, Unreachable."""
        given = {key: value for key, value in query.items() if value is not None}
        return self._unary("GET", f"{path}?{urlencode(given)}" if given else path, None)

    def post(self, path: str, body: Any = None, within_s: float = UNARY_TIMEOUT_S) -> Any:
        """The JSON answer to a JSON body. ServerError, Unreachable.

        `within_s`: how long the server may be silent, where what it does takes its time.
        """
        return self._unary("POST", path, {} if body is None else body, within_s)

    def events(
        self,
        run: str,
        after: int = 0,
        notice: Callable[[str], None] = lambda line: None,
        detail: Callable[[str], None] = lambda line: None,
    ) -> Iterator[dict[str, Any]]:
        """The events of a run after that number, as they happen, until its last one.

        A lost connection is tried again for a minute, and the stream goes on where it stopped;
        `notice` is told so in one line, `detail` of every further try. NoSuchEvent.
        """
        tries, lost_at, has_begun = 0, 0.0, after == 0
        while True:
            try:
                for event in self._stream(run, after):
                    tries, after, has_begun = 0, event["seq"], True
                    yield event
                    if event["kind"] == _LAST_EVENT:
                        return
                if not has_begun:
                    self._refuse_beyond(run, after)
                raise Unreachable(f"{self._address.shown} ended the stream of run {run} early")
            except Unreachable as lost:
                tries += 1
                lost_at = self._now() if tries == 1 else lost_at
                if self._now() - lost_at >= PATIENCE_S:
                    raise
                if tries == 1:
                    notice(f"{lost}; trying again for {PATIENCE_S:.0f} s")
                else:
                    detail(f"{lost}; trying again ({tries})")
                self._sleep(min(float(tries), RETRY_MOST_S))

    def _refuse_beyond(self, run: str, after: int) -> None:
        """NoSuchEvent if the run is over and has no event after that number."""
        last = None
        for event in self._stream(run, 0, follow=False):
            last = event
        if last is not None and last["kind"] == _LAST_EVENT and last["seq"] <= after:
            count = last["seq"]
            raise NoSuchEvent(f"the run has {count} events and is over: none is number {after + 1}")

    def _unary(self, method: str, path: str, body: Any, within_s: float = UNARY_TIMEOUT_S) -> Any:
        connection = self._address.connection(self._trust)
        try:
            response = self._ask(connection, method, path, body, within_s)
            self.degraded = response.getheader(DEGRADED_HEADER)
            return _answer(response, self._address.shown)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def _stream(self, run: str, after: int, *, follow: bool = True) -> Iterator[dict[str, Any]]:
        path = f"/api/v1/runs/{quote(run, safe='')}/events?after={after}&follow={int(follow)}"
        connection = self._address.connection(self._trust)
        try:
            response = self._ask(connection, "GET", path, None)
            if response.status >= 400 or response.getheader(VERSION_HEADER) is None:
                _answer(response, self._address.shown, later=_NOT_NOW)
            while line := response.readline():
                if line.strip():
                    yield _event(line, self._address.shown)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Any,
        within_s: float = UNARY_TIMEOUT_S,
    ) -> http.client.HTTPResponse:
        payload = None if body is None else json.dumps(body).encode()
        headers = {} if payload is None else {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        with self._told_if_slow():
            connection.connect()
            connection.sock.settimeout(within_s)
            connection.request(method, self._address.prefix + path, payload, headers)
            return connection.getresponse()

    @contextmanager
    def _told_if_slow(self) -> Iterator[None]:
        if self.slow is None:
            yield
            return
        import threading

        who = f"at {self._address.shown}" if self.pid is None else f"(pid {self.pid})"
        timer = threading.Timer(SLOW_S, self.slow, (f"waiting for the server {who}…",))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _unreachable(self, error: Exception) -> Unreachable:
        shown = self._address.shown
        if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
            advice = "start it with `swamp serve`, or name another with --server URL"
            return Unreachable(f"no server listens on {shown}: {advice}")
        if isinstance(error, ssl.SSLCertVerificationError):
            return Unreachable(untrusted(shown, error))
        if isinstance(error, ssl.SSLError):
            return Unreachable(f"{shown} does not speak TLS: is it http:// there?")
        if isinstance(error, socket.gaierror):
            return Unreachable(f"{shown}: no such host; check the name in --server URL")
        if isinstance(error, TimeoutError):
            return Unreachable(f"{shown} does not answer: is it up, and is the port right?")
        return Unreachable(f"lost the connection to {shown} ({error or type(error).__name__})")


def local_client(
    layout: Layout,
    sleep: Callable[[float], None] = time.sleep,
    *,
    wait_s: float = SOCKET_WAIT_S,
    slow: Callable[[str], None] = lambda line: None,
) -> Client | None:
    """A client of the server that runs for this repository, None if none does.

    A server that holds the lock but does not listen yet is given `wait_s`, unless it says itself
    that it cannot start; `slow` is told of one that takes its time.
    """
    waited_s = 0.0
    while not _listens(layout.socket):
        holder, cannot_start = _holder(layout.lock)
        if waited_s >= wait_s or holder is None or cannot_start:
            return None
        if waited_s < SOCKET_WAIT_S <= waited_s + 0.1:
            slow(f"pid {holder} holds this repository and does not answer yet: waiting for it")
        sleep(0.1)
        waited_s += 0.1
    client = Client(layout.socket)
    client.pid, _ = _holder(layout.lock)
    return client


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        try:
            connect_unix(probe, path)
        except OSError:
            return False
        return True


def _holder(lock: Path) -> tuple[int | None, bool]:
    """The process that signed the lock, and whether it waits; no process if it is gone.

    The lock itself is not tried: even for an instant that could refuse a server that is starting.
    """
    try:
        found = json.loads(read_bytes(lock))
        holder = int(found["pid"])
        with suppress(PermissionError):  # It is there, and belongs to somebody else.
            os.kill(holder, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None, False
    return holder, "waitsFor" in found


def _answer(response: http.client.HTTPResponse, shown: str, later: tuple[int, ...] = ()) -> Any:
    """What it says; ServerError where that is no. Unreachable if it is of something else, of which
    no more is read than is quoted, or has one of the codes `later`."""
    status, is_ours = response.status, response.getheader(VERSION_HEADER) is not None
    body = response.read(None if is_ours else _QUOTED_BYTES)
    try:
        answer = json.loads(body) if is_ours else None
    except ValueError:
        is_ours = False
    if not is_ours:
        text = body[:_QUOTED_BYTES].decode(errors="replace").strip().replace("\n", " ")
        raise Unreachable(f"{shown} is no swamp server: it answered {status} {text!r}")
    if status >= 400:
        said = answer if isinstance(answer, dict) else {}
        message = said.get("error", f"the server answered {status}")
        if status in later:
            raise Unreachable(str(message))
        raise ServerError(str(message), str(said.get("code", f"http_{status}")))
    return answer


def _event(line: bytes, shown: str) -> dict[str, Any]:
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        raise Unreachable(f"{shown} sent half an event") from None
    if isinstance(event, dict) and isinstance(event.get("seq"), int) and "kind" in event:
        return event
    raise Unreachable(f"{shown} is no swamp server: it sent what is no event")
