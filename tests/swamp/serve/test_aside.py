"""Large answers: the loop goes on meanwhile, and they tell the same as small ones."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from controllers.placement import Reason
from datastore.courtesy import Pause, no_pause
from datastore.journal import Op
from datastore.kinds import (
    KINDS,
    LEASES,
    PENDING,
    RUNS,
    STEPS,
    TOKENS,
    WORKERS,
    Call,
    Counts,
    LeaseSpec,
    LeaseStatus,
    PendingSpec,
    PendingStatus,
    Placement,
    RunSpec,
    RunStatus,
    StepSpec,
    StepStatus,
    TokenSpec,
    TokenStatus,
    WorkerSpec,
    WorkerStatus,
)
from datastore.layout import Layout
from datastore.lock import RepositoryLock
from datastore.record import Record
from datastore.repository_init import initialize
from datastore.sqlite_file import to_json
from datastore.store import Store
from swamp import run_views, views
from swamp.dialling import DEGRADED_HEADER
from swamp.serve import aside
from swamp.serve.answers import errors_as_json
from swamp.serve.api import Api
from swamp.serve.aside import Aside, encoded
from swamp.serve.listening import application
from swamp.serve.orchestrator import Orchestrator
from swamp.serve.serve_options import ServeOptions
from swamp.serve.served import Served
from swamp.serve.sessions import Sessions

AT = "2026-11-29T12:00:00.000Z"
MANY = 2_000
TURNS = 100
"""A connection and an answer take a dozen; there are thousands beside a thread."""

RUN = "0193f000-0000-7000-8000-000000000001"
CALL = Call(model_type="command/shell", model="m", method="execute")
PLACED = Placement(labels={"pool": "a"})
LOOP = {"name": "s-${{ self.n }}", "forEach": {"item": "n", "in": "${{ inputs.hosts }}"}}

Ask = Callable[[str], Awaitable[tuple[Any, int]]]
"""The answer to a question, and how many turns the loop had until it was there."""


# -- a server with many records ------------------------------------------------------------------


def worker(number: int, state: str = "disconnected") -> Record[Any, Any]:
    name = f"w{number * 7919 % MANY:05}"
    status = WorkerStatus.model_validate(
        {
            "state": state, "instance": f"i{number}", "machine": f"m{number}", "token": "t",
            "labels": {"pool": "a"}, "platform": "linux", "arch": "x86_64", "version": "1",
            "capacity": 1, "enrolled_at": AT, "last_seen_at": AT,
        }
    )  # fmt: skip
    return Record(WORKERS, name, f"uid-{name}", AT, WorkerSpec(), status)


def run(name: str, **spec: Any) -> Record[Any, Any]:
    definition = {"name": "w", "jobs": [{"name": "j", "steps": [LOOP]}]}
    made = RunSpec(workflow="w", workflow_id="w", definition=definition, **spec)
    status = RunStatus(state="failed", started_at=AT, ended_at=AT, counts=Counts(total=MANY))
    return Record(RUNS, name, name, AT, made, status)


def step_of_run(number: int) -> list[Record[Any, Any]]:
    step, name = f"s-{number}", f"{RUN}.j.s-{number}"
    names: dict[str, str] = {"run": RUN, "workflow": "w", "job": "j", "step": step}
    return [
        Record(
            STEPS, name, name, AT, StepSpec(**names, call=CALL, template=LOOP["name"]),
            StepStatus(state="failed", started_at=AT, ended_at=AT, worker="w1", error="no"),
        ),
        Record(
            PENDING, f"{name}.1", name, AT,
            PendingSpec(**names, episode=1, call=CALL, placement=PLACED),
            PendingStatus(state="dispatched", queued_at=AT, ended_at=AT, worker="w1"),
        ),
        Record(
            LEASES, f"{name}.1", name, AT,
            LeaseSpec(**names, worker="w1", instance="i", model="m", method="execute"),
            LeaseStatus(state="failed", bound_at=AT, ended_at=AT),
        ),
    ]  # fmt: skip


def waiting(number: int, **spec: Any) -> Record[Any, Any]:
    name = f"r{number}.j.s-{number}.1"
    made = PendingSpec(
        **{
            "run": f"r{number}", "workflow": "w", "job": "j", "step": f"s-{number}", "episode": 1,
            "call": CALL, "placement": PLACED, **spec,
        }
    )  # fmt: skip
    return Record(PENDING, name, name, AT, made, PendingStatus(state="waiting", queued_at=AT))


def fill(store: Store) -> None:
    """Finished records as the bytes that they are stored as, live ones as records."""
    token = TokenStatus(state="revoked", secret_hash="00", enrollments=MANY, ended_at=AT)
    finished = [
        *(worker(number) for number in range(MANY)),
        *(record for number in range(MANY) for record in step_of_run(number)),
        run(RUN, inputs={"hosts": [{"name": "a"}]}),
        *(run(f"0193f000-0000-7000-8000-1{number:011}") for number in range(MANY)),
        Record(TOKENS, "t", "t", AT, TokenSpec(expires_at=AT), token),
    ]
    for record in finished:
        assert not record.live
        document = {record.name: to_json(record.document())}
        store.load_finished(record.kind, document)
    for number in range(MANY):
        store.load(waiting(number, placement=Placement(labels={"pool": f"p{number % 20}"})))


@asynccontextmanager
async def listening(app: web.AppRunner) -> AsyncIterator[str]:
    await app.setup()
    try:
        await web.TCPSite(app, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{app.addresses[0][1]}"
    finally:
        await app.cleanup()


async def on_server(root: Path, look: Callable[[Served, Ask], Awaitable[None]]) -> None:
    """Have a server with many records looked at."""

    async def front(parts: Served, api: Api, sessions: Sessions) -> None:
        fill(parts.store)
        async with (
            listening(application(api, api.health, admin=True)) as url,
            aiohttp.ClientSession(url) as http,
        ):

            async def ask(question: str) -> tuple[Any, int]:
                turns, over = 0, False

                async def turn() -> None:
                    nonlocal turns
                    while not over:
                        turns += 1
                        await asyncio.sleep(0)

                async with asyncio.TaskGroup() as group:
                    group.create_task(turn())
                    async with http.get(f"/api/v1/{question}") as answer:
                        assert answer.status == 200, await answer.text()
                        body = await answer.read()
                    over = True
                return json.loads(body), turns

            await look(parts, ask)

    initialize(root, datetime.now(UTC))
    with RepositoryLock(Layout(root)) as lock:
        options = ServeOptions(root, file_events=False)
        async with asyncio.timeout(120):
            await Orchestrator(options, lock, lambda report: None, front).run()


QUESTIONS = (
    "workers?all=1", "tokens", f"runs/{RUN}", "runs?status=succeeded", "queue", "demand",
    "queue/s-1999/explain",
)  # fmt: skip


async def test_the_loop_goes_on_while_a_large_answer_is_made(tmp_path: Path) -> None:
    async def look(parts: Served, ask: Ask) -> None:
        async def has_turns(question: str) -> bool:
            # Where the machine is busy, it may be the loop that did not run.
            return any([(await ask(question))[1] >= TURNS for _ in range(3)])

        assert not await has_turns("pauses"), "what is told at once"
        assert [one for one in QUESTIONS if not await has_turns(one)] == []

    await on_server(tmp_path, look)


async def test_a_large_answer_is_what_the_views_say(tmp_path: Path) -> None:
    async def look(parts: Served, ask: Ask) -> None:
        store, now = parts.store, parts.clock.now()
        workers = list(store.list(WORKERS))
        assert (await ask("workers?all=1"))[0] == views.worker_list(workers, [], show_all=True)
        two = [one for one in workers if one.name in ("w00007", "w00009")]
        named = (await ask("workers?all=1&name=w00007&name=w00009&name=nobody&name=w00007"))[0]
        assert len(two) == 2
        assert named == views.worker_list(two, [], show_all=True)
        assert (await ask("workers?name=nobody"))[0] == {"workers": [], "count": 0}
        assert (await ask("tokens"))[0] == views.token_list(store.list(TOKENS), workers, now)
        records = (store.by(kind, "run", RUN) for kind in (STEPS, PENDING, LEASES))
        assert (await ask(f"runs/{RUN}"))[0] == run_views.run_view(store.get(RUNS, RUN), *records)
        failed = (await ask("runs?status=failed&limit=300"))[0]
        assert failed == run_views.run_list(store.list(RUNS), limit=300)
        assert len(failed["runs"]) == 300
        assert (await ask("runs?status=succeeded"))[0] == {"runs": []}
        queue = (await ask("queue"))[0]
        assert len(queue) == MANY
        assert {one["reasonCode"] for one in queue} == {"no_workers"}
        assert [one["queueId"] for one in queue] == sorted(one.name for one in store.live(PENDING))
        asked = (await ask("demand"))[0]
        assert [one["waiting"] for one in asked] == [MANY // 20] * 20
        explained = (await ask("queue/s-1999/explain"))[0]
        assert explained["queueId"] == "r1999.j.s-1999.1"
        assert explained["workers"] == []

    await on_server(tmp_path, look)


async def test_each_dispatch_is_told_its_own_reason(tmp_path: Path) -> None:
    async def look(parts: Served, ask: Ask) -> None:
        store, reasons = parts.store, parts.manager.scheduler.reasons
        store.load(worker(1, "connected"))
        held = LeaseSpec(
            run="r0", workflow="w", job="j", step="x", worker=worker(1).name, instance="i1",
            model="held", model_type="command/shell", method="execute",
        )  # fmt: skip
        status = LeaseStatus(state="active", bound_at=AT)
        store.load(Record(LEASES, "r0.j.x.1", "l", AT, held, status))
        parts.manager.scheduler.live_keys()
        calls = [CALL.model_copy(update={"model": name}) for name in ("held", "free")]
        for number in range(MANY, MANY + 400):
            store.load(
                waiting(
                    number, call=calls[number % 2], model_concurrency=number % 4 // 2,
                    placement=Placement(labels={"pool": "ab"[number % 3 % 2]}),
                    affinity=f"g{number}" if number % 5 == 0 else None,
                )
            )  # fmt: skip
        told = {
            one["queueId"]: (one["reason"], one["reasonCode"]) for one in (await ask("queue"))[0]
        }
        expected: dict[str, Reason] = {
            one.name: reasons.of_dispatch(one.spec) for one in store.live(PENDING)
        }
        assert told == {name: (one.text, one.code) for name, one in expected.items()}
        assert {"model_held", "no_match", "full"} <= {code for _, code in told.values()}

    await on_server(tmp_path, look)


# -- one question --------------------------------------------------------------------------------


class Journal:
    """Durable when the test says so."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self.waiting: list[Callable[[], None] | None] = []

    def append(self, ops: tuple[Op, ...], on_durable: Callable[[], None] | None = None) -> None:
        self.waiting.append(on_durable)

    def sync(self) -> None:
        while self.waiting:
            told = self.waiting.pop(0)
            if told is not None:
                told()


