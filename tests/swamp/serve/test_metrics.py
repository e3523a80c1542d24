"""`/metrics` of a whole server in this process: what it tells, and that the page says the same."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from metrics_reader import Family, read_metrics
from opentelemetry.sdk.metrics.export import Histogram, MetricsData, Sum
from opentelemetry.sdk.resources import Resource

from controllers.enrollment import Made, create_token
from datastore.kinds import PENDING, TokenSpec
from datastore.layout import Layout
from datastore.lock import RepositoryLock
from datastore.repository_init import initialize
from swamp.protocol import PROTOCOL_VERSION, Enroll
from swamp.serve import metrics
from swamp.serve.api import Api
from swamp.serve.metrics import Metrics
from swamp.serve.metrics_export import Times, as_otel
from swamp.serve.metrics_text import as_text
from swamp.serve.orchestrator import Orchestrator
from swamp.serve.serve_options import ServeOptions
from swamp.serve.served import Served
from swamp.serve.sessions import Sessions
from swamp.serve.starting import start_run

PAGE = Path(__file__).parents[3] / "docs" / "observability.md"

MODEL = """type: command/shell
typeVersion: 2026.02.09.1
name: shell
concurrency: 0
methods: {execute: {arguments: {run: "true"}}}
"""

Look = Callable[[Served, Sessions], Awaitable[None]]


def workflow(pools: list[str]) -> str:
    steps = "\n".join(
        f"      - name: s{number}\n        labels: {{pool: {pool}}}\n        task: {{type:"
        f" model_method, modelIdOrName: shell, methodName: execute}}"
        for number, pool in enumerate(pools)
    )
    return f"name: wait\njobs:\n  - name: job\n    steps:\n{steps}\n"


async def served(root: Path, look: Look) -> None:
    """Run a server until `look` has seen enough."""

    async def front(parts: Served, api: Api, sessions: Sessions) -> None:
        await look(parts, sessions)

    initialize(root, datetime.now(UTC))
    (root / "models" / "shell.yaml").write_text(MODEL)
    with RepositoryLock(Layout(root)) as lock:
        options = ServeOptions(root, file_events=False)
        async with asyncio.timeout(30):
            await Orchestrator(options, lock, lambda report: None, front).run()


async def told(parts: Served) -> dict[str, Family]:
    return read_metrics(as_text(await Metrics(parts).collect()))


async def all_wait(parts: Served, count: int) -> None:
    """Start the workflow; return when so many dispatches have been looked at in vain."""
    waiting = asyncio.Event()

    def look(name: str) -> None:
        if sum(one.state == "waiting" for one in parts.store.live(PENDING)) == count:
            waiting.set()

    parts.store.watch(PENDING, look)
    await start_run(parts, {"workflow": "wait"}, parts.new_run())
    await waiting.wait()


class Wire:
    def send(self, text: str) -> None: ...

    def abort(self, reason: str) -> None: ...


def documented() -> dict[str, tuple[str, set[str]]]:
    """Type and labels by name, from the page's table."""
    rows = re.findall(r"^\| `(swamp_\w+)` \| (\w+) \| ([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


async def test_the_page_names_what_is_told(tmp_path: Path) -> None:
    async def look(parts: Served, sessions: Sessions) -> None:
        instruments = await Metrics(parts).collect()
        labels = {one.about.name: set(one.about.labels) for one in instruments}
        kinds = {name: one.kind for name, one in (await told(parts)).items()}
        assert {name: (kinds[name], labels[name]) for name in labels} == documented()

    await served(tmp_path, look)


async def test_the_queue_and_the_fleet_of_this_instant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(parts: Served, sessions: Sessions) -> None:
        spec = TokenSpec(expires_at="2099-01-01T00:00:00.000Z")
        create_token(parts.store, "box", spec, "secret", Made("t", datetime.now(UTC)))
        hello = Enroll(
            protocol=PROTOCOL_VERSION, version="1", token="box.secret", instance="i", machine="m",
            platform="linux", arch="x", labels={"pool": "c"}, capacity=1,
        )  # fmt: skip
        await sessions.enroll(hello, Wire())
        await all_wait(parts, 4)
        await parts.store.barrier()
        read = await told(parts)
        depth = read["swamp_queue_depth"]
        assert depth.value(requirement="pool=a", reason="no_match") == 2
        assert depth.value(requirement="pool=b", reason="no_match") == 1
        assert depth.value(requirement="pool=c", reason="full") == 1
        assert read["swamp_worker_slots"].value(worker="box", state="used") == 1
        assert read["swamp_worker_slots"].value(worker="box", state="free") == 0
        assert read["swamp_workers"].value(state="busy") == 1
        assert read["swamp_workers"].value(state="disconnected") == 0
        assert read["swamp_index_records"].value(kind="pending") == 5
        assert read["swamp_enrollment_seconds"].value("_count", lookup="miss") == 1

        monkeypatch.setattr(metrics, "REQUIREMENTS_MOST", 1)
        monkeypatch.setattr(metrics, "WORKERS_MOST", 0)
        read = await told(parts)
        assert read["swamp_queue_depth"].value(requirement="pool=a", reason="no_match") == 2
        # The reason is what alerts ask for; there are few of them, so it is told of the rest too.
        assert read["swamp_queue_depth"].value(requirement="other", reason="no_match") == 1
        assert read["swamp_queue_depth"].value(requirement="other", reason="full") == 1
        assert read["swamp_worker_slots"].value(worker="other", state="used") == 1

    (tmp_path / "workflows").mkdir()
    (tmp_path / "workflows" / "wait.yaml").write_text(workflow(["a", "a", "b", "c", "c"]))
    await served(tmp_path, look)


async def test_the_same_goes_out_by_opentelemetry(tmp_path: Path) -> None:
    found: list[MetricsData] = []

    async def look(parts: Served, sessions: Sessions) -> None:
        found.append(as_otel(await Metrics(parts).collect(), Times(1, 2), Resource({})))

    await served(tmp_path, look)
    sent = {one.name: one for one in found[0].resource_metrics[0].scope_metrics[0].metrics}
    # Of what has no value there is nothing to send.
    empty = {"swamp_queue_depth", "swamp_worker_slots", "swamp_enrollment_seconds"}
    assert set(sent) == set(documented()) - empty
    assert all(one.data.data_points for one in sent.values())
    leases = sent["swamp_leases_total"].data
    assert isinstance(leases, Sum) and leases.is_monotonic
    assert {str((one.attributes or {})["outcome"]): one.value for one in leases.data_points} == {
        "cancelled": 0, "completed": 0, "expired": 0, "failed": 0, "refused": 0,
    }  # fmt: skip
    # Prometheus would call a gauge of the unit "1" a ratio, and so would every name differ.
    assert {one.unit for one in sent.values()} == {"s", ""}
    assert sent["swamp_workers"].unit == sent["swamp_leases_total"].unit == ""
    writes = sent["swamp_journal_write_seconds"]
    assert writes.unit == "s"
    assert isinstance(writes.data, Histogram)
    point = writes.data.data_points[0]
    assert point.count == sum(point.bucket_counts)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
