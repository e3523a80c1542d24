"""What expressions name beyond their scope: outputs of steps, and secrets of vaults.

`data.latest('model', 'name')` and `data.version('model', 'name', 3)` are rewritten to plain paths,
`data["latest('model', 'name')"]`, whose values are read when the expression is evaluated.
`vault.get('vault', 'key')` is never evaluated here: its text stays, in records too, until the step
is dispatched. Arguments are literals, so that what an expression needs is known without running it.

Whatever a person did not write into a workflow or model must not be able to ask for a secret: text
that comes from inputs or outputs and holds such an expression is refused (`asks_for_secret`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_LITERAL = r"""(?:'[^'"\\\n]*'|"[^'"\\\n]*")"""
_DATA_CALL = re.compile(
    rf"data\.(?P<how>latest|version)\(\s*(?P<model>{_LITERAL})\s*,\s*(?P<name>{_LITERAL})\s*"
    r"(?:,\s*(?P<version>\d{1,9})\s*)?\)"
)
DATA_USE = re.compile(r"(?<![\w.])data\s*\.\s*(?:latest|version)\s*\(")
_REWRITTEN = re.compile(r"""data\["((?:latest|version)\([^"]*\))"\]""")
_VAULT_CALL = re.compile(rf"vault\.get\(\s*({_LITERAL})\s*,\s*({_LITERAL})\s*\)\Z")
_SECRET = re.compile(rf"\$\{{\{{\s*vault\.get\(\s*({_LITERAL})\s*,\s*({_LITERAL})\s*\)\s*\}}\}}")


@dataclass(frozen=True, slots=True)
class DataRef:
    """An output that an expression reads; `version` None is the latest one. `key`: as rewritten."""

    key: str
    model: str
    name: str
    version: int | None


ReadData = Callable[[DataRef], Any]
"""Gives the content of an output; SwampError says why there is none. Blocks."""


@dataclass(frozen=True, slots=True)
class SecretRef:
    """A secret that a text asks for."""

    vault: str
    key: str


class SecretText(str):
    """A text in which somebody who may write workflows or models asks for a secret."""

    __slots__ = ()


def rewritten(source: str, blank: str) -> tuple[str, tuple[DataRef, ...]]:
    """`source` with its references to outputs made plain paths, and these references.

    `blank` is the source without its literals and comments. ValueError for a reference that is not
    one call with literal arguments.
    """
    parts, refs, at = [], [], 0
    for use in DATA_USE.finditer(blank):
        call = _DATA_CALL.match(source, use.start())
        if call is None or (call["how"] == "version") != (call["version"] is not None):
            raise ValueError(
                "write data.latest('model', 'name') or data.version('model', 'name', 3), with"
                " literal arguments"
            )
        key = call[0].removeprefix("data.").replace('"', "'")
        parts += [source[at : call.start()], f'data["{key}"]']
        at = call.end()
        number = int(call["version"]) if call["version"] else None
        refs.append(DataRef(key, call["model"][1:-1], call["name"][1:-1], number))
    return "".join(parts) + source[at:], tuple(refs)


def as_written(source: str) -> str:
    """A rewritten expression as a person knows it."""
    return _REWRITTEN.sub(r"data.\1", source)


def is_vault_call(source: str) -> bool:
    """Whether the expression is one look-up of a secret and nothing else."""
    return _VAULT_CALL.match(source) is not None


def secrets_in(value: Any) -> frozenset[SecretRef]:
    """The secrets that the texts inside `value` ask for."""
    return frozenset(
        SecretRef(found[1][1:-1], found[2][1:-1])
        for text in _texts(value)
        for found in _SECRET.finditer(text)
    )


def secret_count(text: str) -> int:
    """How many times the text asks for a secret."""
    return len(_SECRET.findall(text)) if "vault" in text else 0


def asks_for_secret(value: Any) -> bool:
    """Whether a text inside `value` asks for a secret without being a SecretText."""
    return any(not isinstance(text, SecretText) and secret_count(text) for text in _texts(value))


def with_secrets(value: Any, values: Mapping[SecretRef, str]) -> Any:
    """A copy of `value` with every secret that it asks for in its place."""
    match value:
        case str():
            return _SECRET.sub(
                lambda found: values[SecretRef(found[1][1:-1], found[2][1:-1])], value
            )
        case Mapping():
            return {key: with_secrets(item, values) for key, item in value.items()}
        case list() | tuple():
            return [with_secrets(item, values) for item in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for item in value.values():
                yield from _texts(item)
        case list() | tuple():
            for item in value:
                yield from _texts(item)
