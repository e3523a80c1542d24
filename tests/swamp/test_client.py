"""The client against a scripted server over TCP and over a socket file."""

import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from datastore.errors import SwampError
from datastore.layout import Layout
from swamp.client import Client, NoSuchEvent, ServerError, Unreachable, local_client
from swamp.dialling import VERSION_HEADER

Handle = Callable[[BaseHTTPRequestHandler], None]


class _Quiet(BaseHTTPRequestHandler):
    handle_with: Handle

    def do_GET(self) -> None:
        type(self).handle_with(self)

    do_POST = do_GET

    def address_string(self) -> str:
        return "peer"

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _handler(handle: Handle) -> type[_Quiet]:
    return type("Handler", (_Quiet,), {"handle_with": staticmethod(handle)})


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def serving(handle: Handle, path: Path | None = None) -> Iterator[str]:
    """A server at a free port, or at a socket file."""
    server: socketserver.BaseServer
    if path is None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(handle))
        shown = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[str-bytes-safe]
    else:
        server = _UnixServer(str(path), _handler(handle))
        shown = str(path)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield shown
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(
    request: BaseHTTPRequestHandler, status: int, body: bytes, *, signed: bool = True
) -> None:
    request.send_response(status)
    if signed:
        request.send_header(VERSION_HEADER, "1.2.3")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def answering(status: int, body: Any) -> Handle:
    return lambda request: answer(request, status, json.dumps(body).encode())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_get_and_post_carry_query_and_body() -> None:
    seen: list[tuple[str, str, bytes]] = []

    def handle(request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        seen.append((request.command, request.path, body))
        answer(request, 200, b'{"ok": true}')

    with serving(handle) as url:
        client = Client(url)
        assert client.get("/api/v1/runs", workflow="a b", status=None, limit=5) == {"ok": True}
        client.post("/api/v1/runs", {"workflow": "x"})
        client.post("/api/v1/cancel")
    assert seen == [
        ("GET", "/api/v1/runs?workflow=a+b&limit=5", b""),
        ("POST", "/api/v1/runs", b'{"workflow": "x"}'),
        ("POST", "/api/v1/cancel", b"{}"),
    ]


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_web_socket_urls_and_a_path_before_all_others_are_understood(scheme: str) -> None:
    paths = []

    def handle(request: BaseHTTPRequestHandler) -> None:
        paths.append(request.path)
        answer(request, 200, b"{}")

    with serving(handle) as url:
        Client(url.replace("http", scheme) + "/swamp/").get("/health")
    assert paths == ["/swamp/health"]


def test_a_refusal_keeps_the_servers_words_and_code() -> None:
    refusal = {"error": "no workflow named 'x'", "code": "workflow_not_found"}
    with serving(answering(404, refusal)) as url, pytest.raises(ServerError) as caught:
        Client(url).get("/api/v1/runs/x")
    assert str(caught.value) == "no workflow named 'x'"
    assert caught.value.code == "workflow_not_found"


def test_a_refused_connection_says_what_to_do_in_one_line() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match=f"no server listens on {url}: start it with"):
        Client(url).get("/health")


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("body", [b"<html>\nhi</html>", b"{}", b"[]", b"null", b'{"runs": 7}'])
def test_something_else_at_that_port_is_named_as_such(status: int, body: bytes) -> None:
    """Regression: what answered in JSON was taken for a server, and most commands then ended in a
    traceback."""

    def handle(request: BaseHTTPRequestHandler) -> None:
        answer(request, status, body, signed=False)

    times = iter([0.0, 100.0])
    with serving(handle) as url:
        client = Client(url, sleep=lambda s: None, now=lambda: next(times))
        expected = f"is no swamp server: it answered {status} '"
        with pytest.raises(Unreachable, match=expected):
            client.get("/api/v1/runs")
        with pytest.raises(Unreachable, match=expected):
            client.post("/api/v1/runs")
        with pytest.raises(Unreachable, match=expected):
            list(client.events("r"))


@pytest.mark.parametrize("url", ["ftp://x", "localhost:9090", "http://", "http://x:port", ""])
def test_what_is_no_url_is_refused_before_anything_is_tried(url: str) -> None:
    with pytest.raises(SwampError, match="is no server URL"):
        Client(url)


# -- events --------------------------------------------------------------------------------------


def event(seq: int, kind: str = "output") -> bytes:
    return json.dumps({"seq": seq, "kind": kind}).encode() + b"\n"


def stream(request: BaseHTTPRequestHandler, body: bytes) -> None:
    """What a server sends that dies afterwards: no length, no end marker."""
    request.send_response(200)
    request.send_header(VERSION_HEADER, "1.2.3")
    request.end_headers()
    request.wfile.write(body)


