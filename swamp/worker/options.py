"""What a worker is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

from datastore.errors import SwampError
from swamp.dialling import is_host
from swamp.protocol import DATA_PATH, DEATH_PATH

_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
_NO_ADDRESS = "'{}' is not an address of an orchestrator; expected ws://HOST:PORT"


class BadOptions(SwampError):
    """A worker cannot be started like this."""


class BadUrl(BadOptions):
    """An address that no orchestrator can have."""


@dataclass(frozen=True)
class WorkerOptions:
    """`cache_dir` None: a fresh temporary folder. Limits that are None do not exist."""

    url: str
    token: str = field(repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    concurrency: int = 1
    cache_dir: Path | None = None
    idle_timeout_s: float | None = None
    max_dispatches: int | None = None
    reconnect: bool = True
    drain_timeout_s: float | None = None
    ca_cert: Path | None = None
    """The authorities to trust, PEM; None: the machine's."""


def socket_url(url: str) -> str:
    """The WebSocket address of an orchestrator given as ws, wss, http or https; else BadUrl."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadUrl(_NO_ADDRESS.format(url)) from None
    if parts.scheme.lower() not in _SCHEMES or not is_host(parts.hostname or ""):
        raise BadUrl(_NO_ADDRESS.format(url))
    if "@" in parts.netloc:
        raise BadUrl(
            f"the address of '{parts.hostname}' holds a user or password; a worker has a token"
        )
    if not _has_port(parts):
        raise BadUrl(f"'{url}' has no port that can be: expected a number from 1 to 65535")
    return urlunsplit(parts._replace(scheme=_SCHEMES[parts.scheme.lower()], fragment=""))


def _has_port(parts: SplitResult) -> bool:
    """Whether its port is one that can be dialled, or is left out."""
    try:
        return parts.port != 0
    except ValueError:
        return False


def data_url(url: str) -> str:
    """Where steps put outputs: the way to the orchestrator that the worker itself takes."""
    return _beside_socket(url, DATA_PATH)


def death_url(url: str, worker: str) -> str:
    """Where the guard of this worker tells that the worker has died, the same way."""
    return _beside_socket(url, DEATH_PATH.format(name=quote(worker, safe="")))


def _beside_socket(url: str, route: str) -> str:
    parts = urlsplit(socket_url(url))
    scheme = {"ws": "http", "wss": "https"}[parts.scheme]
    path = parts.path.rstrip("/") + route
    return urlunsplit(parts._replace(scheme=scheme, path=path, query=""))
