"""The settings of `swamp serve` in `.swamp.yaml`: defaults for what no option says."""

from __future__ import annotations

from dataclasses import dataclass

from datastore.errors import InvalidFile
from datastore.layout import Layout
from datastore.yaml_loader import Document, load
from swamp.cli.durations import parse_duration

_KEYS = ("host", "port", "queueTimeout", "grace")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What `.swamp.yaml` sets; None where it says nothing. Durations as written."""

    host: str | None = None
    port: int | None = None
    queue_timeout: str | None = None
    grace: str | None = None


def serve_settings(layout: Layout) -> ServeSettings:
    """The settings of this repository; InvalidFile, with the position, for what cannot be one."""
    path = layout.shown(layout.marker)
    document = load(layout.marker.read_bytes(), path)
    given = document.value.get("serve")
    if given is None:
        return ServeSettings()
    if not isinstance(given, dict):
        raise InvalidFile(path, "'serve' must be a mapping", document.position("serve"))
    for key in given:
        if key not in _KEYS:
            known = ", ".join(_KEYS)
            raise InvalidFile(
                path,
                f"unknown key '{key}' in 'serve'; keys: {known}",
                document.position("serve", key),
            )
    host, port = given.get("host"), given.get("port")
    if host is not None and not isinstance(host, str):
        raise _wrong(document, path, "host", "an address in text")
    if port is not None and not (type(port) is int and 0 <= port <= 65535):
        raise _wrong(document, path, "port", "a number from 0 to 65535")
    return ServeSettings(
        host=host,
        port=port,
        queue_timeout=_duration(document, path, "queueTimeout", zero=True),
        grace=_duration(document, path, "grace", zero=False),
    )


def _duration(document: Document, path: str, key: str, *, zero: bool) -> str | None:
    value = document.value["serve"].get(key)
    if value is None:
        return None
    try:
        parse_duration(str(value), zero=zero)
    except ValueError as error:
        raise InvalidFile(path, f"'{key}' {error}", document.position("serve", key)) from None
    return str(value)


def _wrong(document: Document, path: str, key: str, expected: str) -> InvalidFile:
    return InvalidFile(path, f"'{key}' must be {expected}", document.position("serve", key))
