"""Where a server listens, and connections to it: over TCP, or over the file of a socket."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from datastore.errors import SwampError
from swamp.dialling import is_host

CONNECT_TIMEOUT_S = 15.0
_SOCKET_PATH_MAX = 100
_TLS_SCHEMES = {"https": True, "wss": True, "http": False, "ws": False}


class BadUrl(SwampError):
    """An address that no server can have."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: a socket file, or host, port and a path before all others."""

    shown: str
    socket: Path | None = None
    host: str = ""
    port: int = 0
    tls: bool = False
    prefix: str = ""

    def connection(self, trust: ssl.SSLContext | None) -> http.client.HTTPConnection:
        """One that is not connected yet; `trust` is for TLS."""
        if self.socket is not None:
            return _UnixConnection(self.socket)
        if self.tls:
            return http.client.HTTPSConnection(
                self.host, self.port, timeout=CONNECT_TIMEOUT_S, context=trust
            )
        return http.client.HTTPConnection(self.host, self.port, timeout=CONNECT_TIMEOUT_S)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket file."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=CONNECT_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.settimeout(CONNECT_TIMEOUT_S)
        try:
            connect_unix(connected, self._path)
        except OSError:
            connected.close()
            raise
        self.sock = connected


def connect_unix(connecting: socket.socket, path: Path) -> None:
    """Connect to a socket's file; OSError."""
    if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
        connecting.connect(str(path))
        return
    # The kernel takes 108 bytes at most; a deep repository is reached through its open folder.
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connecting.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def address_of(url: str) -> Address:
    """What a URL (http, https, ws or wss) says; BadUrl for one that is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadUrl(f"'{url}' is no server URL: {error}") from None
    tls = _TLS_SCHEMES.get(parts.scheme)
    if tls is None or not parts.hostname or port == 0 or not is_host(parts.hostname):
        raise BadUrl(f"'{url}' is no server URL; expected e.g. http://127.0.0.1:9090")
    return Address(
        shown=url,
        host=parts.hostname,
        port=port or (443 if tls else 80),
        tls=tls,
        prefix=quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"),
    )
