"""`swamp demo`: a server, two workers and a fan-out run in a scratch repository.

Promises: whatever ends the demo (its end, a failure, Ctrl-C, SIGTERM), no process of it stays. The
scratch folder stays, for people to look around in.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from datastore.errors import SwampError
from swamp.cli.command import Help, command
from swamp.cli.console import Console
from swamp.stop_signals import hang_up_signals

if TYPE_CHECKING:
    from datastore.layout import Layout
    from swamp.client import Client

T = TypeVar("T")

WORKERS = ("worker-1", "worker-2")
SLOTS = 2
TOKEN_LIFE_S = 3600
READY_WITHIN_S = 30.0
STOP_WITHIN_S = 10.0
POLL_S = 0.05

_HELP = Help(
    "Show it all in ten seconds: a server, two workers and a fan-out workflow in a scratch folder."
    "\n\nNeeds no repository and touches none. The processes end with the demo; the folder stays, "
    "and its name is printed.",
    ("swamp demo", "swamp demo --json"),
)

_MODEL = """\
# What the steps of the demo call. A step brings the command it wants to run in its `inputs`.
type: command/shell
typeVersion: 2026.02.09.1
name: shell
concurrency: 0 # how many steps may call it at once: without a limit; one without this line
methods:
  execute:
    arguments:
      run: "true"
"""

_WORKFLOW = """\
# One step for each shard, on whichever worker of the pool is free; then a summary on the server.
name: demo
description: A fan-out over two workers.
inputs:
  properties:
    shards:
      type: array
      items: {type: string}
      default: [a, b, c, d, e, f, g, h]
jobs:
  - name: fan-out
    steps:
      - name: shard-${{ self.shard }}
        forEach:
          item: shard
          in: ${{ inputs.shards }}
        labels: # only workers with this label may run it
          pool: demo
        task:
          type: model_method
          modelIdOrName: shell
          methodName: execute
          inputs:
            run: echo "shard ${{ self.shard }} in process $$"; sleep 1; echo "nothing amiss"
  - name: summary
    dependsOn:
      - job: fan-out
        condition: {type: succeeded}
    steps:
      - name: summary # without placement: runs where the server runs
        task:
          type: model_method
          modelIdOrName: shell
          methodName: execute
          inputs:
            run: echo "all shards of run ${{ run.id }} are done"
"""


class DemoFailed(SwampError):
    """A part of the demo did not start; the message names its log."""


@dataclass(slots=True)
class Processes:
    """The demo's processes, each with a log file."""

    logs: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _starting: bool = False
    _interrupted: bool = False

    def start(self, name: str, *arguments: str, **environment: str) -> None:
        """Run `swamp` with these arguments, in a session of its own: Ctrl-C is ours alone."""
        with self.log(name).open("wb") as log, self._uninterrupted():
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "swamp", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def interrupt(self, number: int, frame: object) -> None:
        """A handler of signals. A process that is just being created must first be known here."""
        self._interrupted = True
        if not self._starting:
            raise KeyboardInterrupt

    @contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        self._starting = True
        try:
            yield
        finally:
            self._starting = False
        if self._interrupted:
            raise KeyboardInterrupt

    def log(self, name: str) -> Path:
        """Where a process writes its lines."""
        return self.logs / f"{name}.log"

    def until(self, name: str, look: Callable[[], T | None]) -> T:
        """What `look` finds at last. DemoFailed if the process ends before, or takes too long."""
        give_up_at = time.monotonic() + READY_WITHIN_S
        while (found := look()) is None:
            if self.running[name].poll() is not None or time.monotonic() > give_up_at:
                raise DemoFailed(f"{name} did not start; its log says why: {self.log(name)}")
            time.sleep(POLL_S)
        return found

    def stop(self) -> None:
        """End them all, the latest first; what does not end in time is killed."""
        for process in reversed(self.running.values()):
            process.terminate()
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def demo(console: Console) -> None:
    # Resolved, so that what is printed is what the records say.
    scratch = Path(tempfile.mkdtemp(prefix="swamp-demo-")).resolve()
    layout = _repository(scratch / "repository")
    console.note(f"Scratch folder {scratch} (it stays; remove it when you have seen enough)")
    with _processes(scratch) as processes:
        client, url = _serve(processes, layout)
        console.note(f"Server on {url}")
        workers = _connect(processes, client, url, scratch)
        console.note(f"Workers {' and '.join(workers)}, {SLOTS} slots each\n")
        run = str(client.post("/api/v1/runs", {"workflow": "demo", "inputs": {}})["id"])
        succeeded = _follow(console, client, run)
        view = client.get(f"/api/v1/runs/{run}")
    places = _places(layout, run)
    document = {"path": str(layout.root), "run": view, "workers": list(workers), "next": places}
    if console.json:
        console.show(document, [])
    else:
        console.print(_farewell(places))
    if not succeeded:
        raise typer.Exit(1)


