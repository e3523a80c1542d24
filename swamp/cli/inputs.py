"""Inputs of a run as people type them: `key=value`, `a.b=value`, `key:json=[1,2]`, or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from datastore.plain_values import MAX_DEPTH, TOO_DEEP, Unfit, from_json

_JSON_SUFFIX = ":json"


def read_inputs(options: Sequence[str], file: Path | None) -> dict[str, Any]:
    """The inputs of the file with those of the options over them.

    Values are text unless the key ends in `:json`; the server turns text into the declared type.
    A usage error for an option that is none, InvalidFile for the file.
    """
    inputs = {} if file is None else _from_file(file)
    for option in options:
        key, equals, text = option.partition("=")
        if not (key and equals):
            raise typer.BadParameter(f"--input '{option}': expected KEY=VALUE")
        _set(inputs, key.removesuffix(_JSON_SUFFIX), _value(key, text), option)
    return inputs


def _from_file(path: Path) -> dict[str, Any]:
    from datastore.yaml_loader import load

    return load(path.read_bytes(), str(path)).value


def _value(key: str, text: str) -> Any:
    if not key.endswith(_JSON_SUFFIX):
        return text
    try:
        return from_json(text)
    except Unfit as error:
        raise typer.BadParameter(f"--input '{key}': {error}") from None
    except ValueError as error:
        raise typer.BadParameter(f"--input '{key}': not JSON: {error}") from None


def _set(inputs: dict[str, Any], dotted: str, value: Any, option: str) -> None:
    *parents, last = dotted.split(".")
    if not all((*parents, last)):
        raise typer.BadParameter(f"--input '{option}': a key between dots is empty")
    if len(parents) > MAX_DEPTH:
        raise typer.BadParameter(f"--input '{option[:40]}…': {TOO_DEEP}")
    inner = inputs
    for parent in parents:
        inner = inner.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise typer.BadParameter(f"--input '{option}': '{parent}' has a value already")
    inner[last] = value
