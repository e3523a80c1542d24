"""Of W5: workers that the server knows already, beside a burst of new ones; and real ones.

Re-enrollment: sockets are cut and dialled again at once, until all have enrolled. Disconnect:
sockets are cut, until a client that asks for the workers is told so, which is when it is on disk.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import fleet
from crowd import Crowd, crowd
from figures import Bench, Figure, Goal, percentile

from swamp.client import Client

KNOWN = 3
REAL = 24
LOOK_S = 0.002
WITHIN_S = 30.0

ALLOWED = "p95 alone + 10 % or 20 ms"


def allowed(alone: list[float]) -> float:
    """How slow the same may be beside a burst, milliseconds."""
    p95 = percentile(alone, 95)
    return max(1.1 * p95, p95 + 20)


class Known:
    """A few workers that come and go; `bounced` and `left` have what that took, milliseconds."""

    def __init__(self, workers: Crowd, client: Client, url: str) -> None:
        """`url` asks for these workers by name: to list a thousand takes longer than all else."""
        self.bounced: list[float] = []
        self.left: list[float] = []
        self._workers, self._client, self._url = workers, client, url

    def anew(self) -> Known:
        """The same workers, nothing measured yet."""
        return Known(self._workers, self._client, self._url)

    def once(self) -> None:
        """Bounce, go away and come back."""
        self._workers.order("bounce")
        self.bounced.append(self._workers.answer("bounced")["tookS"] * 1000)
        self._until_shown(connected=True)
        began = time.monotonic()
        self._workers.order("away")
        self._until_shown(connected=False)
        self.left.append((time.monotonic() - began) * 1000)
        self._workers.order("back")
        self._workers.answer("back")

    def until(self, over: threading.Event) -> None:
        """Again and again, at least once."""
        self.once()
        while not over.is_set():
            self.once()

    def _until_shown(self, *, connected: bool) -> None:
        until = time.monotonic() + WITHIN_S
        while self._shown() != (KNOWN if connected else 0):
            assert time.monotonic() < until, "the server does not tell"
            time.sleep(LOOK_S)

    def _shown(self) -> int:
        return len(self._client.get(self._url)["workers"])


@contextlib.contextmanager
def known(site: fleet.Site) -> Iterator[Known]:
    """They have enrolled."""
    token = site.repo.token("known", "--max-enrollments", "unlimited")
    with crowd(site, KNOWN, 1, token) as workers:
        workers.answer("enrolled")
        listed = site.client.get("/api/v1/workers")["workers"]
        names = [one["name"] for one in listed if one["name"].startswith("known-")]
        url = "/api/v1/workers?" + "&".join(f"name={name}" for name in names)
        yield Known(workers, site.client, url)


def beside_bursts(bench: Bench, site: fleet.Site, bursts: tuple[int, ...], where: str) -> None:
    """What re-enrollment and disconnect take alone, and beside each size of burst."""
    with known(site) as alone:
        for _ in range(bench.size(20, 3)):
            alone.once()
        for burst in bursts:
            during = alone.anew()
            for number in range(bench.rounds):
                bench.say(f"W5 known workers beside {burst} new ones, {where}, round {number + 1}")
                _burst(site, during, burst, f"beside-{burst}-{number}")
            what = f"{burst} new workers, {where}"
            _add(bench, f"{what}: re-enrollment of 3 others", during.bounced, alone.bounced)
            _add(bench, f"{what}: durable disconnect of 3 others", during.left, alone.left)


def _burst(site: fleet.Site, during: Known, burst: int, name: str) -> None:
    token = site.repo.token(name, "--max-enrollments", "unlimited")
    over = threading.Event()
    with crowd(site, burst, 1, token) as new:
        new.answer("dials")
        others = threading.Thread(target=during.until, args=(over,))
        others.start()
        new.answer("enrolled")
        over.set()
        others.join()


def _add(bench: Bench, what: str, during: list[float], alone: list[float]) -> None:
    p95, goal = [percentile(during, 95)], Goal(at_most=1)
    bench.add(Figure("W5", f"{what}, p95", "ms", p95, [allowed(alone)], ALLOWED, goal))
    bench.add(Figure("W5", f"{what}, slowest", "ms", [max(during)]))


def real(bench: Bench, site: fleet.Site, where: str) -> None:
    """Real workers' processes, all started at once: each is let in at its first attempt."""
    count = bench.size(REAL, 4)
    token = site.repo.token("real", "--max-enrollments", "unlimited")
    began = time.monotonic()
    workers = []
    for number in range(count):
        (site.repo.base / f"real-{number}.token").write_text(token)
        workers.append(site.repo.worker(f"real-{number}", "--label", "pool=real", wait=False))
    for worker in workers:
        worker.lines.kind("enrolled")
    took_s = time.monotonic() - began
    again = sum(worker.lines.kinds().count("retrying") for worker in workers)
    for worker in workers:
        worker.stop()
    what = f"{count} real workers, {where}"
    bench.add(Figure("W5", f"{what}: process start → all enrolled", "s", [took_s]))
    bench.add(Figure("W5", f"{what}: attempts that failed", "", [again], goal=Goal(at_most=0)))