def declare(parent: typer.Typer) -> None:
    """Add `demo` to a group of commands."""
    command(parent, "demo", _HELP)(demo)


def _repository(root: Path) -> Layout:
    from datastore.clock import SystemClock
    from datastore.layout import Layout
    from datastore.repository_init import initialize

    layout = Layout(initialize(root, SystemClock().now()).root)
    model = layout.models / "command" / "shell" / "shell.yaml"
    model.parent.mkdir(parents=True)
    model.write_text(_MODEL, encoding="utf-8")
    (layout.workflows / "demo.yaml").write_text(_WORKFLOW, encoding="utf-8")
    return layout


@contextmanager
def _processes(scratch: Path) -> Iterator[Processes]:
    logs = scratch / "logs"
    logs.mkdir()
    processes = Processes(logs)

    numbers = (signal.SIGINT, signal.SIGTERM, *hang_up_signals())
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, processes.interrupt) for number in heard}
    try:
        yield processes
    finally:
        # Nothing may come between the end of the demo and the end of its processes.
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        processes.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def _serve(processes: Processes, layout: Layout) -> tuple[Client, str]:
    """A server on a free port, listening: a client with the right to make tokens, and its URL."""
    from swamp.client import Client

    processes.start("serve", "serve", "--port", "0", "--json", "--repo-dir", str(layout.root))

    def url() -> str | None:
        for line in processes.log("serve").read_bytes().splitlines(keepends=True):
            if line.startswith(b"{") and line.endswith(b"\n"):
                report = json.loads(line)
                if report.get("status") == "listening":
                    return str(report["url"])
        return None

    found = processes.until("serve", url)
    return Client(layout.socket), found


def _connect(processes: Processes, client: Client, url: str, scratch: Path) -> tuple[str, ...]:
    """Start the workers; returns their names once all are connected."""
    for name in WORKERS:
        wanted = {"name": name, "durationS": TOKEN_LIFE_S, "maxEnrollments": 1}
        token = client.post("/api/v1/tokens", wanted)["token"]
        processes.start(
            name,
            *("worker", "connect", url, "--label", "pool=demo"),
            *("--concurrency", str(SLOTS), "--cache-dir", str(scratch / name)),
            SWAMP_WORKER_TOKEN=token,
        )
    for name in WORKERS:

        def connected(name: str = name) -> bool | None:
            workers = client.get("/api/v1/workers")["workers"]
            return any(worker["name"] == name for worker in workers) or None

        processes.until(name, connected)
    return WORKERS


def _follow(console: Console, client: Client, run: str) -> bool:
    """Show the run to its end; whether it succeeded. Ctrl-C cancels it."""
    from swamp.cli.follow import OnInterrupt, Watch, follow
    from swamp.cli.run_lines import RunLines

    if console.json:
        return [event.get("status") for event in client.events(run)][-1] == "succeeded"
    try:
        follow(console, Watch(client, run, on_interrupt=OnInterrupt.CANCEL), RunLines())
    except typer.Exit as left:
        if left.exit_code != 1:
            raise
        return False
    return True


def _places(layout: Layout, run: str) -> dict[str, str]:
    """Where to look next: what is there, by the command that shows it."""
    swamp, here = _swamp(), f"--repo-dir {shlex.quote(str(layout.root))}"
    return {
        "the run's story": f"cat {shlex.quote(str(layout.story_file('demo', run)))}",
        "all records": f"ls -R {shlex.quote(str(layout.observed('')))}",
        "the run": f"{swamp} run show {run} {here}",
        "the workers": f"{swamp} worker list --all {here}",
        "serve it again": f"{swamp} serve {here}",
    }


def _swamp() -> str:
    """How this person can call swamp: by its name where that is in PATH, else as just now."""
    if shutil.which("swamp"):
        return "swamp"
    called = Path(sys.argv[0])
    if called.name == "swamp":
        return shlex.quote(str(called))
    return f"{shlex.quote(sys.executable)} -m swamp"


def _farewell(places: dict[str, str]) -> list[str]:
    width = max(len(what) for what in places)
    shown = [f"  {what.ljust(width)}  {how}" for what, how in places.items()]
    return ["", "Server and workers have stopped; everything they did is in files:", *shown]
