"""A scratch repository, a server and workers as real processes, and a client that times them."""

from __future__ import annotations

import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

import harness
import usage
from harness import Proc, Repo, opened

from swamp.client import Client

harness.PATIENCE_S = 600.0
"""A start with 200,000 files that nobody has parsed yet takes its time."""

FAULTY = str(Path(__file__).with_name("faulty.py"))

IDLE_LOOK_S = 0.5
IDLE_LOOKS = 120
IDLE_SHARE = 0.03
"""Of one core: what takes less for so long is at rest. The kernel counts in hundredths."""

SHELL = """type: command/shell
typeVersion: 2026.02.09.1
name: shell
concurrency: 0
methods:
  execute:
    arguments:
      run: "true"
"""

FAN_OUT = """name: {name}
inputs:
  properties:
    count: {{type: array, items: {{type: integer}}}}
jobs:
  - name: fan
    steps:
      - name: s-${{{{ self.n }}}}
        forEach: {{item: n, in: "${{{{ inputs.count }}}}"}}
        labels: {{pool: {pool}}}
        task:
          type: model_method
          modelIdOrName: shell
          methodName: execute
          inputs: {{run: {run}}}
"""

ENDS = ("step_completed", "step_failed", "step_cancelled", "step_skipped")


@dataclass
class Story:
    """What a client saw of one run, in this machine's monotonic time."""

    submitted_s: float
    steps: dict[str, float] = field(default_factory=dict)
    """When the outcome of each step was known."""
    failed: list[dict[str, Any]] = field(default_factory=list)
    ended_s: float = 0.0

    @property
    def took_s(self) -> float:
        """From the submission to the last outcome, seconds."""
        return max(self.steps.values(), default=self.ended_s) - self.submitted_s


class Site:
    """A repository with a server."""

    def __init__(self, repo: Repo) -> None:
        self.repo = repo
        self.server: Proc
        self.workers: list[Proc] = []
        repo.write("models/command/shell/shell.yaml", SHELL)

    def serve(self, *arguments: str, faults: str = "") -> float:
        """Start the server, with faults of `faulty.py`; how long until it listens, seconds."""
        before, plain = time.perf_counter(), harness.SWAMP
        if faults:
            harness.SWAMP = [sys.executable, FAULTY, faults]
        try:
            self.server = self.repo.serve(*arguments)
        finally:
            harness.SWAMP = plain
        return time.perf_counter() - before

    def worker(self, slots: int, *arguments: str, name: str = "w1", pool: str = "bench") -> Proc:
        """A worker that has enrolled."""
        label = ("--label", f"pool={pool}", "--concurrency", str(slots))
        worker = self.repo.worker(name, *label, *arguments)
        self.workers.append(worker)
        return worker

    def workflow(self, name: str, run: str = '"true"', pool: str = "bench") -> None:
        """A fan-out of one placed step for each number that a run is given."""
        text = FAN_OUT.format(name=name, run=run, pool=pool)
        self.repo.write(f"workflows/{name}.yaml", text)

    @property
    def client(self) -> Client:
        """A client of the HTTP API."""
        return Client(self.repo.url)

    def submit(self, workflow: str, count: int) -> str:
        """Start a run of so many steps; its id."""
        body = {"workflow": workflow, "inputs": {"count": list(range(count))}}
        return str(self.client.post("/api/v1/runs", body)["id"])

    def run(self, workflow: str, count: int = 1) -> Story:
        """Run it and follow it to its end; every step must succeed."""
        story = Story(time.monotonic())
        follow(self.client, self.submit(workflow, count), story)
        assert not story.failed, story.failed[0]
        return story

    def measured(self) -> dict[str, tuple[float, float]]:
        """Sum and count of each histogram that the server shows at `/metrics`, over its labels."""
        with urllib.request.urlopen(f"{self.repo.url}/metrics") as answer:
            text = answer.read().decode()
        found: dict[str, tuple[float, float]] = {}
        pattern = r"^(\w+)_(sum|count)(?:\{.*\})? (\S+)$"
        for name, part, value in re.findall(pattern, text, re.MULTILINE):
            total, count = found.get(name, (0.0, 0.0))
            more = float(value)
            found[name] = (total + more, count) if part == "sum" else (total, count + more)
        return found

    def pids(self) -> list[int]:
        """Server, workers, and all that descend from them."""
        return [
            pid for proc in (self.server, *self.workers) for pid in usage.family(proc.process.pid)
        ]

    def cpu_s(self) -> float:
        """CPU time so far of server, workers, guards and all steps that ended, seconds."""
        return usage.cpu_s(self.pids())

    def until_idle(self) -> None:
        """Wait until all that a run leaves to do is done: files, rows of the index, memory."""
        before_s = self.cpu_s()
        for _ in range(IDLE_LOOKS):
            time.sleep(IDLE_LOOK_S)
            now_s = self.cpu_s()
            if now_s - before_s <= IDLE_SHARE * IDLE_LOOK_S:
                return
            before_s = now_s
        raise RuntimeError(f"still at work {IDLE_LOOKS * IDLE_LOOK_S:g} s after the run")


def follow(client: Client, run: str, story: Story) -> Story:
    """Read a run's events to its end, and note when each outcome was known."""
    for event in client.events(run):
        now = time.monotonic()
        if event["kind"] in ENDS:
            story.steps[event["step"]] = now
            if event["kind"] != "step_completed":
                story.failed.append(event)
        elif event["kind"] == "run_completed":
            story.ended_s = now
    return story


@contextmanager
def site(serve: bool = True) -> Iterator[Site]:
    """A site of its own, without a trace afterwards."""
    with tempfile.TemporaryDirectory(prefix="swamp-bench-") as base, opened(Path(base)) as repo:
        made = Site(repo)
        if serve:
            made.serve()
        yield made
