"""Hostile clients on the workers' socket: a typed close, and nothing is touched."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET
from socket import socket as PlainSocket
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from certificates import certificate
from controllers.enrollment import EnrollmentController, Made, create_token
from controllers.lease import LeaseController
from datastore.clock import SystemClock
from datastore.journal import Op
from datastore.kinds import (
    KINDS,
    LEASES,
    TOKENS,
    WORKERS,
    LeaseSpec,
    LeaseStatus,
    TokenSpec,
)
from datastore.kinds.machine_name import machine_name
from datastore.record import Record
from datastore.store import Store
from swamp.protocol import (
    FRAME_MAX_BYTES,
    PROTOCOL_VERSION,
    TOGETHER_MOST,
    calling_card,
    frames_in,
)
from swamp.serve import gateway as server_side
from swamp.serve import socket_limits, turns
from swamp.serve.arrivals import Arrivals
from swamp.serve.callers import Callers, Standing
from swamp.serve.connections import Connections
from swamp.serve.gateway import Gateway
from swamp.serve.sessions import Rules, Sessions
from swamp.tls import server_context

AT = "2026-11-29T12:00:00.000Z"
DISPATCH = "r.j.s.1"
ARRIVING_MOST = 20


class AtOnce:
    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        if on_durable is not None:
            on_durable()


class NoLog:
    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def output(
        self, run: str, dispatch: str, number: int, event: Any, written: Callable[[], None]
    ) -> None:
        self.pieces.append(event)

    def output_count(self, run: str, dispatch: str) -> int:
        return 0


class Server:
    """A gateway with two tokens of one machine, and a running dispatch of `box`."""

    def __init__(self) -> None:
        self.store, self.log = Store(KINDS.values(), AtOnce()), NoLog()
        self.look = asyncio.Event()
        self.look.set()
        self.looked = asyncio.Event()
        self.gone: asyncio.Queue[None] = asyncio.Queue()
        """Has something for each socket that the server is through with."""
        self.accepted: list[Any] = []
        """The server's end of each."""
        self.url = ""
        self.tls_port = 0
        self.gateway: Gateway
        self.http = aiohttp.ClientSession()
        clock = SystemClock()
        self.sessions = Sessions(self.store, self.log, Rules(60.0, {}, self._look))
        leases = LeaseController(self.store, self.sessions, clock, grace_s=60.0)
        uids = iter(range(1_000_000))
        enrollment = EnrollmentController(self.store, self.sessions, clock, lambda: str(next(uids)))
        self.sessions.bind(leases, enrollment, lambda worker: None)
        for name in ("box", "evil"):
            spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z")
            create_token(self.store, name, spec, "secret", Made(name, clock.now()))

    async def _look(self, name: str) -> None:
        self.looked.set()
        await self.look.wait()

    def lease(self) -> None:
        spec = LeaseSpec(
            run="r", workflow="w", job="j", step="s",
            worker="box", instance="i", model="m", method="execute",
        )  # fmt: skip
        status = LeaseStatus(state="bound", bound_at=AT)
        self.store.commit([Record(LEASES, DISPATCH, "l", AT, spec, status)])

    async def dial(self, token: str | None = None) -> aiohttp.ClientWebSocketResponse:
        """A socket; its dial shows the token, if there is one."""
        card = {} if token is None else calling_card(token, "m")
        return await self.http.ws_connect(self.url, max_msg_size=0, headers=card)

    async def enrolled(self, token: str = "evil.secret") -> aiohttp.ClientWebSocketResponse:
        socket = await self.dial()
        await socket.send_json(hello(token=token))
        assert json.loads((await socket.receive()).data)["type"] == "enrolled"
        return socket

    def untouched(self) -> bool:
        """Whether no client has left anything."""
        tokens = [token.status.enrollments for token in self.store.list(TOKENS) if token.status]
        return not self.store.names(WORKERS) and tokens == [0, 0]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    who = Callers(made.store).who
    arrivals = Arrivals(who, Connections(4 * ARRIVING_MOST), most=ARRIVING_MOST)
    gateway = Gateway(made.sessions, arrivals, enroll_within_s=0.3)
    made.gateway = gateway

    async def serve(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        made.accepted.append(request.transport.get_extra_info("socket"))
        made.accepted[-1].setsockopt(SOL_SOCKET, SO_SNDBUF, 4096)
        try:
            return await gateway.serve(request)
        finally:
            made.gone.put_nowait(None)

    app.router.add_get("/", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    crt, key = certificate(tmp_path)
    context = server_context(Path(crt), Path(key))
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    made.tls_port = runner.addresses[1][1]
    yield made
    await made.http.close()
    await runner.cleanup()


def hello(**changes: Any) -> dict[str, Any]:
    return {
        "type": "enroll", "protocol": PROTOCOL_VERSION, "version": "1", "token": "evil.secret",
        "instance": "i", "machine": "m", "platform": "linux", "arch": "x86_64", "capacity": 1,
        **changes,
    }  # fmt: skip


def raw(socket: aiohttp.ClientWebSocketResponse) -> Any:
    """What lies below the WebSocket."""
    connection: Any = socket._response.connection
    return connection.transport


async def ends(socket: aiohttp.ClientWebSocketResponse) -> tuple[int | None, dict[str, Any]]:
    """The code of the close, and the last frame before it."""
    said: dict[str, Any] = {}
    while True:
        message = await socket.receive(timeout=5)
        if message.type is not aiohttp.WSMsgType.TEXT:
            await socket.close()
            return socket.close_code, said
        said = json.loads(message.data)


async def heard(socket: aiohttp.ClientWebSocketResponse, count: int) -> list[dict[str, Any]]:
    """So many frames, in as many messages as they come in."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        text = (await socket.receive(timeout=5)).data
        found += [json.loads(one) for one in frames_in(text)]
    return found


PING = b"\x89\xfd" + bytes(4 + 125)
"""It wants a pong of its size."""
DEEP = "[" * 100_000
BAD_FIRST = {
    "garbage": "\x00 what?",
    "empty": "",
    "number": "7",
    "deep": DEEP,
    "deep label": json.dumps(hello()).replace('"m"', DEEP),
    "unknown type": '{"type":"hello"}',
    "another frame": '{"type":"ping","n":1}',
    "negative capacity": json.dumps(hello(capacity=-1)),
    "no capacity": json.dumps(hello(capacity=0)),
    "capacity in quotes": json.dumps(hello(capacity="8")),
    "capacity of true": json.dumps(hello(capacity=True)),
    "absurd capacity": json.dumps(hello(capacity=10**9)),
    "capacity beyond numbers": json.dumps(hello()).replace('"capacity": 1', '"capacity": 1e999'),
    "thousands of labels": json.dumps(hello(labels={str(n): "x" for n in range(5000)})),
    "a huge label": json.dumps(hello(labels={"pool": "x" * 10_000})),
    "unknown field": json.dumps(hello(admin=True)),
    "a long unknown field": json.dumps({**hello(), "x" * 10_000: 1}),
    "an escape in a field": json.dumps({**hello(), "\x1b[2J": 1}),
    "an escape in a type": json.dumps(hello(type="\x1b[2J")),
    "an escape in a label": json.dumps(hello(labels={"pool": "\x1b[2J"})),
    "an escape in a label's key": json.dumps(hello(labels={"\x1b[2J": "a"})),
    "a newline in a label": json.dumps(hello(labels={"pool": "a\nb"})),
    "an escape in the platform": json.dumps(hello(platform="\x1b[2J")),
    "an escape in the version": json.dumps(hello(version="\x1b[2J")),
}


@pytest.mark.parametrize("text", BAD_FIRST.values(), ids=BAD_FIRST)
async def test_a_first_frame_that_is_none_is_refused(server: Server, text: str) -> None:
    socket = await server.dial()
    await socket.send_str(text)
    code, said = await ends(socket)
    assert (code, said["code"], said["permanent"]) == (4001, "bad_frame", True)
    assert len(said["message"]) < 400 and said["message"].isprintable()
    assert server.untouched()


async def test_binary_and_huge_frames_have_their_own_codes(server: Server) -> None:
    socket = await server.dial()
    await socket.send_bytes(json.dumps(hello()).encode())
    assert (await ends(socket))[0] == 1003
    socket = await server.dial()
    # Its size alone is enough: the server does not wait for what it would not take.
    raw(socket).write(b"\x81\xff" + (FRAME_MAX_BYTES + 1).to_bytes(8, "big") + bytes(4))
    assert (await ends(socket))[0] == 1009
    assert server.untouched()


async def test_who_never_enrolls_is_closed(server: Server) -> None:
    assert (await ends(await server.dial()))[0] == 4002
    assert server.untouched()


@pytest.mark.parametrize("enrolled", [False, True])
async def test_who_reads_nothing_leaves_no_open_file(
    server: Server, monkeypatch: pytest.MonkeyPatch, enrolled: bool
) -> None:
    """Regression: what was never read kept the socket open, for good; strangers' as well."""
    monkeypatch.setattr(server_side, "SEND_WITHIN_S", 0.2)
    socket = await (server.enrolled() if enrolled else server.dial())
    raw(socket).pause_reading()
    raw(socket).get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
    raw(socket).write(PING * (700 if enrolled else 20_000))
    if enrolled:
        raw(socket).write(b"\x88\x80" + bytes(4))
    async with asyncio.timeout(5):
        await server.gone.get()
    for _ in range(10):
        await asyncio.sleep(0)
    assert server.accepted[-1].fileno() < 0


def unread(port: int) -> ssl.SSLSocket:
    """A peer over TLS that reads nothing of its pongs, and has said goodbye, also below."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = PlainSocket()
    plain.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
    plain.connect(("127.0.0.1", port))
    peer = context.wrap_socket(plain)
    key = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
    peer.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n" + upgrade + key + b"\r\n")
    peer.recv(4096)
    peer.sendall(PING * 300 + b"\x88\x80" + bytes(4))
    peer.setblocking(False)
    with suppress(ssl.SSLWantReadError):
        peer.unwrap()
    return peer


async def test_who_reads_nothing_over_tls_leaves_no_open_file(server: Server) -> None:
    """Regression: what is encrypted already, and unread, was not seen; it was kept for good."""
    with await asyncio.to_thread(unread, server.tls_port):
        async with asyncio.timeout(5):
            await server.gone.get()
        for _ in range(10):
            await asyncio.sleep(0)
        assert server.accepted[-1].fileno() < 0


@pytest.mark.parametrize("when", ["silent", "enrolling", "enrolled"])
async def test_who_goes_while_it_is_answered_is_no_error_of_ours(
    server: Server, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """Regression: of a peer that went while its ping was answered, a traceback was logged."""
    server.look.clear()
    socket = await server.dial()
    if when != "silent":
        await socket.send_json(hello())
        await server.looked.wait()
    if when == "enrolled":
        server.look.set()
        assert json.loads((await socket.receive()).data)["type"] == "enrolled"
    raw(socket).pause_reading()
    raw(socket).get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
    raw(socket).write(PING * 20_000)
    await asyncio.sleep(0.1)
    raw(socket).abort()
    async with asyncio.timeout(5):
        await server.gone.get()
    server.look.set()
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_another_version_is_told_both_versions(server: Server) -> None:
    socket = await server.dial()
    await socket.send_json({"type": "enroll", "protocol": 99, "version": "7.1", "new": [1]})
    code, said = await ends(socket)
    assert (code, said["code"]) == (4000, "protocol_mismatch")
    assert "protocol 99 (swamp 7.1)" in said["message"]
    assert f"protocol {PROTOCOL_VERSION} (swamp " in said["message"]


@pytest.mark.parametrize(
    ("token", "code"),
    [("nobody.secret", "token_not_found"), ("evil.wrong", "token_mismatch"), ("evil", None)],
)
async def test_a_wrong_token_makes_nothing(server: Server, token: str, code: str | None) -> None:
    socket = await server.dial()
    await socket.send_json(hello(token=token))
    closed, said = await ends(socket)
    assert (closed, said["permanent"]) == (4000, True)
    assert said["code"] == (code or "token_not_found")
    assert "secret" not in said["message"] or "does not match" in said["message"]
    assert server.untouched()


async def test_who_fails_often_is_put_off_but_never_whoever_has_the_secret(server: Server) -> None:
    for number in range(12):
        socket = await server.dial()
        await socket.send_json(hello(token="evil.wrong"))
        said = (await ends(socket))[1]
        expected = "token_mismatch" if number < 10 else "too_many_attempts"
        assert said["code"] == expected
    assert (said["permanent"], 0 < said["retryAfterMs"] <= 60_001) == (False, True)
    await (await server.enrolled()).close()


async def test_a_client_that_gives_up_while_it_enrolls_costs_nothing(server: Server) -> None:
    server.look.clear()
    for goodbye in (True, False):
        server.looked.clear()
        socket = await server.dial()
        await socket.send_json(hello())
        await server.looked.wait()
        if goodbye:
            await socket.close()
        else:
            raw(socket).abort()
        async with asyncio.timeout(5):
            await server.gone.get()
    server.look.set()
    assert server.untouched()


async def test_of_a_crowd_known_workers_enroll_first_and_frames_of_enrolled_ones_do_not_wait(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "AT_ONCE", 1)
    monkeypatch.setattr(turns, "KNOWN_BESIDES", 0)
    monkeypatch.setattr(turns, "TURN_MOST_S", 60.0)
    spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z", max_enrollments="unlimited")
    create_token(server.store, "crowd", spec, "secret", Made("crowd", SystemClock().now()))
    await (await server.enrolled("box.secret")).close()
    await server.gone.get()
    enrolled = await server.enrolled()
    order: list[str] = []
    server.store.watch(WORKERS, order.append)
    server.look.clear()
    server.looked.clear()
    crowd = [await server.dial() for _ in range(4)]
    new = [hello(token="crowd.secret", machine=str(number)) for number in range(3)]
    for socket, frame in zip(crowd, [*new, hello(token="box.secret")], strict=True):
        await socket.send_json(frame)
        await enrolled.send_json({"type": "ping", "n": 1})
        assert json.loads((await enrolled.receive()).data) == {"type": "pong", "n": 1}
    # The first one has its turn; the second gives up while it waits, and nothing is made for it.
    await server.looked.wait()
    await crowd[1].close()
    await server.gone.get()
    assert order == []
    server.look.set()
    for socket in (crowd[0], crowd[2], crowd[3]):
        assert json.loads((await socket.receive()).data)["type"] == "enrolled"
    assert order == [machine_name("crowd", "0"), "box", machine_name("crowd", "2")]
    token = server.store.get(TOKENS, "crowd")
    assert token.status is not None and token.status.enrollments == 2


async def test_a_second_enroll_and_garbage_end_the_session(server: Server) -> None:
    output = {"type": "output", "dispatch": "d", "stream": "stdout"}
    for text in (
        json.dumps(hello()),
        "{}",
        DEEP,
        json.dumps({**output, "seq": -1}),
        json.dumps({**output, "seq": 1, "data": "%"}),
    ):
        socket = await server.enrolled()
        await socket.send_str(text)
        assert (await ends(socket))[0] == 4001
        assert server.sessions.session("evil") is None
    socket = await server.enrolled()
    await socket.send_bytes(b"x")
    assert (await ends(socket))[0] == 1003


@pytest.mark.parametrize(
    ("early", "code"),
    [(json.dumps(hello()), 4001), ("{}", 4001), ("\0", 4001), (b"x", 1003)],
    ids=["enroll", "no frame", "garbage", "binary"],
)
async def test_a_wrong_frame_before_enrolled_has_the_code_of_one_after(
    server: Server, early: str | bytes, code: int
) -> None:
    server.look.clear()
    socket = await server.dial()
    await socket.send_json(hello())
    await server.looked.wait()
    await (socket.send_bytes(early) if isinstance(early, bytes) else socket.send_str(early))
    await socket.send_json({"type": "ping", "n": 1})
    # Until the server has read both, which nothing tells.
    await asyncio.sleep(0.05)
    server.look.set()
    assert (await ends(socket))[0] == code
    assert server.sessions.session("evil") is None


async def test_a_ping_before_enrolled_is_answered_after_it(server: Server) -> None:
    server.look.clear()
    socket = await server.dial()
    await socket.send_json(hello())
    await server.looked.wait()
    for number in (1, 2):
        await socket.send_json({"type": "ping", "n": number})
    await asyncio.sleep(0.05)
    server.look.set()
    said = await heard(socket, 3)
    assert [one.get("n", one["type"]) for one in said] == ["enrolled", 1, 2]


async def test_who_sends_too_fast_is_read_slowly_and_nobody_else(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_limits, "FRAMES_AT_ONCE", 10)
    monkeypatch.setattr(socket_limits, "FRAMES_PER_S", 100)
    clock = asyncio.get_running_loop().time
    fast, other = await server.enrolled(), await server.enrolled("box.secret")
    begun = clock()
    for number in range(60):
        await fast.send_json({"type": "ping", "n": number})
    await other.send_json({"type": "ping", "n": 0})
    await other.receive(timeout=5)
    answered = clock() - begun
    pongs = [frame["n"] for frame in await heard(fast, 60)]
    assert pongs == list(range(60))
    assert answered < 0.3 < 0.48 < clock() - begun


async def test_replies_for_the_lease_of_another_touch_nothing(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    await server.enrolled("box.secret")
    server.lease()
    before = server.store.get(LEASES, DISPATCH)
    evil = await server.enrolled()
    outcome = {"ok": True, "reason": "completed"}
    with caplog.at_level(logging.WARNING):
        for frame in (
            {"type": "accepted"},
            {"type": "refused", "reason": "worker_busy"},
            {"type": "output", "seq": 1, "stream": "stdout", "text": "forged"},
            {"type": "result", "outcome": outcome},
        ):
            await evil.send_json({**frame, "dispatch": DISPATCH})
        await evil.send_json({"type": "ping", "n": 5})
        assert json.loads((await evil.receive()).data) == {"type": "pong", "n": 5}
    assert server.store.get(LEASES, DISPATCH) == before
    assert server.log.pieces == []
    assert len([one for one in caplog.records if "ignored" in one.message]) == 1


@pytest.fixture
def patient(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, whose sockets may be silent for long."""
    monkeypatch.setattr(server.gateway, "_enroll_within_s", 60.0)
    return server


async def all_read(server: Server) -> None:
    """Return once the server has read something from each socket."""
    arrivals = server.gateway._arrivals
    async with asyncio.timeout(5):
        while any(arrivals._silent.values()):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def refused(socket: aiohttp.ClientWebSocketResponse) -> str:
    """Why it is told to come again; it is closed behind that."""
    code, said = await ends(socket)
    assert (code, said["code"], said["permanent"]) == (4000, "too_many_at_once", False)
    assert said["retryAfterMs"] == 2_000
    return str(said["message"])


async def test_those_beyond_the_most_that_may_enroll_at_once_are_told_to_try_again(
    patient: Server,
) -> None:
    worker = await patient.enrolled("box.secret")
    patient.look.clear()
    crowd = [await patient.dial() for _ in range(ARRIVING_MOST)]
    for socket in crowd:
        await socket.send_json(hello())
    await all_read(patient)
    late = await patient.dial()
    await late.send_json(hello())
    assert await refused(late) == f"{ARRIVING_MOST} others are enrolling just now"
    await worker.send_json({"type": "ping", "n": 7})
    assert json.loads((await worker.receive()).data) == {"type": "pong", "n": 7}
    # Whoever leaves or enrolls makes room for one more.
    await crowd[0].close()
    await patient.gone.get()
    await patient.gone.get()
    patient.look.set()
    await patient.enrolled("box.secret")


async def test_a_silent_socket_gives_way_to_the_next_one_and_is_told_why(patient: Server) -> None:
    """Regression: those that said nothing kept everybody out for 30 s, again and again."""
    silent = [await patient.dial() for _ in range(ARRIVING_MOST)]
    worker = await patient.enrolled()
    assert "others came, and nothing had been said" in await refused(silent[0])
    another = await patient.dial()
    await worker.send_json({"type": "ping", "n": 7})
    assert json.loads((await worker.receive()).data) == {"type": "pong", "n": 7}
    assert not silent[1].closed and not another.closed


async def test_strangers_whose_files_are_needed_give_way_and_are_told_why(patient: Server) -> None:
    worker = await patient.enrolled()
    silent = [await patient.dial() for _ in range(3)]
    speaks = await patient.dial()
    patient.look.clear()
    await speaks.send_json(hello(token="evil.wrong"))
    shows = await patient.dial("evil.secret")
    arrivals = patient.gateway._arrivals
    async with asyncio.timeout(5):
        while len(arrivals._silent[Standing.STRANGER]) > 3:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
    assert arrivals.give_way(1, 4) == 0
    assert arrivals.give_way(9, 2) == 2
    for socket in silent[:2]:
        assert "others came, and nothing had been said" in await refused(socket)
    assert arrivals.give_way(9, 0) == 1
    assert "others came" in await refused(silent[2])
    await worker.send_json({"type": "ping", "n": 7})
    assert json.loads((await worker.receive()).data) == {"type": "pong", "n": 7}
    patient.look.set()
    await shows.send_json(hello())
    assert (await heard(shows, 1))[0]["type"] == "enrolled"
    assert (await ends(speaks))[0] == 4000


@pytest.mark.parametrize("token", ["evil.secret", "box.secret"], ids=["new", "known"])
async def test_whoever_shows_a_token_waits_for_no_stranger(patient: Server, token: str) -> None:
    await (await patient.enrolled("box.secret")).close()
    await patient.gone.get()
    patient.look.clear()
    strangers = [await patient.dial() for _ in range(ARRIVING_MOST)]
    for socket in strangers:
        await socket.send_json(hello(token="evil.wrong"))
    await all_read(patient)
    shows = await patient.dial(token)
    await shows.send_json(hello(token=token))
    for liar in ("evil.guessed", "box.guessed", "nobody.secret"):
        await refused(await patient.dial(liar))
    patient.look.set()
    assert (await heard(shows, 1))[0]["type"] == "enrolled"


async def test_of_one_known_worker_two_sockets_may_be_silent(patient: Server) -> None:
    await (await patient.enrolled("box.secret")).close()
    first, second, third = [await patient.dial("box.secret") for _ in range(3)]
    await refused(first)
    for socket in (second, third):
        await socket.send_json(hello(token="box.secret"))
        assert (await heard(socket, 1))[0]["type"] == "enrolled"


async def test_frames_of_one_message_are_taken_in_order_up_to_a_wrong_one(server: Server) -> None:
    socket = await server.enrolled()
    pings = [json.dumps({"type": "ping", "n": number}) for number in (1, 2)]
    await socket.send_str("\n".join(pings))
    assert (await socket.receive()).data == '{"type":"pong","n":1}\n{"type":"pong","n":2}'
    await socket.send_str("\n".join([*pings, "what?", *pings]))
    assert (await ends(socket))[0] == 4001
    assert server.sessions.session("evil") is None


async def test_a_message_of_too_many_frames_ends_the_session(server: Server) -> None:
    """All frames of a message are taken in one go, while everybody else waits."""
    socket = await server.enrolled()
    ping = '{"type":"ping","n":1}'
    await socket.send_str("\n".join([ping] * TOGETHER_MOST))
    assert len(await heard(socket, TOGETHER_MOST)) == TOGETHER_MOST
    await socket.send_str("\n".join([ping] * (TOGETHER_MOST + 1)))
    assert (await ends(socket))[0] == 4001
    assert server.sessions.session("evil") is None


async def test_a_worker_introduces_itself_in_a_message_of_its_own(server: Server) -> None:
    socket = await server.dial()
    await socket.send_str(json.dumps(hello()) + '\n{"type":"ping","n":1}')
    code, said = await ends(socket)
    assert (code, said["code"]) == (4001, "bad_frame")
    assert server.untouched()


async def test_a_lost_socket_is_freed_without_a_collector(server: Server) -> None:
    """Those stop everything, the longer the more workers there are."""
    gc.collect()
    before = _sockets_in_memory()
    gc.disable()
    try:
        for _ in range(3):
            socket = await server.enrolled()
            raw(socket).abort()
            async with asyncio.timeout(5):
                await server.gone.get()
            del socket
        for _ in range(20):
            await asyncio.sleep(0)
        assert _sockets_in_memory() == before
    finally:
        gc.enable()


def _sockets_in_memory() -> int:
    return sum(type(one) is web.WebSocketResponse for one in gc.get_objects())


async def test_a_socket_that_its_process_has_given_up_does_not_replace_the_newer_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a server that stood still heard of both at once, the older one last."""
    monkeypatch.setattr("swamp.serve.giving_way.PROBE_S", 0.1)
    older, newer = [await server.dial() for _ in "12"]
    await newer.send_json(hello(dial=2))
    assert (await heard(newer, 1))[0]["type"] == "enrolled"
    await older.send_json(hello(dial=1))
    code, said = await ends(older)
    assert (said["code"], said["permanent"]) == ("replaced", False), code
    await newer.send_json({"type": "ping", "n": 7})
    assert {"type": "pong", "n": 7} in await heard(newer, 1)
    ended = await server.dial()
    await ended.send_json(hello(dial=1, instance="another"))
    assert (await ends(ended))[1]["code"] == "replaced", "that of a process before it"
    await newer.close()
    anew = await server.dial()
    await anew.send_json(hello(dial=1, instance="yet another"))
    assert (await heard(anew, 1))[0]["type"] == "enrolled", "of a machine that lost its count"