@asynccontextmanager
async def asked(
    made: Aside, make: Callable[[Pause], Any]
) -> AsyncIterator[Callable[[], Awaitable[aiohttp.ClientResponse]]]:
    """Asks a question whose answer `make` makes."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return await made.told(request, MANY, make)

    app = web.Application(middlewares=[errors_as_json])
    app.router.add_get("/", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    async with asyncio.timeout(60), listening(runner) as url, aiohttp.ClientSession(url) as http:
        yield lambda: http.get("/")


async def test_a_client_that_leaves_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "AT_ONCE", 1)
    begun, ended, jobs = threading.Event(), threading.Event(), []

    def make(pause: Pause) -> list[int]:
        jobs.append(1)
        if len(jobs) > 1:
            return [2]
        begun.set()
        try:
            while True:
                pause()
        finally:
            ended.set()

    async with asked(Aside(Store(KINDS.values(), Journal())), make) as ask:
        async with asyncio.TaskGroup() as group:
            leaving = group.create_task(ask())  # type: ignore[arg-type]
            assert await asyncio.to_thread(begun.wait, 30)
            leaving.cancel()
        assert await asyncio.to_thread(ended.wait, 30)
        assert await (await ask()).json() == [2]


async def test_a_client_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: each such client kept a whole list of tens of thousands in memory, for ever."""
    monkeypatch.setattr(aside, "READ_WITHIN_S", 0.1)
    large = ["x" * 1_000] * 20_000

    async with asked(Aside(Store(KINDS.values(), Journal())), lambda pause: list(large)) as ask:
        answer = await ask()
        assert answer.status == 200
        assert answer.connection is not None
        assert answer.connection.transport is not None
        answer.connection.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.5)
        answer.connection.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises(aiohttp.ClientError):
            await answer.read()


