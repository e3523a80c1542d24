"""An orchestrator to script, and workers that dial it, ended with the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_orchestrator import Gate, Orchestrator, RunningWorker

from swamp.worker.options import WorkerOptions


@pytest.fixture
async def orchestrator() -> AsyncIterator[Orchestrator]:
    script = Orchestrator()
    app = web.Application()
    app.router.add_get("/", script.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    script.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield script
    await runner.cleanup()


@pytest.fixture
async def start(
    orchestrator: Orchestrator, tmp_path: Path
) -> AsyncIterator[Callable[..., RunningWorker]]:
    started: list[RunningWorker] = []

    def start_worker(**options: Any) -> RunningWorker:
        defaults = {"url": orchestrator.url, "token": "t.s", "cache_dir": tmp_path / "cache"}
        worker = RunningWorker(WorkerOptions(**{**defaults, **options}))
        started.append(worker)
        return worker

    yield start_worker
    for worker in started:
        worker.task.cancel()
        await asyncio.gather(worker.task, return_exceptions=True)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.close()