def test_events_go_on_after_a_lost_connection_without_gap_or_repeat() -> None:
    asked = []
    bodies = [
        event(1) + b"\n" + event(2) + b'{"seq": 3, "ki',
        b"",
        event(3) + event(4, "run_completed"),
    ]

    def handle(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        stream(request, bodies[len(asked) - 1])

    slept: list[float] = []
    notices: list[str] = []
    with serving(handle) as url:
        client = Client(url, sleep=slept.append)
        got = list(client.events("run/1", notice=notices.append))
    assert [item["seq"] for item in got] == [1, 2, 3, 4]
    assert [path.partition("after=")[2] for path in asked] == [
        "0&follow=1", "2&follow=1", "2&follow=1"
    ]  # fmt: skip
    assert asked[0].startswith("/api/v1/runs/run%2F1/events")
    assert slept == [1.0, 2.0]
    assert "trying again for 60 s" in notices[0]


def test_events_give_up_after_a_minute_and_say_one_line_at_first() -> None:
    slept: list[float] = []
    notices: list[str] = []
    details: list[str] = []
    url = f"http://127.0.0.1:{free_port()}"
    client = Client(url, sleep=slept.append, now=lambda: sum(slept))
    with pytest.raises(Unreachable, match="no server listens"):
        list(client.events("r", 0, notices.append, details.append))
    assert slept[:6] == [1.0, 2.0, 3.0, 4.0, 5.0, 5.0]
    assert 60 <= sum(slept) <= 65
    assert len(notices) == 1
    assert len(details) == len(slept) - 1


def test_a_number_beyond_the_end_of_a_run_that_is_over_is_refused_at_once() -> None:
    def never(_: float) -> None:
        raise AssertionError("tried again")

    def handle(request: BaseHTTPRequestHandler) -> None:
        beyond = "after=9998" in request.path
        stream(request, b"" if beyond else event(1) + event(2, "run_completed"))

    with serving(handle) as url, pytest.raises(NoSuchEvent, match="the run has 2 events"):
        list(Client(url, sleep=never).events("r", 9998))


def test_whoever_waits_long_is_told_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swamp.client.SLOW_S", 0.01)
    told = threading.Event()
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        told.set()

    def handle(request: BaseHTTPRequestHandler) -> None:
        told.wait(5)
        answer(request, 200, b"{}")

    with serving(handle) as url:
        client = Client(url)
        client.slow = say
        client.get("/health")
        client.pid = 42
        told.clear()
        client.get("/health")
    assert lines == [f"waiting for the server at {url}…", "waiting for the server (pid 42)…"]


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_server_that_does_not_serve_yet_is_asked_for_its_events_again(status: int) -> None:
    """Regression: a server that was started again on a full disk, and waits for room, ended the
    following of a run at once, and without a word on the run."""
    asked: list[str] = []

    def handle(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        if len(asked) == 1:
            stream(request, event(1))
        elif len(asked) == 2:
            answering(status, {"error": "waits for room", "code": "starting"})(request)
        else:
            stream(request, event(2, "run_completed"))

    details: list[str] = []
    with serving(handle) as url:
        client = Client(url, sleep=lambda s: None)
        got = list(client.events("r", detail=details.append))
    assert [item["seq"] for item in got] == [1, 2]
    assert ["waits for room" in line for line in details] == [True]


@pytest.mark.parametrize("line", [b"[]", b"{}", b"12", b'{"seq": "1", "kind": "output"}', b"{"])
def test_what_is_no_event_is_no_answer_of_a_server(line: bytes) -> None:
    """Regression: whoever answers in JSON and is no swamp was a traceback, and no end."""

    def handle(request: BaseHTTPRequestHandler) -> None:
        stream(request, line + b"\n")

    times = iter([0.0, 100.0])
    with serving(handle) as url:
        client = Client(url, sleep=lambda s: None, now=lambda: next(times))
        with pytest.raises(Unreachable, match="sent"):
            list(client.events("r"))


def test_an_unknown_run_is_not_asked_for_again() -> None:
    def never(_: float) -> None:
        raise AssertionError("slept for a refusal")

    refusal = {"error": "no run 'r'", "code": "run_not_found"}
    with serving(answering(404, refusal)) as url, pytest.raises(ServerError, match="no run"):
        list(Client(url, sleep=never).events("r"))


# -- the repository's own server -----------------------------------------------------------------


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    layout.private.mkdir()
    return layout


def test_the_repositorys_server_is_found_by_its_socket(layout: Layout) -> None:
    with serving(answering(200, {"status": "ok"}), layout.socket):
        layout.lock.write_text(json.dumps({"pid": os.getpid()}))
        client = local_client(layout)
        assert client is not None
        assert client.get("/health") == {"status": "ok"}
        assert (client.pid, client.is_local) == (os.getpid(), True)


def test_a_socket_in_a_folder_too_deep_for_the_kernel_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = Layout(tmp_path / ("d" * 120))
    deep.private.mkdir(parents=True)
    monkeypatch.chdir(deep.private)
    with serving(answering(200, {"status": "ok"}), Path("serve.sock")):
        client = local_client(deep)
        assert client is not None
        assert client.get("/health") == {"status": "ok"}


def test_no_server_is_none_at_once_also_when_a_dead_one_left_its_socket_and_lock(
    layout: Layout,
) -> None:
    def never(_: float) -> None:
        raise AssertionError("waited for nobody")

    assert local_client(layout, never) is None
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(layout.socket))
    layout.lock.write_text("")
    assert local_client(layout, never) is None


def test_a_server_that_is_starting_is_waited_for(layout: Layout) -> None:
    layout.lock.write_text(json.dumps({"pid": os.getpid()}))
    slept: list[float] = []
    assert local_client(layout, slept.append) is None
    assert 1.8 <= sum(slept) <= 2.2


def test_who_needs_a_server_waits_longer_and_is_told_so(layout: Layout) -> None:
    layout.lock.write_text(json.dumps({"pid": os.getpid()}))
    slept: list[float] = []
    said: list[str] = []

    def until_it_stops(delay_s: float) -> None:
        slept.append(delay_s)
        if sum(slept) > 30:
            layout.lock.write_text("")

    assert local_client(layout, until_it_stops, wait_s=60, slow=said.append) is None
    assert 30 <= sum(slept) <= 31
    assert said == [
        f"pid {os.getpid()} holds this repository and does not answer yet: waiting for it"
    ]
