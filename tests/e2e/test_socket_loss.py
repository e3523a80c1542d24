"""Losing the socket loses nothing: however it is lost, at every stage of a dispatch.

Five workers sit behind proxies, one for each kind of loss, and lose their sockets at the same
moment. Half-open sockets are noticed by silence alone, which the short grace window keeps short.
"""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness import Proc, Repo, opened
from proxy import Proxy

LOSSES: dict[str, Callable[[Proxy], None]] = {
    "cut": Proxy.cut,
    "reset": Proxy.reset,
    "half-open": lambda proxy: proxy.freeze(),
    "half-open-up": lambda proxy: proxy.freeze("up"),
    "half-open-down": lambda proxy: proxy.freeze("down"),
}
LINES = 300


@dataclass
class Fleet:
    """A server, and a worker behind a proxy for each kind of loss."""

    repo: Repo
    server: Proc
    proxies: dict[str, Proxy]
    workers: dict[str, Proc]
    stages: list[str] = field(default_factory=list)

    def start(self, stage: str) -> Any:
        """A run with one step for each worker, which waits for `go` between its lines."""
        self.stages.append(stage)
        steps = ""
        for loss in LOSSES:
            command = (
                f"echo $$ >> {self.path(stage, loss, 'started')}; echo first; touch "
                f"{self.path(stage, loss, 'half')}; until [ -e {self.path(stage, 'go')} ];"
                f" do sleep 0.02; done; seq {LINES}; echo last >&2"
            )
            steps += (
                f"      - name: {loss}\n        labels: {{pool: {loss}}}\n"
                f"        task: {{type: model_method, modelType: command/shell, modelName:"
                f" {stage}-{loss}, methodName: execute, inputs: {{run: {json.dumps(command)}}}}}\n"
            )
        self.repo.write(
            f"workflows/{stage}.yaml",
            f"name: {stage}\njobs:\n  - name: job\n    steps:\n{steps}",
        )
        return self.repo.start("workflow", "run", stage, "--server", self.repo.url, "--json")

    def path(self, *parts: str) -> Path:
        return self.repo.base / "-".join(parts)

    def go(self, stage: str) -> None:
        self.path(stage, "go").touch()

    def all_half(self, stage: str) -> None:
        """Wait until every step has said its first line."""
        self.repo.until(lambda: all(self.path(stage, loss, "half").exists() for loss in LOSSES))

    def leases(self, stage: str) -> list[str]:
        records = self.repo.records("leases").values()
        return [r["status"]["state"] for r in records if r["spec"]["workflow"] == stage]

    def freeze(self, direction: Any) -> None:
        for proxy in self.proxies.values():
            proxy.freeze(direction)

    def lose_all(self) -> None:
        for loss, lose in LOSSES.items():
            lose(self.proxies[loss])

    def all_back(self, before: dict[str, int]) -> None:
        """Wait until every worker has enrolled once more."""
        for loss, worker in self.workers.items():
            worker.lines.kind("enrolled", before[loss] + 1)

    def enrolled(self) -> dict[str, int]:
        return {loss: w.lines.kinds().count("enrolled") for loss, w in self.workers.items()}

    def check(self, stage: str, run: Any, episodes: int) -> None:
        """Every step: done, started once, its output complete and in order, no line twice."""
        out, _ = run.communicate(timeout=60)
        view = json.loads(out[out.index("{\n") :])
        assert view["status"] == "succeeded", view
        took = {step["name"]: step["episodes"] for step in view["jobs"][0]["steps"]}
        assert took == dict.fromkeys(LOSSES, episodes)
        events = events_of(self.repo, view["id"])
        for loss in LOSSES:
            started = self.path(stage, loss, "started").read_text().split()
            assert len(started) == 1, f"{loss}: started once"
            assert said(events, loss, "stdout") == ["first", *map(str, range(1, LINES + 1))]
            assert said(events, loss, "stderr") == ["last"]
        ends = [event["step"] for event in events if event["kind"] == "step_completed"]
        assert sorted(ends) == sorted(LOSSES)