async def test_what_changes_meanwhile_does_not_tear_the_answer() -> None:
    journal = Journal()
    store = Store(KINDS.values(), journal)
    before = [worker(number, "connected") for number in range(300)]
    store.commit(before)
    journal.sync()
    begun, go_on = threading.Event(), threading.Event()
    listing = store.list(WORKERS)

    def make(pause: Pause) -> views.View:
        def hold() -> None:
            begun.set()
            go_on.wait(30)
            pause()

        return views.worker_list(listing, (), pause=hold)

    async with asked(Aside(store), make) as ask, asyncio.TaskGroup() as group:
        asking = group.create_task(ask())  # type: ignore[arg-type]
        assert await asyncio.to_thread(begun.wait, 30)
        store.commit(
            [one.with_spec(note="new") for one in store.live(WORKERS)[100:]],
            [(WORKERS, one.name) for one in store.live(WORKERS)[:100]],
        )
        journal.sync()
        go_on.set()
        assert await (await asking).json() == views.worker_list(before, ())


async def test_nothing_is_told_before_it_is_durable() -> None:
    journal = Journal()
    store = Store(KINDS.values(), journal)
    store.commit([worker(1)])
    made = asyncio.Event()
    loop = asyncio.get_running_loop()

    def make(pause: Pause) -> list[str]:
        loop.call_soon_threadsafe(made.set)
        return ["it is there"]

    async with asked(Aside(store), make) as ask, asyncio.TaskGroup() as group:
        asking = group.create_task(ask())  # type: ignore[arg-type]
        await made.wait()
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert not asking.done()
        journal.sync()
        answer = await asking
        assert await answer.json() == ["it is there"]
        assert DEGRADED_HEADER not in answer.headers


