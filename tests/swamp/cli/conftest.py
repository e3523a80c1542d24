"""Commands run in this process, in a repository of their own, with a scripted server."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from datastore.layout import Layout
from swamp import __version__
from swamp.cli import main
from swamp.dialling import VERSION_HEADER


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWAMP_REPO_DIR", "SWAMP_SERVE_URL", "SWAMP_WORKER_TOKEN", "SWAMP_WORKER_LABELS",
                 "SWAMP_ORCHESTRATOR_URL", "SWAMP_QUEUE_TIMEOUT", "NO_COLOR"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def swamp(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command; its exit code and output."""

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swamp: Run) -> Layout:
    """A repository that is the working folder. Short: a socket's path may have 107 bytes."""
    assert swamp("init", str(tmp_path)).code == 0
    monkeypatch.chdir(tmp_path)
    return Layout(tmp_path)


@dataclass
class FakeServer:
    """Answers by method and path, and remembers what it was asked."""

    answers: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    on_events: Callable[[], None] = lambda: None

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers.get("Content-Length", 0))
        body = json.loads(request.rfile.read(length)) if length else None
        self.asked.append((request.command, request.path, body))
        path = request.path.partition("?")[0]
        if path.endswith("/events"):
            self._stream(request)
            return
        status, answer = self.answers.get(
            (request.command, path), (404, {"error": f"nothing at {path}", "code": "not_found"})
        )
        request.send_response(status)
        request.send_header(VERSION_HEADER, __version__)
        request.end_headers()
        request.wfile.write(json.dumps(answer).encode())

    def _stream(self, request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header(VERSION_HEADER, __version__)
        request.end_headers()
        self.on_events()
        after = int(request.path.partition("after=")[2].partition("&")[0])
        for number, event in enumerate(self.events, 1):
            if number > after:
                line = json.dumps({"seq": number, "at": "2026-10-10T14:29:06.000Z", **event})
                request.wfile.write(line.encode() + b"\n")


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def server(repo: Layout, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """A server that listens on the repository's socket."""
    fake = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.handle(self)

        do_POST = do_GET

        def address_string(self) -> str:
            return "peer"

        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.chdir(repo.private)
    listening = _UnixServer("serve.sock", Handler)
    monkeypatch.chdir(repo.root)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    listening.shutdown()
    listening.server_close()
    thread.join()