def events_of(repo: Repo, run: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{repo.url}/api/v1/runs/{run}/events?after=0") as answer:
        return [json.loads(line) for line in answer if line.strip()]


def said(events: list[dict[str, Any]], step: str, stream: str) -> list[str]:
    mine = [e for e in events if e["kind"] == "output" and e["step"] == step]
    return "".join(e["text"] for e in mine if e["stream"] == stream).splitlines()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with opened(tmp_path_factory.mktemp("fleet")) as repo:
        server = repo.serve("--grace", "5s")
        token = repo.token("fleet", "--max-enrollments", "unlimited")
        proxies = {loss: Proxy(repo.port) for loss in LOSSES}
        workers = {}
        for loss, proxy in proxies.items():
            (repo.base / f"{loss}.token").write_text(token)
            label = ("--label", f"pool={loss}")
            workers[loss] = repo.worker(loss, *label, wait=False, port=proxy.port)
        for worker in workers.values():
            worker.lines.kind("enrolled")
        fleet = Fleet(repo, server, proxies, workers)
        try:
            yield fleet
        finally:
            # Steps of a test that failed would hold up the end of their workers.
            for stage in fleet.stages:
                fleet.go(stage)
            repo.close()
            for proxy in proxies.values():
                proxy.close()


@pytest.fixture(autouse=True)
def open_network(request: pytest.FixtureRequest) -> Iterator[None]:
    """What froze in one test is gone in the next."""
    yield
    if "fleet" in request.fixturenames:
        for proxy in request.getfixturevalue("fleet").proxies.values():
            proxy.thaw()


def test_before_the_dispatch_has_arrived(fleet: Fleet) -> None:
    fleet.freeze("down")
    run = fleet.start("offer")
    fleet.repo.until(lambda: fleet.leases("offer") == ["bound"] * len(LOSSES), "the leases")
    before = fleet.enrolled()
    fleet.lose_all()
    fleet.go("offer")
    fleet.all_back(before)
    # Nothing had started, so nothing is taken up: the step waits anew, and starts once.
    fleet.check("offer", run, episodes=2)


def test_before_the_accept_has_arrived(fleet: Fleet) -> None:
    fleet.freeze("up")
    run = fleet.start("accept")
    fleet.all_half("accept")
    fleet.repo.until(lambda: fleet.leases("accept") == ["bound"] * len(LOSSES), "the leases")
    before = fleet.enrolled()
    fleet.lose_all()
    fleet.all_back(before)
    fleet.go("accept")
    fleet.check("accept", run, episodes=1)


def test_during_output(fleet: Fleet) -> None:
    run = fleet.start("output")
    fleet.all_half("output")
    before = fleet.enrolled()
    fleet.lose_all()
    # The rest is written while nobody is connected.
    fleet.go("output")
    fleet.all_back(before)
    fleet.check("output", run, episodes=1)


def test_while_the_result_is_under_way(fleet: Fleet) -> None:
    run = fleet.start("result")
    fleet.all_half("result")
    fleet.freeze("up")
    fleet.go("result")
    for worker in fleet.workers.values():
        worker.lines.kind("dispatch_finished", worker.lines.kinds().count("dispatch_started"))
    before = fleet.enrolled()
    fleet.lose_all()
    fleet.all_back(before)
    fleet.check("result", run, episodes=1)


def test_while_the_acknowledgement_is_under_way(fleet: Fleet) -> None:
    run = fleet.start("ack")
    fleet.all_half("ack")
    fleet.freeze("down")
    fleet.go("ack")
    fleet.repo.until(lambda: fleet.leases("ack") == ["completed"] * len(LOSSES), "the results")
    before = fleet.enrolled()
    fleet.lose_all()
    fleet.all_back(before)
    fleet.check("ack", run, episodes=1)


def test_a_worker_that_stood_still(fleet: Fleet) -> None:
    run = fleet.start("stopped")
    fleet.all_half("stopped")
    before = fleet.enrolled()
    for worker in fleet.workers.values():
        worker.process.send_signal(signal.SIGSTOP)
    fleet.repo.until(
        lambda: (
            {r["status"]["state"] for r in fleet.repo.records("workers").values()}
            == {"disconnected"}
        ),
        "the server to miss them",
    )
    # The runners go on meanwhile, as far as their pipes take it.
    fleet.go("stopped")
    for worker in fleet.workers.values():
        worker.process.send_signal(signal.SIGCONT)
    fleet.all_back(before)
    fleet.check("stopped", run, episodes=1)


def test_a_server_that_stood_still(fleet: Fleet) -> None:
    run = fleet.start("hung")
    fleet.all_half("hung")
    before = fleet.enrolled()
    lost = {loss: w.lines.kinds().count("disconnected") for loss, w in fleet.workers.items()}
    fleet.server.process.send_signal(signal.SIGSTOP)
    fleet.go("hung")
    for loss, worker in fleet.workers.items():
        worker.lines.kind("disconnected", lost[loss] + 1)
    fleet.server.process.send_signal(signal.SIGCONT)
    fleet.all_back(before)
    fleet.check("hung", run, episodes=1)


# -- for longer than the grace window ------------------------------------------------------------


def _placed(repo: Repo, name: str, pool: str, command: str, outputs: str = "") -> None:
    """A workflow of one step on `pool`; each start leaves the pid of its shell."""
    run = json.dumps(f"echo $$ >> {repo.base / name}; {command}")
    repo.write(
        f"workflows/{name}.yaml",
        f"name: {name}\nlabels: {{pool: {pool}}}\njobs:\n  - name: job\n    steps:\n"
        f"      - name: step\n        task: {{type: model_method, modelType: command/shell,"
        f" modelName: {name}, methodName: execute, inputs: {{run: {run}{outputs}}}}}\n",
    )


def _start(repo: Repo, *names: str) -> list[Any]:
    """The runs, once the first attempt of each has started."""
    command = ("workflow", "run")
    runs = [repo.start(*command, name, "--server", repo.url, "--json") for name in names]
    begun = repo.base.joinpath
    repo.until(
        lambda: all(begun(name).exists() and begun(name).read_text() for name in names),
        "the first attempts",
    )
    return runs


def _step(run: Any) -> dict[str, Any]:
    out, _ = run.communicate(timeout=60)
    step: dict[str, Any] = json.loads(out[out.index("{\n") :])["jobs"][0]["steps"][0]
    return step


def _pids(repo: Repo, name: str) -> list[int]:
    return [int(line) for line in (repo.base / name).read_text().split()]


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _is_zombie(pid: int) -> bool:
    """Whether it has ended, and its parent has not heard."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


PUT = 'echo 1 | curl -fsS -T - -H "Authorization: Bearer $SWAMP_DATA_TOKEN" $SWAMP_DATA_URL/report'


def test_a_link_that_stays_away_costs_the_attempt(repo: Repo, proxy: Proxy) -> None:
    """The unwritten step starts elsewhere, after its first runner has died; the other one fails."""
    wrote = repo.base / "wrote"
    first_only = f"[ $(wc -l < {repo.base / 'unwritten'}) = 2 ] || sleep 60"
    _placed(repo, "unwritten", "shared", f"{first_only}; echo over")
    written = f"{PUT} && touch {wrote}; sleep 60"
    _placed(repo, "written", "shared", written, ", outputs: [report]")
    repo.serve("--grace", "3s")
    first = repo.worker("w1", "--label", "pool=shared", "--concurrency", "2", port=proxy.port)
    runs = _start(repo, "unwritten", "written")
    repo.until(wrote.exists, "the output")
    second = repo.worker("w2", "--label", "pool=shared")
    proxy.refuse()
    proxy.reset()
    second.lines.kind("dispatch_started")
    assert not _alive(_pids(repo, "unwritten")[0]), "the worker's own window ends first"
    unwritten, lost = map(_step, runs)
    assert (unwritten["status"], unwritten["worker"], unwritten["episodes"]) == (
        "succeeded", "w2", 2,
    )  # fmt: skip
    assert (lost["status"], lost["episodes"]) == ("failed", 1)
    assert "write-then-drop" in lost["error"]
    assert len(_pids(repo, "written")) == 1
    assert [pid for pid in _pids(repo, "written") if _alive(pid)] == []
    assert first.lines.kinds("stopped") == [], "it goes on trying"


def test_a_worker_that_comes_back_too_late(repo: Repo) -> None:
    """Its result is refused: what the second worker did counts. Its guard has ended its runner."""
    go = repo.base / "go"
    told = f"echo attempt $(wc -l < {repo.base / 'done'})"
    _placed(repo, "done", "shared", f"until [ -e {go} ]; do sleep 0.02; done; {told}")
    first_only = f"[ $(wc -l < {repo.base / 'runs'}) = 2 ] || sleep 60"
    _placed(repo, "runs", "shared", f"{first_only}; echo over")
    repo.serve("--grace", "2s")
    first = repo.worker("w1", "--label", "pool=shared", "--concurrency", "2")
    runs = _start(repo, "done", "runs")
    first.process.send_signal(signal.SIGSTOP)
    repo.worker("w2", "--label", "pool=shared", "--concurrency", "2")
    go.touch()
    steps = [_step(run) for run in runs]
    assert [(s["status"], s["worker"], s["episodes"]) for s in steps] == [
        ("succeeded", "w2", 2),
        ("succeeded", "w2", 2),
    ]
    still = _pids(repo, "runs")[0]
    repo.until(lambda: _is_zombie(still), "the guard of the worker that stands still")
    first.process.send_signal(signal.SIGCONT)
    first.lines.kind("enrolled", 2)
    first.lines.kind("dispatch_finished", 2)
    assert not _alive(still)
    after = repo.json("run", "list")["runs"]
    assert {run["status"] for run in after} == {"succeeded"}
    for run in after:
        events = events_of(repo, run["runId"])
        assert [e["kind"] for e in events].count("step_completed") == 1
        assert said(events, "step", "stdout") in (["attempt 2"], ["over"])
    repo.shell_workflow("next", {"step": "true"})
    path = repo.path / "workflows/next.yaml"
    path.write_text(path.read_text().replace("pool: worker", "pool: shared"))
    repo.swamp("workflow", "run", "next")


def test_what_is_cancelled_while_its_worker_is_away_keeps_its_model(repo: Repo) -> None:
    """The run ends at once; who wants the model waits until the worker has ended what it ran."""
    _placed(repo, "first", "shared", "exec sleep 60")
    server = repo.serve("--grace", "30s")
    worker = repo.worker("w1", "--label", "pool=shared", "--concurrency", "2")
    (run,) = _start(repo, "first")
    (pid,) = _pids(repo, "first")
    worker.process.send_signal(signal.SIGSTOP)
    server.terminate(signal.SIGKILL)
    server = repo.serve("--grace", "30s")
    repo.swamp("run", "cancel", repo.json("run", "list")["runs"][0]["runId"])
    step = _step(run)
    assert step["status"] == "cancelled"
    assert step["error"] == "cancelled while worker 'w1' was away"
    # It holds over a restart.
    server.terminate(signal.SIGKILL)
    repo.serve("--grace", "30s")
    repo.worker("w2", "--label", "pool=shared")
    _placed(repo, "next", "shared", f"kill -0 {pid} && echo beside || echo alone")
    path = repo.path / "workflows/next.yaml"
    path.write_text(path.read_text().replace("modelName: next", "modelName: first"))
    following = repo.start("workflow", "run", "next", "--server", repo.url)
    assert following.stdout is not None
    held = "held by first/step on w1 (cancelled while that is away)"
    assert any(held in line for line in following.stdout)
    assert _alive(pid)
    worker.process.send_signal(signal.SIGCONT)
    following.communicate(timeout=60)
    assert following.returncode == 0
    runs = repo.json("run", "list")["runs"]
    told = [said(events_of(repo, one["runId"]), "step", "stdout") for one in runs]
    assert ["alone"] in told


def test_a_server_that_stood_still_for_too_long(repo: Repo) -> None:
    """The worker gave up before; the step starts anew when the server is back, not earlier."""
    first_only = f"[ $(wc -l < {repo.base / 'long'}) = 2 ] || sleep 60"
    _placed(repo, "long", "shared", f"{first_only}; echo over")
    server = repo.serve("--grace", "2s")
    worker = repo.worker("w1", "--label", "pool=shared")
    (run,) = _start(repo, "long")
    server.process.send_signal(signal.SIGSTOP)
    worker.lines.kind("dispatch_finished")
    assert len(_pids(repo, "long")) == 1
    assert not _alive(_pids(repo, "long")[0])
    server.process.send_signal(signal.SIGCONT)
    step = _step(run)
    assert (step["status"], step["episodes"]) == ("succeeded", 2)
