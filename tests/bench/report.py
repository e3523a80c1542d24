"""The figures as a table for people, and as a document for machines."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

NO_JOURNAL = "without a journal"
"""Such an ext4 steps over every file deleted in the last minutes when it creates one."""

HEAD = ("", "what", "median", "min – max", "floor", "ratio", "goal", "")


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {
        "cpu": cpu[0].partition(":")[2].strip() if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memoryGiB": round(int(memory) / 2**20, 1),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "fileSystem": file_system(Path(tempfile.gettempdir())),
    }


def file_system(folder: Path) -> str:
    """The type of the file system that scratch repositories lie on, and what it lacks."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[2] == number:
            kind, source = fields[fields.index("-") + 1 :][:2]
            journals = Path("/proc/fs/jbd2").glob(f"{Path(source).name}-*")
            return f"{kind} {NO_JOURNAL}" if kind == "ext4" and not any(journals) else kind
    return "unknown"


def now() -> str:
    """The moment, as it stands in the document."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def row(figure: dict[str, Any]) -> tuple[str, ...]:
    """One figure of a document as the cells of a table."""
    rounds, floors, ratios = figure["rounds"], figure["floors"], figure["ratios"]
    unit = figure["unit"]
    floor = f"{number(statistics.median(floors))} {unit} ({figure['floor']})" if floors else ""
    verdict = {True: "met", False: "missed", None: ""}[figure["met"]]
    return (
        figure["work"],
        figure["what"],
        f"{number(statistics.median(rounds))} {unit}",
        f"{number(min(rounds))} – {number(max(rounds))}" if len(rounds) > 1 else "",
        floor,
        number(statistics.median(ratios)) if ratios else "",
        figure["goal"],
        verdict,
    )


def text_table(figures: list[dict[str, Any]]) -> str:
    """For a terminal."""
    rows = [HEAD, *map(row, figures)]
    widths = [max(len(cells[i]) for cells in rows) for i in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in rows
    )


def markdown_table(figures: list[dict[str, Any]]) -> str:
    """For docs/performance.md."""
    rows = [HEAD, ("---",) * len(HEAD), *map(row, figures)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
