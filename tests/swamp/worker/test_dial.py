"""What a worker makes of answers to its dial that are no socket."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from swamp.protocol import WORKER_HEADER, calling_card
from swamp.worker.link import RETRY_MAX_S, EnrollmentRefused, SocketLost, dial

CARD = calling_card("t.secret", "m")


async def dialled(headers: dict[str, str], scheme: str = "ws") -> None:
    """Dial a server, which speaks no TLS, that answers 503 with these headers."""

    async def answer(request: web.Request) -> web.Response:
        assert request.headers[WORKER_HEADER] == CARD[WORKER_HEADER]
        return web.Response(status=503, headers=headers)

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as http:
            await dial(http, f"{scheme}://127.0.0.1:{runner.addresses[0][1]}", CARD)
    finally:
        await runner.cleanup()


async def test_a_server_with_too_many_says_when_to_come_back() -> None:
    with pytest.raises(EnrollmentRefused) as refused:
        await dialled({"Retry-After": "2"})
    assert (refused.value.permanent, refused.value.retry_after_s) == (False, 2.0)


@pytest.mark.parametrize("after", ["3600", "9" * 25, "9" * 400, "9" * 5000])
async def test_whoever_names_a_time_too_long_is_asked_again_all_the_same(after: str) -> None:
    """Regression: a worker slept for as long as a proxy said, an hour or a million years; what it
    ran was lost with the grace window. More digits ended the worker."""
    with pytest.raises(EnrollmentRefused) as refused:
        await dialled({"Retry-After": after})
    assert refused.value.retry_after_s == RETRY_MAX_S


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ws://127.0.0.1:1", "Connection refused"),
        ("wss://127.0.0.1:1", "Connection refused"),
        ("ws://no-such-host.invalid", None),
    ],
)
async def test_nobody_there_is_said_in_words_for_people(url: str, why: str | None) -> None:
    """Regression: `Cannot connect to host 127.0.0.1:1 ssl:default [...]`, also without TLS."""
    async with aiohttp.ClientSession() as http:
        with pytest.raises(SocketLost) as lost:
            await dial(http, url, CARD)
    said = str(lost.value)
    assert said.startswith(f"no connection to {url}: ")
    assert "ssl" not in said
    assert why is None or said.endswith(f": {why}")


async def test_a_server_without_tls_is_no_lack_of_rights() -> None:
    with pytest.raises(SocketLost, match=r"no connection to wss://\S+: .*SSL"):
        await dialled({}, "wss")


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}])
async def test_any_other_503_is_no_orchestrator(headers: dict[str, str]) -> None:
    with pytest.raises(SocketLost, match="no orchestrator: HTTP 503"):
        await dialled(headers)
