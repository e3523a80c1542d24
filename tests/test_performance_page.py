"""docs/performance.md shows the figures of docs/performance.json, as the bench writes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.append(str(Path(__file__).parent / "bench"))

import page
import svg_plot


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.DATA.read_text(encoding="utf-8"))
    return found


def test_the_page_shows_its_figures() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.page(text, document()) == text, "run `python tests/bench/page.py`"


def test_every_plot_is_there_and_no_other() -> None:
    drawn = page.plots(document())
    assert {path.name for path in page.DOCS.glob("performance-*.svg")} == set(drawn)
    for name, picture in drawn.items():
        assert (page.DOCS / name).read_text(encoding="utf-8") == picture


def test_every_benchmark_has_figures() -> None:
    works = {figure["work"] for figure in document()["figures"]}
    assert works == {f"W{number}" for number in range(1, 13)}


def test_a_plot_is_well_formed_and_stays_inside() -> None:
    picture = svg_plot.plot("a < b", ("x", "y"), {"one": [(0, 0), (10, 7)], "two": [(5, 3)]})
    tree = ElementTree.fromstring(picture)
    circles = tree.findall("{http://www.w3.org/2000/svg}circle")
    places = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in circles]
    assert places[0] == (svg_plot.LEFT, svg_plot.HEIGHT - svg_plot.BOTTOM)
    assert all(0 <= x <= svg_plot.WIDTH and 0 <= y <= svg_plot.HEIGHT for x, y in places)


def test_later_figures_replace_earlier_ones_of_the_same_benchmark() -> None:
    def found(work: str, value: float) -> dict[str, Any]:
        times = {"began": "a", "ended": "b", "loadBefore": [0], "loadAfter": [0]}
        figure = {"work": work, "what": "x", "rounds": [value]}
        return {**times, "machine": {}, "figures": [figure], "curves": []}

    both = page.merged([found("W2", 1.0), found("W10", 2.0), found("W2", 3.0)])
    assert [(f["work"], f["rounds"]) for f in both["figures"]] == [("W2", [3.0]), ("W10", [2.0])]
    assert [part["works"] for part in both["parts"]] == [["W10"], ["W2"]]
    assert page.merged([both])["parts"] == both["parts"]
