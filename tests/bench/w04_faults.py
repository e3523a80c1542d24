"""Of W4: the burst beside something that the disk makes slow, by the faults of `faulty.py`."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time

import fleet
import stock
from bursts import beside, bursts, start_upload, touch_definitions
from crowd import Crowd, crowd
from figures import Bench, Figure, Goal

ENROLLMENT_S, UPLOAD_S, CHANGED = 2, 5, 1_000
MANY = 20
FAULTS = f"enrollment={ENROLLMENT_S},upload=1,index=0.005"
"""An upload comes in pieces of 256 KiB, each of which takes a second longer."""
UPLOAD = """name: upload
jobs:
  - name: job
    steps:
      - name: upload
        labels: {pool: real}
        task:
          type: model_method
          modelIdOrName: shell
          methodName: execute
          inputs:
            outputs: [slow]
            run: PYTHON -m swamp data put slow FILE
"""


def measure(bench: Bench) -> None:
    """Alone, and beside each slow thing."""
    with fleet.site(serve=False) as site, tempfile.NamedTemporaryFile() as output:
        output.write(bytes(UPLOAD_S << 18))
        output.flush()
        site.workflow("fan")
        upload = UPLOAD.replace("PYTHON", sys.executable).replace("FILE", output.name)
        site.repo.write("workflows/upload.yaml", upload)
        stock.definitions(site.repo.path, CHANGED)
        site.serve(faults=FAULTS)
        site.worker(1, pool="real")
        token = site.repo.token("crowd", "--max-enrollments", "unlimited")
        slow = site.repo.token("slow", "--max-enrollments", "unlimited")
        with crowd(site, 1, 2_000, token) as one:
            one.answer("enrolled")

            alone = bursts(bench, site, one, 25, 1)
            for count in (1, 10):
                with bench.tolerated("W4 slow enrollment"), contextlib.ExitStack() as stack:
                    enrolling = Enrolling(site, slow, count, stack)
                    slowed = bursts(bench, site, one, 25, 1, enrolling.begin)
                    enrolling.check()
                beside(bench, alone, slowed, f"{count} × an enrollment of {ENROLLMENT_S} s")
            with bench.tolerated("W4 a run beside slow enrollments"):
                _run_beside(bench, site, one, slow)
            slowed = bursts(bench, site, one, 25, 1, lambda: start_upload(site))
            beside(bench, alone, slowed, f"an upload that takes the disk {UPLOAD_S} s")
            slowed = bursts(bench, site, one, 25, 1, lambda: touch_definitions(site))
            beside(bench, alone, slowed, f"{CHANGED} definitions that take the disk 5 s")


def _run_beside(bench: Bench, site: fleet.Site, one: Crowd, slow: str) -> None:
    """A run that is submitted while more workers enroll slowly than the server has threads."""
    one.order("sleep 0")
    alone, during = [], []
    for _ in range(bench.rounds):
        alone.append(site.run("fan").took_s * 1000)
        with contextlib.ExitStack() as stack:
            enrolling = Enrolling(site, slow, MANY, stack)
            enrolling.begin()
            time.sleep(ENROLLMENT_S / 10)
            during.append(site.run("fan").took_s * 1000)
            enrolling.check()
    most = [max(1.1 * took, took + 20) for took in alone]
    what, goal = f"a run beside {MANY} × an enrollment of {ENROLLMENT_S} s", Goal(at_most=1)
    bench.add(Figure("W4", what, "ms", during, most, "alone + 10 % or 20 ms", goal))


class Enrolling:
    """New workers whose token's file is slow to look at; each round brings some more."""

    def __init__(
        self, site: fleet.Site, token: str, count: int, stack: contextlib.ExitStack
    ) -> None:
        self._site, self._token, self._count, self._stack = site, token, count, stack
        self._begun: list[Crowd] = []

    def begin(self) -> None:
        """Return when they dial."""
        new = self._stack.enter_context(crowd(self._site, self._count, 1, self._token))
        self._begun.append(new)
        new.answer("dials")

    def check(self) -> None:
        """They were slow, or the burst was beside nothing."""
        for new in self._begun:
            took_s = new.answer("enrolled")["tookS"]
            assert took_s >= ENROLLMENT_S, f"enrolled within {took_s:.2f} s"
