"""Output of every size and shape arrives whole, and hurts nobody else."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import subprocess
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import harness
import pytest
from harness import SWAMP, Repo

BIG_BYTES = 50_000_000
LONG_LINE_BYTES = 1_000_000
OTHER_SOCKETS = 20
"""Those that the server listens on, its own loop's, the guard's, and the one that asks for health.
"""
COMMANDS = {
    "big": f"yes 0123456789abcdef | head -c {BIG_BYTES}",
    "long-lines": f"for n in 1 2 3; do head -c {LONG_LINE_BYTES} /dev/zero | tr '\\0' $n;"
    " echo; done",
    "binary": "head -c 300000 /dev/urandom | tee raw; sha256sum < raw >&2",
    "closed": "exec >&-; sleep 0.1; echo still here >&2",
}

OWN = """
name: own
jobs:
  - name: job
    steps:
      - name: step
        task: {type: model_method, modelType: command/shell, modelName: m, methodName: execute,
               inputs: {run: echo done}}
"""


def _start(repo: Repo, name: str) -> subprocess.Popen[str]:
    return repo.start("workflow", "run", name, "--server", repo.url, "--json")


def _output(repo: Repo, run: str) -> dict[tuple[str, str], bytes]:
    """The output of a run by step and stream."""
    pieces: dict[tuple[str, str], list[bytes]] = {}
    with urllib.request.urlopen(f"{repo.url}/api/v1/runs/{run}/events?after=0") as answer:
        for line in answer:
            event = json.loads(line) if line.strip() else {}
            if event.get("kind") == "output":
                text = event.get("text")
                raw = base64.b64decode(event["data"]) if text is None else text.encode()
                pieces.setdefault((event["step"], event["stream"]), []).append(raw)
    return {key: b"".join(found) for key, found in pieces.items()}


def _stuck_follower(repo: Repo, run: str) -> socket.socket:
    """A client that follows the run and never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", repo.port))
    path = f"/api/v1/runs/{run}/events?after=0&follow=1"
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{repo.port}\r\n\r\n".encode())
    return client


def _newest(repo: Repo) -> str:
    return str(repo.json("run", "list")["runs"][0]["runId"])


def test_output_of_every_shape_arrives_whole(repo: Repo) -> None:
    repo.shell_workflow("shapes", COMMANDS)
    repo.serve("--grace", "10s")
    worker = repo.worker("w1", "--label", "pool=worker", "--concurrency", "4")
    out, _ = _start(repo, "shapes").communicate(timeout=60)
    view: dict[str, Any] = json.loads(out[out.index("{\n") :])
    assert {step["status"] for step in view["jobs"][0]["steps"]} == {"succeeded"}
    found = _output(repo, view["id"])
    line = b"0123456789abcdef\n"
    big = found["big", "stdout"]
    assert len(big) == BIG_BYTES
    assert big == (line * (BIG_BYTES // len(line) + 1))[:BIG_BYTES]
    long_lines = found["long-lines", "stdout"].splitlines()
    assert long_lines == [digit * LONG_LINE_BYTES for digit in (b"1", b"2", b"3")]
    told = found["binary", "stderr"].split()[0].decode()
    assert hashlib.sha256(found["binary", "stdout"]).hexdigest() == told
    assert ("closed", "stdout") not in found
    assert found["closed", "stderr"] == b"still here\n"
    assert worker.lines.kinds("disconnected") == []


def test_a_flood_and_a_client_that_does_not_read_slow_nobody_else(repo: Repo) -> None:
    stop = repo.base / "stop"
    repo.shell_workflow("flood", {"step": f"until [ -e {stop} ]; do head -c 65536 /dev/zero; done"})
    repo.shell_workflow("quick", {"step": "echo quick"})
    repo.serve("--grace", "10s")
    worker = repo.worker("w1", "--label", "pool=worker", "--concurrency", "2")
    flood = _start(repo, "flood")
    worker.lines.kind("dispatch_started")
    clients = [_stuck_follower(repo, _newest(repo)) for _ in range(3)]
    for _ in range(3):
        out, _ = _start(repo, "quick").communicate(timeout=30)
        view = json.loads(out[out.index("{\n") :])
        assert view["status"] == "succeeded"
        assert view["jobs"][0]["steps"][0]["durationMs"] < 5000
    assert flood.poll() is None, "the flood was there all the time"
    stop.touch()
    flood.communicate(timeout=60)
    assert flood.returncode == 0
    assert worker.lines.kinds("disconnected") == []
    for client in clients:
        client.close()


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.mark.parametrize(
    "says",
    [
        [b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"],
        [b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"],
        [b"GET / HT", UPGRADE],
    ],
    ids=["rests", "body never comes", "half and workers"],
)
def test_silent_connections_leave_open_files_for_the_work(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, says: list[bytes]
) -> None:
    """Regression: 600 of them took all 400; steps failed, and good files were not in force.

    Those that only said nothing were bounded then; with those that waited to be let in, those that
    were, and those that were being closed, there were more again.
    """
    with monkeypatch.context() as few:
        few.setattr(harness, "SWAMP", ["/bin/sh", "-c", 'ulimit -n 400; exec "$@"', "sh", *SWAMP])
        server = repo.serve()
    with ExitStack() as opened:
        for number in range(600):
            client = opened.enter_context(socket.create_connection(("127.0.0.1", repo.port)))
            client.sendall(says[number % len(says)])
        with urllib.request.urlopen(f"{repo.url}/health", timeout=5) as answer:
            assert answer.status == 200
        assert _sockets(server.process.pid) <= (400 - 200) // 2 + OTHER_SOCKETS
        repo.write("workflows/own.yaml", OWN)
        assert repo.json("workflow", "run", "own")["status"] == "succeeded"
    assert "Too many open files" not in server.log()


def _sockets(pid: int) -> int:
    """How many a process has open."""
    found = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += os.readlink(one).startswith("socket:")
    return found
