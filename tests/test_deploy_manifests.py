"""The files for running swamp under systemd and on Kubernetes: their command lines really start."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from swamp.cli.app import app
from swamp.cli.durations import parse_duration

MANIFESTS = Path(__file__).parents[1] / "manifests"
UNITS = sorted((MANIFESTS / "systemd").iterdir())
FILES = sorted((MANIFESTS / "kubernetes").iterdir())
SWAMP = [sys.executable, "-m", "swamp"]
ON_DISK = "/usr/local/bin/swamp"


def unit(path: Path) -> dict[str, list[str]]:
    """The settings of a unit, by key."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def pods() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in FILES:
        for document in documents(path):
            if "template" in document.get("spec", {}):
                yield path, document["spec"]["template"]["spec"]


def command_lines() -> dict[str, list[str]]:
    """Every command line, without the program itself, by where it stands."""
    found = {}
    for path in UNITS:
        (line,) = unit(path)["ExecStart"]
        program, *arguments = shlex.split(line)
        assert program == ON_DISK
        found[path.name] = arguments
    for path, pod in pods():
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            # As a list, never through a shell: signals reach swamp itself.
            program, *arguments = container["command"]
            assert program == "swamp"
            assert "args" not in container
            found[f"{path.name}:{container['name']}"] = arguments
    return found


LINES = command_lines()


def of(*command: str) -> list[str]:
    return [where for where, line in LINES.items() if tuple(line[: len(command)]) == command]


def test_there_is_something_for_both() -> None:
    assert len(of("serve")) == 2
    assert len(of("worker", "connect")) == 3


@pytest.mark.parametrize("where", LINES)
def test_every_flag_exists(where: str) -> None:
    command: Any = typer.main.get_command(app)
    context = None
    line = list(LINES[where])
    while hasattr(command, "commands"):
        context = command.context_class(command, info_name="swamp", parent=context)
        name = line.pop(0)
        command = command.commands[name]
    # Parses everything, runs nothing, and raises for what it does not know.
    command.make_context(name, line, parent=context)


# -- they really start ---------------------------------------------------------------------------


class Started:
    """A process whose JSON lines are read one after the other."""

    def __init__(self, line: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [*SWAMP, *line], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def until(self, found: Callable[[dict[str, Any]], bool]) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if found(json.loads(text)):
                return
        pytest.fail(f"it ended with {self.process.wait()}")

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(15)


class Place:
    """A repository, and the paths of the manifests turned into paths here."""

    def __init__(self, base: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = str(probe.getsockname()[1])
        self.base = base
        self.env = {key: value for key, value in os.environ.items() if key[:6] != "SWAMP_"}
        self.started: list[Started] = []
        (where,) = of("init")
        self.run(*self.here(LINES[where]))

    def here(self, line: list[str]) -> list[str]:
        swaps = {
            "/srv/fleet": str(self.base / "fleet"),
            "/repository": str(self.base / "fleet"),
            "9090": self.port,
            "ws://swamp:9090": f"ws://127.0.0.1:{self.port}",
            "%C/swamp-worker-%i": str(self.base / "cache"),
            "/cache": str(self.base / "cache"),
        }
        return [swaps.get(part, part) for part in line]

    def run(self, *line: str) -> str:
        return subprocess.run(
            [*SWAMP, *line], env=self.env, check=True, capture_output=True, text=True
        ).stdout

    def start(self, where: str, **env: str) -> Started:
        made = Started(self.here(LINES[where]), self.env | env)
        self.started.append(made)
        return made

    def serve(self, where: str) -> Started:
        server = self.start(where)
        server.until(lambda line: line.get("status") == "listening")
        return server


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for one in reversed(made.started):
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()


@pytest.mark.parametrize("where", of("serve"))
def test_a_server_starts_is_healthy_and_stops(place: Place, where: str) -> None:
    import urllib.request

    server = place.serve(where)
    with urllib.request.urlopen(f"http://127.0.0.1:{place.port}/health", timeout=10) as answer:
        assert (answer.status, json.load(answer)["status"]) == (200, "ok")
    assert server.stop() == 0


@pytest.mark.parametrize("where", of("worker", "connect"))
def test_a_worker_starts_and_drains(place: Place, where: str) -> None:
    place.serve("swamp-serve.service")
    made = place.run(
        "worker", "token", "create", "ci", "--duration", "1h", "--max-enrollments", "unlimited",
        "--repo-dir", str(place.base / "fleet"), "--json",
    )  # fmt: skip
    # What the unit's EnvironmentFile and the pod's secret bring.
    env = {"SWAMP_WORKER_TOKEN": json.loads(made)["token"], "SWAMP_WORKER_LABELS": "pool=gpu"}
    if "ws://swamp:9090" not in LINES[where]:
        env["SWAMP_ORCHESTRATOR_URL"] = f"ws://127.0.0.1:{place.port}"
    worker = place.start(where, **env)
    worker.until(lambda line: line.get("kind") == "enrolled")
    assert worker.stop() == 0


# -- systemd -------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_takes_the_unit(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name.replace("@", "@one")
    copy.write_text(path.read_text().replace(ON_DISK, "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True
    )
    about = [line for line in done.stderr.splitlines() if copy.name in line]
    assert (done.returncode, about) == (0, [])


def test_a_unit_gives_the_worker_time_to_drain() -> None:
    settings = unit(MANIFESTS / "systemd" / "swamp-worker@.service")
    line = LINES["swamp-worker@.service"]
    drain_s = parse_duration(line[line.index("--drain-timeout") + 1])
    (stop,) = settings["TimeoutStopSec"]
    assert parse_duration(stop.replace("min", "m")) > drain_s
    # Only the worker is told to stop, not its runners.
    assert settings["KillMode"] == ["mixed"]
    assert not any("--token" in part for part in line)


# -- Kubernetes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_holds_objects_with_a_name(path: Path) -> None:
    assert path.suffix == ".yaml"
    for document in documents(path):
        assert document["apiVersion"]
        assert document["kind"]
        assert document["metadata"].get("name") or document["metadata"]["generateName"]


def test_there_is_never_a_second_server() -> None:
    claim, deployment, service = documents(MANIFESTS / "kubernetes" / "serve.yaml")
    spec = deployment["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    pod = spec["template"]["spec"]
    (volume,) = pod["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert service["spec"]["selector"] == spec["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 9090}]
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}


def test_workers_on_kubernetes_get_a_secret_and_time_to_drain() -> None:
    workers = [(path, pod) for path, pod in pods() if path.name.startswith("workers-")]
    assert len(workers) == 2
    for _, pod in workers:
        (container,) = pod["containers"]
        line = container["command"]
        drain_s = parse_duration(line[line.index("--drain-timeout") + 1])
        assert pod["terminationGracePeriodSeconds"] > drain_s
        (token,) = container["env"]
        assert token["name"] == "SWAMP_WORKER_TOKEN"
        assert set(token["valueFrom"]) == {"secretKeyRef"}
        assert "--token" not in line


def test_every_file_is_in_the_table_of_the_readme() -> None:
    readme = (MANIFESTS / "README.md").read_text()
    paths = [path.relative_to(MANIFESTS).as_posix() for path in [*UNITS, *FILES]]
    assert [path for path in paths if f"]({path})" not in readme] == []
