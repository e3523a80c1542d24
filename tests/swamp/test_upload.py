"""`put_output` over a server that is away: tried again, from the beginning, until patience ends."""

from __future__ import annotations

import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from swamp.client import ServerError, Unreachable
from swamp.protocol import DATA_TOKEN_VARIABLE, DATA_URL_VARIABLE
from swamp.upload import NotInAStep, Patience, Unreadable, put_output

BIG = os.urandom(3 << 20)
STORED = (201, b'{"name": "x", "version": 1, "size": 1}')


class Place:
    """An address where a server may be; answers one request after the other as it was told."""

    def __init__(self) -> None:
        self._free = socket.socket()
        self._free.bind(("127.0.0.1", 0))
        self.port = self._free.getsockname()[1]
        self.environment = {
            DATA_URL_VARIABLE: f"http://127.0.0.1:{self.port}/data",
            DATA_TOKEN_VARIABLE: "d.s",
        }
        self.bodies: list[bytes] = []
        self.notices: list[str] = []
        self.slept: list[float] = []
        self.is_asked = threading.Event()
        self.now_s = 0.0
        self.while_asleep: Callable[[], None] = lambda: None
        self._server: HTTPServer | None = None

    def listen(self, *answers: tuple[int, bytes] | None) -> None:
        """Answer so; None: read a little and hang up."""
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(handler) -> None:
                self.is_asked.set()
                answer = left.pop(0)
                if answer is None:
                    handler.rfile.read(300_000)
                    handler.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.bodies.append(_chunks(handler.rfile))
                handler.send_response(answer[0])
                handler.end_headers()
                handler.wfile.write(answer[1])

            def log_message(handler, format: str, *args: Any) -> None:
                pass

        self._free.close()
        self._server = _Quiet(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def put(self, file: BinaryIO) -> dict[str, object]:
        def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.now_s += seconds
            self.while_asleep()

        patience = Patience(notice=self.notices.append, sleep=sleep, now=lambda: self.now_s)
        return put_output(self.environment, "x", file, "text/plain", patience)

    def close(self) -> None:
        self._free.close()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Quiet(HTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A body that does not end."""


def _chunks(body: Any) -> bytes:
    found = b""
    while size := int(body.readline(), 16):
        found += body.read(size)
        body.readline()
    body.readline()
    return found


def piped(data: bytes) -> BinaryIO:
    """What can be read once."""
    reading, writing = os.pipe()

    def write() -> None:
        with suppress(BrokenPipeError), open(writing, "wb") as end:
            end.write(data)

    threading.Thread(target=write, daemon=True).start()
    return open(reading, "rb")


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def test_nobody_listens_for_a_while(place: Place) -> None:
    def back() -> None:
        if len(place.slept) == 3:
            place.listen(STORED)

    place.while_asleep = back
    assert place.put(io.BytesIO(b"content"))["version"] == 1
    assert place.bodies == [b"content"]
    assert len(place.slept) == 3 and len(set(place.slept)) == 3
    (notice,) = place.notices
    assert notice.startswith(f"no answer from 127.0.0.1:{place.port} (")
    assert notice.endswith("; trying again for 60 s")


def test_nobody_listens_ever(place: Place) -> None:
    with pytest.raises(Unreachable, match="no answer from "):
        place.put(io.BytesIO(b"content"))
    assert 60 <= place.now_s <= 65
    assert max(place.slept) <= 5


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_what_broke_in_the_middle_is_sent_from_its_beginning(
    place: Place, tmp_path: Path, kind: str
) -> None:
    place.listen(None, None, STORED)
    (tmp_path / "big").write_bytes(b"before" + BIG)
    with piped(BIG) if kind == "pipe" else (tmp_path / "big").open("rb") as file:
        if kind == "file":
            # Where it stands is its beginning: a shell may have read a line of it.
            file.seek(len(b"before"))
        assert place.put(file)["version"] == 1
    assert place.bodies == [BIG]
    assert len(place.notices) == 1


def test_a_refusal_is_final(place: Place) -> None:
    place.listen((409, b'{"error": "it is over", "code": "dispatch_over"}'), STORED)
    with pytest.raises(ServerError, match="it is over"):
        place.put(io.BytesIO(b"content"))
    assert (place.slept, place.notices) == ([], [])


def test_an_answer_that_may_pass_is_none(place: Place) -> None:
    full = b'{"error": "the disk is full", "code": "degraded"}'
    place.listen((502, b"<html>Bad gateway"), (503, full), STORED)
    assert place.put(piped(b"content"))["version"] == 1
    assert place.bodies == [b"content"] * 3


def test_an_upload_that_stood_still_is_sent_again(place: Place) -> None:
    """Say the machine was asleep, or its network gone: the server waits for a minute only."""
    stalled = b'{"error": "the upload of \'x\' stood still for 60s", "code": "stalled"}'
    place.listen((408, stalled), STORED)
    assert place.put(io.BytesIO(b"content"))["version"] == 1
    assert place.bodies == [b"content"] * 2


def test_nobody_is_asked_before_all_of_a_pipe_has_come(place: Place) -> None:
    """Who writes it may take longer for it than a server bears with."""
    place.listen(STORED)
    reading, writing = os.pipe()
    with open(reading, "rb") as file, open(writing, "wb") as end:
        putting = threading.Thread(target=place.put, args=(file,))
        putting.start()
        end.write(BIG)
        end.flush()
        # The kernel holds 64 KiB: all else has been read.
        assert not place.is_asked.wait(0.2)
        end.write(b"more")
        end.close()
        putting.join()
    assert place.is_asked.is_set()
    assert place.bodies == [BIG + b"more"]


def test_what_has_no_end_fills_no_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swamp.upload._AHEAD_MOST_BYTES", 1 << 20)
    place.listen((413, b'{"error": "too large", "code": "too_large"}'))
    reading, writing = os.pipe()
    with open(reading, "rb") as file, open(writing, "wb") as end:
        putting = threading.Thread(target=lambda: suppressed(place, file))
        putting.start()
        end.write(BIG)
        end.flush()
        assert place.is_asked.wait(10)
        end.close()
        putting.join()
    assert place.bodies == [BIG]


def suppressed(place: Place, file: BinaryIO) -> None:
    with suppress(ServerError):
        place.put(file)


def test_outside_of_a_step_nobody_has_to_wait_for_a_pipe(place: Place) -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as file, open(writing, "wb"), pytest.raises(NotInAStep):
        put_output({}, "x", file, "text/plain", Patience())


@pytest.mark.parametrize("room", [0, 1 << 20, (1 << 20) + 1000])
def test_where_there_is_no_room_for_a_copy_all_is_sent_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr("swamp.upload._IN_MEMORY_BYTES", 300_000)
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **named: _Small(room))
    place.listen(STORED)
    with piped(BIG) as file:
        assert place.put(file)["version"] == 1
    assert place.bodies == [BIG]


class _Small(io.BytesIO):
    """A file on a disk with little room."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def write(self, data: Any) -> int:
        taken = data[: self._room - self.tell()]
        if data and not taken:
            raise OSError(28, "No space left on device")
        return super().write(taken)


def test_a_pipe_that_no_copy_can_be_made_of_is_tried_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swamp.upload._IN_MEMORY_BYTES", 1)
    monkeypatch.setattr("tempfile.TemporaryFile", _no_room)
    place.listen(None, STORED)
    with pytest.raises(Unreachable), piped(BIG) as file:
        place.put(file)
    place.put(piped(b"content"))
    assert place.bodies == [b"content"]


def _no_room(*given: Any, **named: Any) -> BinaryIO:
    raise OSError(28, "No space left on device")


def test_what_cannot_be_read_is_no_fault_of_the_server(place: Place) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    place.listen(STORED)
    with pytest.raises(Unreadable, match="cannot be read: Input/output error"):
        place.put(Broken(b"content"))
