"""Values of options that several commands take, checked; usage errors name the option."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import typer

from swamp.cli.durations import parse_duration
from swamp.limits import COUNT_MOST

AT_MOST = f"at most {COUNT_MOST}"
"""For the help of an option whose number has no other end."""


def seconds(option: str, text: str, *, zero: bool = False) -> float:
    """The duration that was given, in seconds; `zero` allows 0."""
    try:
        return parse_duration(text, zero=zero)
    except ValueError as error:
        raise typer.BadParameter(f"{option} {error}") from None


def optional_seconds(option: str, text: str | None) -> float | None:
    """As `seconds`; None if the option was not given."""
    return None if text is None else seconds(option, text)


def number(option: str, low: int, high: int = COUNT_MOST) -> Callable[[str], int]:
    """Reads a whole number within these bounds; a usage error says what was expected."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            expected = f"expected a number from {low} to {high}"
            raise typer.BadParameter(f"{option} '{text}': {expected}")
        return value

    return read


def token_name(name: str) -> None:
    """A usage error for a name that no token can have."""
    from swamp.tokens import InvalidToken, check_name

    try:
        check_name(name)
    except InvalidToken as error:
        raise typer.BadParameter(str(error)) from None


def labels(from_environment: str, from_options: list[str]) -> dict[str, str]:
    """Labels of both; an option wins over the environment. A usage error for what is no label."""
    return {**_labels(filter(None, from_environment.split(","))), **_labels(from_options)}


def _labels(texts: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key + value).isprintable():
            raise typer.BadParameter(f"label {text!r}: expected printable characters only")
        if not (key and equals and value):
            raise typer.BadParameter(f"label '{text}': expected KEY=VALUE, neither of them empty")
        if found.setdefault(key, value) != value:
            raise typer.BadParameter(
                f"label '{key}' is given twice, as '{found[key]}' and '{value}': expected one value"
            )
    return found
