"""The soak's book-keeping: follows every run as a client does, and compares what it was told, what
the stories in `history/` say and what the workers did. `problems` has one line for each difference.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
ENDS = {
    "step_completed": "succeeded",
    "step_failed": "failed",
    "step_cancelled": "cancelled",
    "step_skipped": "skipped",
}
LOST = ("expired", "refused", None)
"""How the lease of a dispatch may have ended after which there is another; None: there was none."""
AGAIN_S = 0.2
SHOWN = 20
"""Problems that are told one by one."""


@dataclass
class Told:
    """What the events of one run said."""

    steps: int
    """How many steps it must have."""
    seq: int = 0
    ended: dict[str, str] = field(default_factory=dict)
    never_started: int = 0
    """Steps of a cancelled run that its counts tell of, and no event."""
    over: bool = False

    def differs_from(self, status: str, counts: dict[str, int]) -> str | None:
        """What is not as the run says that it ended; else who never started is known."""
        ends = Counter(self.ended.values())
        if status == "cancelled":
            self.never_started = counts["cancelled"] - ends["cancelled"]
            ends["cancelled"] = counts["cancelled"]
        told = {name: ends[name] for name in ENDS.values()}
        said = {name: counts[name] for name in ENDS.values()}
        if told != said:
            return f"its counts are {said}, events told {told}"
        if sum(told.values()) != self.steps or self.never_started < 0:
            return f"{len(self.ended)} of {self.steps} steps have an end, {said}"
        return None


class Ledger:
    """Follows runs in a thread of its own, over restarts of the server."""

    def __init__(self, url: str) -> None:
        self.runs: dict[str, Told] = {}
        self.problems: list[str] = []
        self.told = 0
        """Steps whose end was told so far."""
        self.open = 0
        """Steps of runs that have not ended."""
        self._url = url
        self._changed = threading.Condition()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True)
        self._thread.start()
        self._started.wait()

    def follow(self, run: str, steps: int) -> None:
        """Follow that run to its end."""
        with self._changed:
            self.runs[run] = Told(steps)
            self.open += steps
        self._loop.call_soon_threadsafe(self._new.put_nowait, run)

    def wait_until_open(self, at_most: int, within_s: float) -> None:
        """Wait until no more than so many steps belong to runs that have not ended."""
        with self._changed:
            quiet = self._changed.wait_for(lambda: self.open <= at_most, within_s)
        waiting = [run for run, told in self.runs.items() if not told.over]
        assert quiet, f"{len(waiting)} runs do not end, the first: {waiting[:3]}"

    def wait_until_told(self, at_least: int, within_s: float) -> None:
        """Wait until the ends of so many steps were told."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.told >= at_least, within_s), "no progress"

    async def _all(self) -> None:
        self._loop, self._new = asyncio.get_running_loop(), asyncio.Queue[str]()
        # Connections that are kept for later would look like sockets that the server leaks.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
            asyncio.TaskGroup() as tasks,
        ):
            self._started.set()
            while True:
                tasks.create_task(self._follow(http, await self._new.get()))

    async def _follow(self, http: aiohttp.ClientSession, run: str) -> None:
        told = self.runs[run]
        while not told.over:
            url = f"{self._url}/api/v1/runs/{run}/events?after={told.seq}&follow=1"
            try:
                async with http.get(url) as answer:
                    answer.raise_for_status()
                    async for line in answer.content:
                        if line.strip() and self._note(run, told, json.loads(line)):
                            await self._look_at_counts(http, run, told)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                if getattr(error, "status", 0) == 404:
                    self.problems.append(f"{run}: its events went before its end was told")
                    self._end(told)
                await asyncio.sleep(AGAIN_S)

    def _note(self, run: str, told: Told, event: dict[str, Any]) -> bool:
        """Take an event in; whether the run was cancelled before all of its steps were started."""
        if event["seq"] != told.seq + 1:
            self.problems.append(f"{run}: event {event['seq']} follows on {told.seq}")
        told.seq = event["seq"]
        state = ENDS.get(event["kind"])
        if state is not None:
            step = f"{event['job']}.{event['step']}"
            if step in told.ended:
                self.problems.append(f"{run}.{step}: ended twice: {told.ended[step]}, {state}")
            told.ended[step] = state
            with self._changed:
                self.told += 1
                self._changed.notify_all()
        if event["kind"] != "run_completed":
            return False
        lacks = len(told.ended) != told.steps
        if lacks and event.get("status") == "cancelled":
            return True
        self._end(told)
        if lacks:
            wrong = f"{len(told.ended)} of {told.steps} steps have an end"
            self.problems.append(f"{run}: is over, but {wrong}")
        return False

    async def _look_at_counts(self, http: aiohttp.ClientSession, run: str, told: Told) -> None:
        """Nothing was told of the steps that were never started: the run's counts have to."""
        wrong: str | None = "its record went before anybody saw its counts"
        while True:
            try:
                async with http.get(f"{self._url}/api/v1/runs/{run}") as answer:
                    if answer.status != 404:
                        answer.raise_for_status()
                        shown = await answer.json()
                        wrong = told.differs_from(shown["status"], shown["counts"])
                break
            except (aiohttp.ClientError, OSError, TimeoutError):
                await asyncio.sleep(AGAIN_S)
        if wrong is not None:
            self.problems.append(f"{run}: is over, but {wrong}")
        self.told += told.never_started
        self._end(told)

    def _end(self, told: Told) -> None:
        with self._changed:
            told.over = True
            self.open -= told.steps
            self._changed.notify_all()


