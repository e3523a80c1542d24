"""Puts figures into docs/performance.md: the table and the plots, between its markers.

    python tests/bench/page.py [FILE.json …]

The files are results of `make bench`; of several, the later ones replace what they measure too.
Without a file the page is written again from what it shows already, docs/performance.json.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import report
import svg_plot

DOCS = Path(__file__).parents[2] / "docs"
DATA, PAGE = DOCS / "performance.json", DOCS / "performance.md"
MARKED = re.compile(r"(<!-- figures -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def merged(documents: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One document of all; each benchmark and each curve as the last one found it."""
    parts: list[dict[str, Any]] = []
    figures: dict[str, list[dict[str, Any]]] = {}
    curves: dict[str, dict[str, Any]] = {}
    machine: dict[str, Any] = {}
    for document in documents:
        machine = document["machine"]
        works = list(dict.fromkeys(figure["work"] for figure in document["figures"]))
        figures.update({work: [] for work in works})
        for figure in document["figures"]:
            figures[figure["work"]].append(figure)
        curves.update({curve["name"]: curve for curve in document["curves"] if curve["series"]})
        for part in parts:
            part["works"] = [work for work in part["works"] if work not in works]
        parts += document.get("parts") or [{**_when(document), "works": works}]
    ordered = sorted(figures, key=lambda work: int(work[1:]))
    return {
        "machine": machine,
        "parts": [part for part in parts if part["works"]],
        "figures": [figure for work in ordered for figure in figures[work]],
        "curves": list(curves.values()),
    }


def _when(document: dict[str, Any]) -> dict[str, Any]:
    return {key: document[key] for key in ("began", "ended", "loadBefore", "loadAfter")}


def plots(document: dict[str, Any]) -> dict[str, str]:
    """The pictures, by the name of their file."""
    return {
        f"performance-{curve['name'].replace('_', '-')}.svg": svg_plot.plot(
            curve["title"],
            (curve["x"], curve["y"]),
            {name: _medians(points) for name, points in curve["series"].items()},
        )
        for curve in document["curves"]
    }


def _medians(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """One point for each x: that of its rounds."""
    found: dict[float, list[float]] = {}
    for x, y in points:
        found.setdefault(x, []).append(y)
    return [(x, statistics.median(ys)) for x, ys in sorted(found.items())]


def page(text: str, document: dict[str, Any]) -> str:
    """The page with these figures between its markers."""
    machine = document["machine"]
    lines = [
        f"Machine: {machine['cores']} × {machine['cpu']}, {machine['memoryGiB']} GiB, Linux"
        f" {machine['kernel']}, {machine['fileSystem']}, Python {machine['python']}.",
        "",
    ]
    for part in document["parts"]:
        loads = f"load average {part['loadBefore'][0]:.1f} before, {part['loadAfter'][0]:.1f} after"
        lines.append(f"- {', '.join(part['works'])}: {part['began']}, {loads}")
    pictures = [f"![{name}]({name})" for name in plots(document)]
    shown = "\n".join([*lines, "", report.markdown_table(document["figures"]), "", *pictures, ""])
    return MARKED.sub(lambda found: found[1] + shown + found[2], text)


def main(files: list[str]) -> None:
    documents = [json.loads(Path(file).read_text()) for file in files]
    document = merged(documents) if files else json.loads(DATA.read_text())
    DATA.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(PAGE.read_text(), document))
    for name, picture in plots(document).items():
        (DOCS / name).write_text(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
