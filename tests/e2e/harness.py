"""Real processes in a scratch repository: a server, workers, commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

SWAMP = [sys.executable, "-m", "swamp"]
PATIENCE_S = 30.0


class Lines:
    """The JSON lines of a process, followed by a thread; waiting is on a condition."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.events: list[dict[str, Any]] = []
        self.other: list[str] = []
        self.ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._follow, args=(process.stdout,), daemon=True)
        self._thread.start()

    def _follow(self, stream: Any) -> None:
        for line in stream:
            with self._changed:
                try:
                    self.events.append(json.loads(line))
                except ValueError:
                    self.other.append(line)
                self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def wait(self, found: Callable[[dict[str, Any]], bool], count: int = 1) -> dict[str, Any]:
        """The event number `count` for which `found` holds."""

        def enough() -> bool:
            return sum(map(found, self.events)) >= count or self.ended

        with self._changed:
            self._changed.wait_for(enough, PATIENCE_S)
            hits = [event for event in self.events if found(event)]
        assert len(hits) >= count, f"waited in vain: {self.events} {self.other}"
        return hits[count - 1]

    def kind(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The event number `count` of that kind."""
        return self.wait(lambda event: event.get("kind") == kind, count)

    def kinds(self, prefix: str = "") -> list[str]:
        """The kinds of all events so far."""
        kinds = [str(event.get("kind", event.get("status"))) for event in self.events]
        return [kind for kind in kinds if kind.startswith(prefix)]


class Proc:
    """A long-running swamp process that prints JSON lines."""

    def __init__(self, command: list[str], cwd: Path, env: dict[str, str], log: Path) -> None:
        self._log = log.open("w")
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.lines = Lines(self.process)
        self.log_path = log

    def log(self) -> str:
        """What it has said so far of what goes wrong: stderr, and the messages among its events."""
        said = [str(event["message"]) for event in self.lines.events if "message" in event]
        return "\n".join([self.log_path.read_text(), *said])

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait for its end; the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._log.close()
        return code

    def stop(self) -> None:
        """End it whatever state it is in."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(8)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()


class Repo:
    """A scratch repository and the processes that were started in it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.path = base / "repo"
        self.path.mkdir()
        self.env = {key: value for key, value in os.environ.items() if key[:6] != "SWAMP_"}
        self.port = free_port()
        self.procs: list[Proc] = []
        self._numbers = 0
        self.swamp("init")

    # -- commands --------------------------------------------------------------------------------

    def swamp(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run one command to its end; its exit code must be `code` (None: any)."""
        done = subprocess.run(
            [*SWAMP, *arguments],
            cwd=self.path,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        if code is not None:
            assert done.returncode == code, (
                f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *arguments: str, code: int | None = 0) -> Any:
        """The JSON document that a command prints."""
        return json.loads(self.swamp(*arguments, "--json", code=code).stdout)

    def posted(self, path: str, body: bytes) -> tuple[int, Any]:
        """Status and JSON of the server's answer."""
        request = urllib.request.Request(f"{self.url}{path}", body, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A command in the background, its output in pipes."""
        return subprocess.Popen(
            [*SWAMP, *arguments],
            cwd=self.path,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    # -- processes -------------------------------------------------------------------------------

    def _proc(self, *arguments: str, before: tuple[str, ...] = ()) -> Proc:
        self._numbers += 1
        log = self.base / f"{self._numbers}-{arguments[0]}.log"
        proc = Proc([*before, *SWAMP, *arguments], self.path, self.env, log)
        self.procs.append(proc)
        return proc

    def serve(self, *arguments: str, wait: bool = True) -> Proc:
        """A server that listens, or is about to."""
        server = self._proc("serve", "--json", "--port", str(self.port), *arguments)
        if wait:
            server.lines.wait(lambda event: event.get("status") == "listening")
        return server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, name: str, *arguments: str) -> str:
        """A new token's plain text."""
        made = self.json("worker", "token", "create", name, "--duration", "1h", *arguments)
        return str(made["token"])

    def worker(
        self, name: str = "w1", *arguments: str, wait: bool = True, port: int | None = None
    ) -> Proc:
        """A worker with a token of its own (made at the first call) that has enrolled.

        It dials `port`, that of a proxy say; the server's own if not given.
        """
        kept = self.base / f"{name}.token"
        if not kept.exists():
            kept.write_text(self.token(name))
        worker = self._proc(
            "worker", "connect", f"ws://127.0.0.1:{port or self.port}", "--json",
            "--token", kept.read_text(),
            "--cache-dir", str(self.base / f"cache-{name}"),
            *arguments,
        )  # fmt: skip
        if wait:
            worker.lines.kind("enrolled")
        return worker

    # -- files -----------------------------------------------------------------------------------

    def write(self, path: str, text: str) -> Path:
        """A file below the repository."""
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def shell_workflow(self, name: str, steps: dict[str, str], extra: str = "") -> None:
        """A workflow of one placed job whose steps run shell commands, one model each."""
        listed = "\n".join(
            f"      - name: {step}\n"
            f"        task: {{type: model_method, modelType: command/shell,"
            f" modelName: {name}-{step}, methodName: execute,"
            f" inputs: {{run: {json.dumps(run)}}}}}"
            for step, run in steps.items()
        )
        self.write(
            f"workflows/{name}.yaml",
            f"name: {name}\nlabels: {{pool: worker}}\n{extra}jobs:\n"
            f"  - name: job\n    steps:\n{listed}\n",
        )

    def records(self, kind: str) -> dict[str, dict[str, Any]]:
        """The files of `observed/<kind>`, parsed by plain PyYAML.

        Files follow the journal within some 50 ms: two looks that far apart must be the same, for
        a second at most, as long as they keep changing.
        """
        folder = self.path / "datastore" / "observed" / kind
        texts: dict[str, str] = {}
        for _ in range(12):
            before, texts = texts, {path.stem: path.read_text() for path in _found(folder)}
            if texts and texts == before:
                break
            time.sleep(0.08)
        return {name: yaml.safe_load(text) for name, text in texts.items()}

    def until(self, true: Callable[[], bool], what: str = "") -> None:
        """Wait for something that no process tells: files. Polls."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, f"waited in vain for {what or true}"
            time.sleep(0.02)

    @property
    def long_at_first(self) -> str:
        """A command that takes a minute; none when it is run after `until_begun`."""
        mark = self.base / "begun"
        return f"test -e {mark} || {{ touch {mark}; sleep 60; }}"

    def until_begun(self) -> None:
        """Wait for the command that is long at first."""
        self.until((self.base / "begun").exists, "the command that is long at first")

    def close(self) -> None:
        for proc in reversed(self.procs):
            proc.stop()


def _found(folder: Path) -> list[Path]:
    """The records' files; one that is just being replaced has another name for a moment."""
    return sorted(path for path in folder.glob("*.yaml") if path.exists())


@contextlib.contextmanager
def opened(base: Path) -> Iterator[Repo]:
    """A repository; whatever was started in it ends with it."""
    repo = Repo(base)
    try:
        yield repo
    finally:
        repo.close()


def free_port() -> int:
    """A port that nobody listens on just now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def alive_with(marker: str) -> list[int]:
    """Processes that have `marker` in their environment or command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            seen = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            if marker.encode() in seen:
                found.append(int(entry.name))
    return found
