"""The load generator as a benchmark sees it, and a client that follows many runs at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import fleet
from harness import Lines

GENERATOR = str(Path(__file__).with_name("loadgen.py"))


class Crowd:
    """A process of simulated workers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines = Lines(process)
        self._answers: dict[str, int] = {}

    def order(self, line: str) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self, kind: str) -> dict[str, Any]:
        """The next answer of that kind."""
        self._answers[kind] = self._answers.get(kind, 0) + 1
        return self.lines.kind(kind, self._answers[kind])


@contextlib.contextmanager
def crowd(site: fleet.Site, workers: int, slots: int, token: str) -> Iterator[Crowd]:
    """So many simulated workers, which begin to enroll at once."""
    process = subprocess.Popen(
        [sys.executable, GENERATOR, site.repo.url, token, str(workers), str(slots)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield Crowd(process)
    finally:
        process.kill()
        process.wait()


class Watchers:
    """Follows runs in a thread of its own; `told` has the moment of each outcome by dispatch."""

    def __init__(self, url: str, runs: list[str]) -> None:
        self.told: dict[str, float] = {}
        self.failed: list[dict[str, Any]] = []
        self._url, self._runs = url, runs
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until all runs have ended."""
        self._thread.join(120)
        assert not self._thread.is_alive(), "runs do not end"

    async def _all(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
            asyncio.TaskGroup() as tasks,
        ):
            for run in self._runs:
                tasks.create_task(self._follow(http, run))

    async def _follow(self, http: aiohttp.ClientSession, run: str) -> None:
        seen = 0
        while True:
            try:
                url = f"{self._url}/api/v1/runs/{run}/events?after={seen}&follow=1"
                async with http.get(url) as answer:
                    async for line in answer.content:
                        if not line.strip():
                            continue
                        event = json.loads(line)
                        seen = event["seq"]
                        if self._note(event):
                            return
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(0.2)

    def _note(self, event: dict[str, Any]) -> bool:
        if event["kind"] in fleet.ENDS:
            self.told[f"{event['run']}.{event['job']}.{event['step']}"] = time.monotonic()
            if event["kind"] != "step_completed":
                self.failed.append(event)
        return bool(event["kind"] == "run_completed")