async def test_a_disk_that_refuses_marks_large_answers_too() -> None:
    journal = Journal()
    store = Store(KINDS.values(), journal)
    store.commit([worker(1)])
    journal.trouble = "the disk is full"
    async with asked(Aside(store), lambda pause: [{"a": 1}] * 3) as ask:
        answer = await ask()
        assert answer.headers[DEGRADED_HEADER] == "the disk is full"
        assert answer.content_type == "application/json"
        assert await answer.json() == [{"a": 1}] * 3


async def test_few_records_are_told_without_a_thread() -> None:
    made = Aside(Store(KINDS.values(), Journal()))
    request: Any = None
    here: list[int] = []

    def make(pause: Pause) -> list[int]:
        here.append(threading.get_ident())
        return []

    await made.told(request, aside.FEW, make)
    assert here == [threading.get_ident()]


def test_many_jobs_together_rest_as_long_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(aside.time, "sleep", rests.append)
    made = Aside(Store(KINDS.values(), Journal()))
    for jobs in (1, 2, 3):
        made._under_way = jobs
        made._rest(2.0)
    # Each works for 1.0, and a third of the interpreter is theirs.
    shares = [jobs / (1.0 + rest) for jobs, rest in zip((1, 2, 3), rests, strict=True)]
    assert shares == pytest.approx([1 / 3] * 3)


# -- encoding ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        {},
        [],
        [{}],
        [{"a": [{"b": 1}, {"c": [1, 2]}], "d": None, "e": "é\ud800"}, {}],
        {"first": [{"x": [[{"y": 1}]]}], "inputs": {"hosts": [{"n": 1}]}, "last": 2.5},
        {"many": [{"number": number, "text": "x" * 100} for number in range(2_000)]},
    ],
)
def test_pieces_are_the_json_of_the_view(view: Any) -> None:
    expected, pauses = json.loads(json.dumps(view)), []
    pieces = list(encoded(view, lambda: pauses.append(1)))
    assert json.loads(b"".join(pieces)) == expected
    assert all(len(piece) < 2 * aside.PIECE_BYTES for piece in pieces)
    if "many" in view:
        assert len(pauses) == 2_000 and len(pieces) > 2
        assert view["many"] == [None] * 2_000, "each is let go when it is encoded"


def test_an_item_that_is_encoded_already_goes_in_as_it_is() -> None:
    view = {"workers": [b'{"name":"a"}', b'{"name":"b"}'], "count": 2}
    assert b"".join(encoded(view, no_pause)) == (
        b'{"workers":[{"name":"a"},{"name":"b"}],"count":2}'
    )


def test_what_belongs_to_a_record_is_left_as_it_is() -> None:
    record = run("r", inputs={"hosts": [{"name": "a"}]})
    before = record.spec.model_dump_json()
    b"".join(encoded(run_views.run_view(record, (), (), ()), no_pause))
    assert record.spec.model_dump_json() == before