@dataclass(frozen=True)
class Episode:
    """One dispatch of a step, as its story tells it."""

    lease: str | None
    state: str


@dataclass
class Stories:
    """What `history/` says: how each step ended, and its dispatches by id."""

    ended: dict[str, dict[str, str]] = field(default_factory=dict)
    episodes: dict[str, Episode] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    """By step of a run: the number of its last episode."""


def read_stories(folder: Path) -> Stories:
    """All stories below `history/`."""
    found = Stories()
    for path in folder.rglob("*.yaml"):
        story = yaml.load(path.read_bytes(), LOADER)
        steps = [(job["name"], step) for job in story["jobs"] for step in job.get("steps", ())]
        found.ended[story["run"]] = {f"{job}.{one['name']}": one["state"] for job, one in steps}
        for job, one in steps:
            step = f"{story['run']}.{job}.{one['name']}"
            for number, episode in enumerate(one.get("episodes", ()), 1):
                told = Episode(episode.get("lease"), episode["state"])
                found.episodes[f"{step}.{number}"] = told
                found.last[step] = number
    return found


def differences(runs: dict[str, Told], stories: Stories) -> list[str]:
    """Where events and stories differ, or a step has no end in one of them."""
    problems = []
    for run, told in runs.items():
        ended = stories.ended.get(run)
        if ended is None:
            problems.append(f"{run}: no story in history/")
        elif ended != told.ended:
            steps = sorted(dict(ended.items() ^ told.ended.items()))
            problems.append(f"{run}: events and story differ about {len(steps)}: {steps[:3]}")
    extra = stories.ended.keys() - runs.keys()
    return [*problems, *(f"{run}: nobody started it" for run in sorted(extra))]


def redispatched(stories: Stories) -> list[str]:
    """Dispatches whose step was dispatched again although their lease was not lost."""
    problems = []
    for dispatch, episode in stories.episodes.items():
        step, _, number = dispatch.rpartition(".")
        if int(number) < stories.last[step] and episode.lease not in LOST:
            problems.append(f"{dispatch}: {episode.lease}, yet the step was dispatched again")
    return problems


def repeated(took: Iterable[str], stories: Stories) -> list[str]:
    """Dispatches that workers started twice, or that no story has a lease of.

    `took` has the id of a dispatch for each time that a worker started it.
    """
    problems = []
    for dispatch, times in Counter(took).items():
        episode = stories.episodes.get(dispatch)
        if times > 1:
            problems.append(f"{dispatch}: started {times} times")
        if episode is None or episode.lease is None:
            problems.append(f"{dispatch}: started, but its story knows no lease of it")
    return problems


def executed_again(steps: Iterable[str], stories: Stories) -> list[str]:
    """Steps whose command was executed more often than they had leases that could have done it.

    `steps` has the name of a step for each time that its command was executed, by whatever episode.
    """
    problems = []
    for step, times in Counter(steps).items():
        numbers = range(1, stories.last.get(step, 0) + 1)
        leases = sum(stories.episodes[f"{step}.{number}"].lease is not None for number in numbers)
        if times > leases:
            problems.append(f"{step}: executed {times} times with {leases} leases")
    return problems


def unknown_successes(sent: Iterable[str], executed: Iterable[str], stories: Stories) -> list[str]:
    """Leases that completed although no worker sent a result or executed the command."""
    results, steps = set(sent), set(executed)
    return [
        f"{dispatch}: completed, but no worker did it"
        for dispatch, episode in stories.episodes.items()
        if episode.lease == "completed"
        and dispatch not in results
        and dispatch.rpartition(".")[0] not in steps
    ]


def book(path: Path) -> dict[str, list[str]]:
    """The lines of a worker's book by their first word."""
    lines: dict[str, list[str]] = {"took": [], "sent": []}
    for what, dispatch in re.findall(r"^(\w+) (\S+)$", path.read_text(), re.MULTILINE):
        lines[what].append(dispatch)
    return lines
