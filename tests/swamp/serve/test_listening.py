"""The repository's socket: nobody answers there any more once its server has ended."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from aiohttp import web

from datastore.layout import Layout
from datastore.trouble import Trouble
from swamp.serve.listening import _OwnSocket, on_socket


async def test_nobody_answers_after_the_end_though_the_file_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    layout = Layout(tmp_path)
    async with on_socket(
        layout,
        web.AppRunner(web.Application(), shutdown_timeout=0.1),
        Trouble("not listened on", logging.getLogger(__name__)),
    ):
        monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.undo()
    monkeypatch.chdir(layout.private)
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(layout.socket.name)


async def test_a_socket_whose_file_was_removed_is_let_go_of_once_there_is_another(
    tmp_path: Path,
) -> None:
    """Regression: each removal, say by `git clean -fdx`, cost the server an open file for good."""
    layout, runner = Layout(tmp_path), web.AppRunner(web.Application(), shutdown_timeout=0.1)
    await runner.setup()
    async with asyncio.TaskGroup() as group:
        with ExitStack() as listening:
            own = _OwnSocket(layout, runner, group, listening)
            await own.listen()
            opened = len(os.listdir("/proc/self/fd"))
            for _ in range(3):
                layout.socket.unlink()
                await own.listen()
            assert len(os.listdir("/proc/self/fd")) == opened
            reader, writer = await asyncio.open_unix_connection(layout.socket)
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            async with asyncio.timeout(5):
                assert (await reader.readline()).startswith(b"HTTP/1.1 404 ")
            writer.close()
    await runner.cleanup()
