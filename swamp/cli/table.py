"""Plain aligned columns: easy to read, to grep and to cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swamp.cli.plain_text import plain

_PADDED_MOST = 80
"""A longer cell moves the rest of its own line, and no other line."""


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, two spaces between columns, `-` for what is empty."""
    lines = [list(headers), *([_cell(cell) for cell in row] for row in rows)]
    widths = [
        max(len(line[column]) for line in lines if len(line[column]) <= _PADDED_MOST)
        for column in range(len(headers))
    ]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _cell(text: str) -> str:
    return " ".join(plain(text).split()) or "-"


def pairs(values: dict[str, str]) -> str:
    """Labels in one cell: `pool=gpu,zone=b`."""
    return ",".join(f"{key}={value}" for key, value in sorted(values.items()))
