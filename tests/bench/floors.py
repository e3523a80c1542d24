"""What the machine can do just now: the floors that figures are compared with, in seconds."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TABLE_APP = """
import typer
from rich.console import Console
from rich.table import Table
app = typer.Typer()
@app.command()
def show() -> None:
    table = Table("worker", "status", "slots")
    for number in range(10):
        table.add_row(f"w{number}", "idle", "8")
    Console().print(table)
app()
"""


def timed(action: Callable[[], object]) -> float:
    """How long one call takes, seconds."""
    before = time.perf_counter()
    action()
    return time.perf_counter() - before


def median_of(action: Callable[[], object], times: int) -> float:
    """The median of several calls, seconds."""
    return statistics.median(timed(action) for _ in range(times))


def spawn() -> None:
    """Start the command of the fan-outs, and wait for it."""
    subprocess.run(["sh", "-c", "true"], check=True)


def xargs(count: int, slots: int, command: str) -> None:
    """Start the command so many times, so many at once."""
    numbers = "\n".join(map(str, range(count)))
    subprocess.run(
        ["xargs", "-P", str(slots), "-n", "1", "sh", "-c", command],
        input=numbers, text=True, check=True,
    )  # fmt: skip


def append_synced(folder: Path, times: int) -> list[float]:
    """Append a record's 600 bytes to a file and sync it, so many times."""
    record = b"x" * 600
    descriptor = os.open(folder / "floor.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def append() -> None:
        os.write(descriptor, record)
        os.fsync(descriptor)

    try:
        return [timed(append) for _ in range(times)]
    finally:
        os.close(descriptor)


def write_one_by_one(folder: Path, count: int) -> list[float]:
    """When each of `count` records is safe if a writer takes one at a time: file and folder synced.

    Seconds since the burst; this is what a queue without group commits costs.
    """
    began, done = time.perf_counter(), []
    handle = os.open(folder, os.O_RDONLY)
    try:
        for number in range(count):
            temp = folder / f".one-{number}"
            with temp.open("wb") as file:
                file.write(b"x" * 600)
                file.flush()
                os.fsync(file.fileno())
            temp.rename(folder / f"one-{number}")
            os.fsync(handle)
            done.append(time.perf_counter() - began)
    finally:
        os.close(handle)
    return done


def python(*arguments: str) -> None:
    """Run an interpreter of this environment to its end."""
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def imports() -> None:
    """What every process that talks WebSocket and validates frames has to load."""
    python("-c", "import aiohttp, pydantic")


def table_command() -> None:
    """A command with one option that prints a table."""
    python("-c", TABLE_APP)


def scan_and_stat(folder: Path) -> int:
    """List a tree and take the stat of every file in it; how many there are."""
    found = 0
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            found += scan_and_stat(Path(entry.path))
        else:
            entry.stat(follow_symlinks=False)
            found += 1
    return found


def websocket_round_trip(times: int) -> float:
    """The median of an echo between two tasks of one process, seconds."""
    return asyncio.run(_echoes(times))


async def _echoes(times: int) -> float:
    from aiohttp import ClientSession, web

    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    app = web.Application()
    app.router.add_get("/", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    taken = []
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with ClientSession() as http, http.ws_connect(url) as socket:
        for _ in range(times):
            before = time.perf_counter()
            await socket.send_str("x" * 200)
            await socket.receive()
            taken.append(time.perf_counter() - before)
    await runner.cleanup()
    return statistics.median(taken)
