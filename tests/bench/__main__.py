"""`make bench`: measures swamp against the machine that it runs on.

    python tests/bench [--only W1,W3] [--quick] [--page] [--output FILE]

Progress goes to stderr, the table to stdout, everything into the JSON file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path

import page
import report
from figures import Bench, Curve

MODULES = {
    "W1": "w01_latency",
    "W2": "w02_throughput",
    "W3": "w03_slots",
    "W4": "w04_settlement",
    "W5": "w05_enrollment",
    "W6": "w06_start",
    "W7": "w07_connected",
    "W8": "w08_decisions",
    "W9": "w09_cold_worker",
    "W10": "w10_idle",
    "W11": "w11_commands",
    "W12": "w12_impossible",
}
LATEST = Path(__file__).parents[2] / "bench-results" / "latest.json"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure swamp against this machine.")
    parser.add_argument("--only", default="", help="some of them: W1,W3")
    parser.add_argument("--quick", action="store_true", help="small and once: does it work at all?")
    parser.add_argument("--output", type=Path, default=LATEST, help="the JSON file to write")
    parser.add_argument("--page", action="store_true", help="put it into docs/performance.md")
    given = parser.parse_args()
    chosen = [name.strip().upper() for name in given.only.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in MODULES]
    if unknown:
        parser.error(f"no {', '.join(unknown)}; there are {', '.join(MODULES)}")
    # As installed: compiled modules lie beside the sources, as those of the floors' libraries do.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    bench = Bench(quick=given.quick, say=lambda line: print(line, file=sys.stderr, flush=True))
    machine = report.machine()
    if report.NO_JOURNAL in machine["fileSystem"]:
        slow = "it creates files more slowly the more were deleted lately"
        bench.notes.append(f"{machine['fileSystem']}: {slow}; set TMPDIR to another file system")
    began, load = report.now(), os.getloadavg()
    for name in chosen or MODULES:
        before = time.monotonic()
        bench.say(f"{name} …")
        with bench.tolerated(name):
            importlib.import_module(MODULES[name]).measure(bench)
        bench.say(f"{name} took {time.monotonic() - before:.0f} s")
    document = {
        "began": began,
        "ended": report.now(),
        "quick": given.quick,
        "machine": machine,
        "loadBefore": load,
        "loadAfter": os.getloadavg(),
        "figures": [figure.document() for figure in bench.figures],
        "curves": [vars(curve) for curve in bench.curves if isinstance(curve, Curve)],
        "notes": bench.notes,
    }
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    if given.page:
        known = [str(page.DATA)] if page.DATA.exists() else []
        page.main([*known, str(given.output)])
    print(report.text_table(document["figures"]))
    for note in bench.notes:
        print(f"note: {note}")
    print(given.output)
    return 1 if bench.failed else 0


sys.exit(main())
