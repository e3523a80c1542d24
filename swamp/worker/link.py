"""One socket to the orchestrator, from the dial to its loss.

Every send has a deadline and silence has a limit, so that a peer which neither reads nor writes is
cut, whatever lies in between. Losing a socket settles nothing: that is the worker's to decide.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

import aiohttp

from datastore.errors import SwampError
from swamp.dialling import DEGRADED_HEADER
from swamp.protocol import (
    FRAME_MAX_BYTES,
    TOGETHER_BYTES,
    Enroll,
    Enrolled,
    EnrollRefused,
    Ping,
    Pong,
    ToWorker,
    encode,
    frames_in,
    message_of,
    to_worker,
)
from swamp.tls import untrusted
from swamp.worker import real_time
from swamp.worker.outbox import Outbox

DIAL_TIMEOUT_S = 15.0
ENROLL_TIMEOUT_S = 30.0
SEND_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
SILENCE_HEARTBEATS = 2.5
"""Without a byte for so many heartbeats, the socket is taken for dead."""
STOOD_STILL_HEARTBEATS = 0.75
"""Who has not looked at the clock for so long stood still: it does so twice in a heartbeat."""
WOKEN_HEARTBEATS = 1.0
"""So long after it stood still, its socket has to show that it is good, or another one be had."""
LOOK_S = 1.0
"""How often it looks at the clock while it waits for the answer to its enrollment."""
BACKLOG_MAX = 1000

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
RETRY_SOON_MAX_S = 4.0
SOON_TRIES = 20
RETRIES_PER_GRACE = 6
"""At least, while there is work that the end of the grace window would cost."""
STABLE_S = 10.0
"""A socket that lived so long was no failure; the next retry is a quick one again."""


class SocketLost(SwampError):
    """The socket could not be had or is gone; the message says how."""


class EnrollmentRefused(SwampError):
    """The orchestrator does not want this worker: now, or ever (`permanent`)."""

    def __init__(self, refusal: EnrollRefused) -> None:
        super().__init__(refusal.message)
        self.permanent = refusal.permanent
        self.retry_after_s = refusal.retry_after_ms / 1000
        self.grace_s = refusal.grace_s
        self.cancel = refusal.cancel


class Backoff:
    """Delays before retries: random in a range that starts at 1 s and doubles up to 30 s.

    For the first tries it stops at 4 s: an orchestrator that is restarted finds its fleet soon.

    The first is random too: after a restart of the orchestrator, a fleet comes back spread out.
    """

    def __init__(self, randomness: random.Random) -> None:
        self._randomness = randomness
        self._range_s = RETRY_FIRST_S
        self._tries = 0

    def next_s(self, most_s: float = RETRY_MAX_S) -> float:
        """How long to wait now, seconds; never longer than `most_s`."""
        delay_s = self._randomness.uniform(0, min(self._range_s, most_s))
        self._tries += 1
        limit_s = RETRY_SOON_MAX_S if self._tries < SOON_TRIES else RETRY_MAX_S
        self._range_s = min(self._range_s * 2, limit_s)
        return delay_s

    def told_s(self, retry_after_s: float) -> float:
        """How long to wait when the orchestrator named a time: that, and up to half more."""
        if retry_after_s <= 0:
            return self.next_s()
        return retry_after_s * self._randomness.uniform(1.0, 1.5)

    def reset(self) -> None:
        """Start over."""
        self._range_s = RETRY_FIRST_S
        self._tries = 0


class Link:
    """An open socket."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self._ws = ws
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._heartbeat_s = 0.0
        self._behind: list[ToWorker] = []
        """What came in one message with the answer to the enrollment."""

        self._beat_at = self._sure_at = real_time.now_s()
        """When it last looked at the clock, and when the orchestrator last counted on this.

        Both are moments of such a look, for it may be stopped between any two instructions.
        """
        self._woke_at: float | None = None
        """Since when the socket is in doubt."""
        self._looks: asyncio.TimerHandle | None = None
        self._pings = 0
        self._asked: int | None = None
        """The ping whose answer shows that the orchestrator still counts on this socket."""
        self._held: deque[ToWorker] = deque()

    async def enroll(self, frame: Enroll) -> Enrolled:
        """Introduce the worker; EnrollmentRefused or SocketLost if that comes to nothing."""
        # From here on: it may be stopped between the answer and the first look at the clock.
        self._beat_at = real_time.now_s()
        await self._send(encode(frame))
        self._look_at_clock()
        try:
            async with asyncio.timeout(ENROLL_TIMEOUT_S):
                answer, *self._behind = await self._receive()
        except TimeoutError:
            raise SocketLost(f"no answer to the enrollment within {ENROLL_TIMEOUT_S:g} s") from None
        finally:
            if self._looks is not None:
                self._looks.cancel()
        if isinstance(answer, EnrollRefused):
            raise EnrollmentRefused(answer)
        if not isinstance(answer, Enrolled):
            raise SocketLost(f"the orchestrator answered the enrollment with '{answer.type}'")
        self._heartbeat_s, self._sure_at = answer.heartbeat_s, self._beat_at
        return answer

    async def serve(
        self,
        outbox: Outbox,
        handle: Callable[[ToWorker], None],
        alive: Callable[[], None],
    ) -> None:
        """Send what `outbox` has and `handle` what comes, until the socket is lost: SocketLost.

        It is enrolled. `alive` is called twice in each heartbeat, and when a socket in doubt has
        proved good.
        """
        lost: SocketLost | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(outbox, handle, alive))
                tasks.create_task(self._write(outbox))
                tasks.create_task(self._beat(outbox, alive))
        except* SocketLost as group:
            lost = next(error for error in group.exceptions if isinstance(error, SocketLost))
        if lost is not None:
            raise lost

    def sure_until_s(self, grace_s: float) -> float:
        """The end of a grace window since the orchestrator last counted on this socket.

        By `real_time`. It has given nothing up before.
        """
        return self._sure_at + grace_s

    def ends_s(self, grace_s: float) -> float:
        """When to give up what runs, by `real_time`: with that window, or a little later.

        After a standstill it lasts long enough to dial once more, if it is over: the
        orchestrator counts from later, and may have stood still or been restarted itself.
        """
        self._look_for_standstill()
        ends_s = self.sure_until_s(grace_s)
        if self._woke_at is None:
            return ends_s
        return max(ends_s, self._woke_at + min(grace_s, WOKEN_HEARTBEATS * self._heartbeat_s))

    def cut(self) -> None:
        """Make the socket useless at once, whatever is still in its buffers."""
        raw = self._ws.get_extra_info("socket")
        if raw is not None:
            with suppress(OSError):
                raw.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Say goodbye if the peer listens, and be gone in any case."""
        with suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._ws.close()
        self.cut()

    async def _read(
        self, outbox: Outbox, handle: Callable[[ToWorker], None], alive: Callable[[], None]
    ) -> None:
        frames = self._behind
        while True:
            self._doubt_after_standstill(outbox)
            if self._woke_at is None:
                self._sure_at = self._beat_at
            for frame in frames:
                if isinstance(frame, Ping):
                    outbox.say(Pong(n=frame.n))
                elif not isinstance(frame, Pong):
                    self._held.append(frame)
                elif frame.n == self._asked:
                    self._asked = self._woke_at = None
                    self._sure_at = self._beat_at
                    alive()
                while self._held and self._woke_at is None:
                    handle(self._held.popleft())
            frames = await self._receive()
            if outbox.backlog > BACKLOG_MAX:
                raise SocketLost("the orchestrator sends, but does not read")

    async def _write(self, outbox: Outbox) -> None:
        while True:
            texts = [encode(await outbox.get())]
            size = len(texts[0])
            while size < TOGETHER_BYTES and (frame := outbox.get_nowait()) is not None:
                texts.append(encode(frame))
                size += len(texts[-1])
            await self._send(message_of(texts))

    async def _beat(self, outbox: Outbox, alive: Callable[[], None]) -> None:
        beats = 0
        while True:
            await asyncio.sleep(self._heartbeat_s / 2)
            if self._doubt_after_standstill(outbox):
                # What came meanwhile is unread: no evidence of silence.
                self._heard_at = self._loop.time()
            silent_s = self._loop.time() - self._heard_at
            if silent_s > SILENCE_HEARTBEATS * self._heartbeat_s:
                raise SocketLost(f"nothing received for {silent_s:.1f} s")
            if self._woke_at is not None:
                woken_s = self._beat_at - self._woke_at
                if woken_s >= WOKEN_HEARTBEATS * self._heartbeat_s:
                    raise SocketLost(
                        f"no answer for {woken_s:.1f} s since this machine stood still"
                    )
            alive()
            beats += 1
            if beats % 2 == 0:
                self._ping(outbox)

    def _doubt_after_standstill(self, outbox: Outbox) -> bool:
        """Ask whether the socket is still good if this process was stopped, or its machine slept.

        What lies in the socket may have been given up, and run elsewhere, long ago. It is held
        until the orchestrator answers, which it does in order and on a socket that it counts on
        alone; if it does not, it goes with the socket. Says whether it asks.
        """
        self._look_for_standstill()
        if self._woke_at is None or self._asked is not None:
            return False
        self._asked = self._ping(outbox)
        return True

    def _look_for_standstill(self) -> None:
        """Look at the clock: the socket is in doubt if this process stood still since it did."""
        before_s, self._beat_at = self._beat_at, real_time.now_s()
        if self._beat_at - before_s <= STOOD_STILL_HEARTBEATS * self._heartbeat_s:
            return
        # The answer to what was asked before may be as old.
        self._woke_at, self._asked = self._beat_at, None

    def _look_at_clock(self) -> None:
        """Again and again while the answer is waited for: to wait is not to stand still."""
        now_s = real_time.now_s()
        if now_s - self._beat_at < 2 * LOOK_S:
            self._beat_at = now_s
            self._looks = self._loop.call_later(LOOK_S, self._look_at_clock)

    def _ping(self, outbox: Outbox) -> int:
        self._pings += 1
        outbox.say(Ping(n=self._pings))
        return self._pings

    async def _send(self, message: str) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._ws.send_str(message)
        except TimeoutError:
            raise SocketLost(f"the orchestrator read nothing for {SEND_TIMEOUT_S:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise SocketLost(f"connection lost: {error}") from error

    async def _receive(self) -> list[ToWorker]:
        try:
            message = await self._ws.receive()
        except (aiohttp.ClientError, OSError) as error:
            # It went while a ping of its was answered.
            raise SocketLost(f"connection lost: {error}") from error
        self._heard_at = self._loop.time()
        if message.type is aiohttp.WSMsgType.TEXT:
            try:
                return [to_worker(text) for text in frames_in(message.data)]
            except SwampError as error:
                raise SocketLost(str(error)) from error
        if message.type is aiohttp.WSMsgType.CLOSE and message.extra:
            raise SocketLost(f"closed by the orchestrator: {message.extra}")
        if message.type is aiohttp.WSMsgType.ERROR:
            raise SocketLost(f"connection lost: {message.data}")
        if message.type is aiohttp.WSMsgType.BINARY:
            raise SocketLost("the orchestrator sent what is no text")
        raise SocketLost("closed by the orchestrator")


async def dial(http: aiohttp.ClientSession, url: str, card: dict[str, str]) -> Link:
    """An open socket to `url`, not enrolled yet. `card`: headers that say who dials.

    SocketLost says why there is none; EnrollmentRefused when too many come at once.
    """
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            ws = await http.ws_connect(url, max_msg_size=FRAME_MAX_BYTES, headers=card)
    except TimeoutError:
        raise SocketLost(f"no connection to {url} within {DIAL_TIMEOUT_S:g} s") from None
    except aiohttp.WSServerHandshakeError as error:
        retry_after = error.headers.get("Retry-After", "") if error.headers is not None else ""
        if error.status == HTTPStatus.SERVICE_UNAVAILABLE and retry_after.isdecimal():
            degraded = None if error.headers is None else error.headers.get(DEGRADED_HEADER)
            raise EnrollmentRefused(
                EnrollRefused(
                    code="too_many_at_once" if degraded is None else "degraded",
                    message=degraded or "too many others are enrolling just now",
                    permanent=False,
                    retry_after_ms=round(_soon_s(retry_after) * 1000),
                )
            ) from error
        raise SocketLost(f"{url} is no orchestrator: HTTP {error.status}") from error
    except aiohttp.ClientConnectorCertificateError as error:
        cause = error.certificate_error
        if not isinstance(cause, ssl.SSLCertVerificationError):
            raise SocketLost(f"no TLS connection to {url}: {cause}") from error
        raise SocketLost(untrusted(url, cause)) from error
    except aiohttp.ClientConnectorError as error:
        raise SocketLost(f"no connection to {url}: {_why_none(error.os_error)}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise SocketLost(f"no connection to {url}: {error}") from error
    return Link(ws)


def _soon_s(named: str) -> float:
    """For how long to stay away when so many seconds are named: by a proxy, it may be for hours.

    The server may be back long before.
    """
    # Of too many digits Python makes no number.
    return min(float(named[:9]), RETRY_MAX_S)


def _why_none(error: OSError) -> str:
    """The system's word for it: aiohttp and asyncio add the address, and say `ssl:default`."""
    has_numbers_of_its_own = isinstance(error, ssl.SSLError | socket.gaierror)
    if error.errno is None or has_numbers_of_its_own:
        return error.strerror or str(error)
    return os.strerror(error.errno)
