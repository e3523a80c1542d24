"""The settings in `.swamp.yaml`: defaults for what no option says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from datastore.errors import InvalidFile
from datastore.layout import Layout
from datastore.regular_file import read_bytes
from datastore.yaml_loader import Document, load
from swamp.cli.durations import parse_duration
from swamp.limits import COUNT_MOST

if TYPE_CHECKING:
    from controllers.retention import Keep

_SERVE_KEYS = ("host", "port", "queueTimeout", "grace", "outputLimit")
_TOP_KEYS = ("version", "initializedAt", "serve", "retention")
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_RETENTION_KEYS = ("keepRuns", "keepFor")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What `.swamp.yaml` sets; None where it says nothing. Durations as written."""

    host: str | None = None
    port: int | None = None
    queue_timeout: str | None = None
    grace: str | None = None
    output_limit_bytes: int | None = None


def serve_settings(layout: Layout) -> ServeSettings:
    """The settings of this repository; InvalidFile, with the position, for what cannot be one."""
    section = _section(layout, "serve", _SERVE_KEYS)
    host, port = section.get("host"), section.get("port")
    if host is not None and not isinstance(host, str):
        raise section.wrong("host", "an address in text")
    if port is not None and not (type(port) is int and 0 <= port <= 65535):
        raise section.wrong("port", "a number from 0 to 65535")
    return ServeSettings(
        host=host,
        port=port,
        queue_timeout=section.duration("queueTimeout", zero=True),
        grace=section.duration("grace", zero=False),
        output_limit_bytes=section.size("outputLimit"),
    )


def kept(layout: Layout, keep_runs: int | None = None) -> Keep:
    """What is kept of finished runs; `keep_runs` wins over the file. InvalidFile as above."""
    from controllers.retention import KEEP_RUNS, Keep

    section = _section(layout, "retention", _RETENTION_KEYS)
    runs = section.get("keepRuns")
    if runs is not None and not (type(runs) is int and 1 <= runs <= COUNT_MOST):
        raise section.wrong("keepRuns", f"a number from 1 to {COUNT_MOST}")
    keep_for = section.duration("keepFor", zero=True)
    for_s = None if keep_for is None else parse_duration(keep_for, zero=True)
    return Keep(next(one for one in (keep_runs, runs, KEEP_RUNS) if one is not None), for_s or None)


@dataclass(frozen=True, slots=True)
class _Section:
    """One mapping of the file, empty where there is none."""

    name: str
    document: Document
    path: str

    def get(self, key: str) -> object:
        given = self.document.value.get(self.name)
        return given.get(key) if isinstance(given, dict) else None

    def duration(self, key: str, *, zero: bool) -> str | None:
        value = self.get(key)
        if value is None:
            return None
        try:
            parse_duration(str(value), zero=zero)
        except ValueError as error:
            position = self.document.position(self.name, key)
            raise InvalidFile(self.path, f"'{key}' {error}", position) from None
        return str(value)

    def size(self, key: str) -> int | None:
        """Bytes."""
        value = self.get(key)
        if value is None:
            return None
        number, unit = str(value)[:-3].strip(), _UNITS.get(str(value)[-3:])
        if unit is None or not number.isdecimal() or int(number) == 0:
            raise self.wrong(key, "a size such as 500MiB or 2GiB")
        return int(number) * unit

    def wrong(self, key: str, expected: str) -> InvalidFile:
        position = self.document.position(self.name, key)
        return InvalidFile(self.path, f"'{key}' must be {expected}", position)


def _section(layout: Layout, name: str, keys: tuple[str, ...]) -> _Section:
    path = layout.shown(layout.marker)
    document = load(read_bytes(layout.marker), path)
    for key in document.value:
        if key not in _TOP_KEYS:
            problem = f"unknown key '{key}'; keys: {', '.join(_TOP_KEYS)}"
            raise InvalidFile(path, problem, document.position(key))
    given = document.value.get(name, {})
    if not isinstance(given, dict) and given is not None:
        raise InvalidFile(path, f"'{name}' must be a mapping", document.position(name))
    for key in given or ():
        if key not in keys:
            problem = f"unknown key '{key}' in '{name}'; keys: {', '.join(keys)}"
            raise InvalidFile(path, problem, document.position(name, key))
    return _Section(name, document, path)
