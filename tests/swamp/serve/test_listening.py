"""The repository's socket: nobody answers there any more once its server has ended."""

from __future__ import annotations

import errno
import logging
import os
import socket
from pathlib import Path

import pytest
from aiohttp import web

from datastore.layout import Layout
from datastore.trouble import Trouble
from swamp.serve.listening import on_socket


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
