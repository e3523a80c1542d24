"""Of W4: the burst beside somebody who asks the server for much, again and again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import fleet
import stock
from bursts import beside, bursts
from crowd import crowd
from figures import Bench
from harness import Lines

ASKER = """import json, sys, urllib.request
while True:
    with urllib.request.urlopen(sys.argv[1], timeout=300) as answer:
        size = sum(map(len, iter(lambda: answer.read(1 << 20), b"")))
    print(json.dumps({"kind": "answer", "bytes": size}), flush=True)
"""
"""Nothing is made of the answer: the asker is to cost the server time, and itself none."""

BYTES_LEAST = 100
"""Of the answer, for each that it has to tell of."""


def measure(bench: Bench) -> None:
    """Alone, and beside each question."""
    workers, steps = bench.size(100_000, 2_000), bench.size(10_000, 500)
    with fleet.site(serve=False) as site:
        site.workflow("fan")
        bench.say(f"W4 with {workers} stored workers and a run of {steps} steps")
        stock.workers(site.repo.path, workers)
        run = stock.finished_run(site.repo.path, steps)
        site.serve()
        token = site.repo.token("crowd", "--max-enrollments", "unlimited")
        with crowd(site, 1, 2_000, token) as one:
            one.answer("enrolled")
            alone = bursts(bench, site, one, 25, 1)
            with asking(site, "workers?all=1", workers):
                asked = bursts(bench, site, one, 25, 1)
            beside(bench, alone, asked, f"lists of {workers} workers")
            with asking(site, f"runs/{run}", steps):
                asked = bursts(bench, site, one, 25, 1)
            beside(bench, alone, asked, f"looks at a run of {steps} steps")


@contextlib.contextmanager
def asking(site: fleet.Site, what: str, count: int) -> Iterator[None]:
    """A process asks for that meanwhile; it has had its first answer, about so many things."""
    url = f"{site.repo.url}/api/v1/{what}"
    process = subprocess.Popen(
        [sys.executable, "-c", ASKER, url], stdout=subprocess.PIPE, text=True
    )
    try:
        assert Lines(process).kind("answer")["bytes"] > count * BYTES_LEAST
        yield
        assert process.poll() is None, "nobody asked any more"
    finally:
        process.kill()
        process.wait()
