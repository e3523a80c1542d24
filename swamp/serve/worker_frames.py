"""What a worker's messages say, or why its socket is closed for them."""

from __future__ import annotations

from aiohttp import WSMessage, WSMsgType, web

from controllers.enrollment import EnrollmentRefused
from datastore.errors import SwampError
from swamp.protocol import Enroll, FrameError, FromWorker, frames_in, from_worker, other_version
from swamp.serve.refusals import wrong_version

CLOSE_BINARY = 1003
CLOSE_REFUSED = 4000
CLOSE_BAD_FRAME = 4001
CLOSE_SILENT = 4002
"""Codes of closed sockets. Too big a frame is closed with 1009, as WebSockets have it."""


class Closed(SwampError):
    """Why the server closes a worker's socket, with the code that says so to machines."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


async def next_of(socket: web.WebSocketResponse) -> WSMessage:
    """What comes next on a worker's socket."""
    try:
        return await socket.receive()
    except ConnectionError as error:
        # It has gone while a ping of its was answered.
        return WSMessage(WSMsgType.ERROR, error, None)


def text_of(message: WSMessage) -> str | None:
    """What a message says, None at the socket's end; Closed if it is no text."""
    if message.type is WSMsgType.BINARY:
        raise Closed(CLOSE_BINARY, "frames are text")
    return str(message.data) if message.type is WSMsgType.TEXT else None


def frames_of(text: str) -> list[str]:
    """The texts of the frames in a message; Closed if these are too many."""
    try:
        return frames_in(text)
    except FrameError as error:
        raise Closed(CLOSE_BAD_FRAME, str(error)) from None


def frame_of(text: str) -> FromWorker:
    """The frame in a text; Closed if it is none."""
    try:
        return from_worker(text)
    except FrameError as error:
        raise Closed(CLOSE_BAD_FRAME, str(error)) from None


def first_frame(message: WSMessage) -> Enroll | None:
    """What introduces a worker, None at the socket's end; EnrollmentRefused if it is none."""
    text = text_of(message)
    if text is None:
        return None
    try:
        frame = frame_of(text)
    except Closed as closed:
        other = other_version(text)
        if other is not None:
            raise wrong_version(*other) from None
        raise EnrollmentRefused("bad_frame", str(closed)) from None
    if isinstance(frame, Enroll):
        return frame
    raise EnrollmentRefused("bad_frame", "the first frame is enroll")
