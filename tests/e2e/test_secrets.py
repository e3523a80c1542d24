"""Secrets: where they are used they work, everywhere else they are `***` or an expression."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from harness import SWAMP, Repo

from swamp.protocol import PROTOCOL_VERSION, frames_in

SECRET = "hunter2-Zx9+q/8 Wm\"'$x"
OTHER = "other-secret-77123"
ASK = "${{ vault.get('main', 'KEY') }}"


def put(repo: Repo, key: str, value: str) -> None:
    subprocess.run(
        [*SWAMP, "vault", "put", "main", key],
        cwd=repo.path,
        env=repo.env,
        input=value.encode() + b"\n",
        check=True,
        capture_output=True,
    )


def vault(repo: Repo) -> None:
    repo.swamp("vault", "create", "local_encryption", "main")
    put(repo, "KEY", SECRET)
    put(repo, "OTHER", OTHER)


def workflow(repo: Repo, name: str, inputs: dict[str, Any], placed: bool = True) -> None:
    task = {
        "type": "model_method",
        "modelType": "command/shell",
        "modelName": f"{name}-model",
        "methodName": "execute",
        "inputs": inputs,
    }
    document: dict[str, Any] = {
        "name": name,
        "jobs": [{"name": "job", "steps": [{"name": "step", "task": task}]}],
    }
    if placed:
        document["labels"] = {"pool": "worker"}
    repo.write(f"workflows/{name}.yaml", json.dumps(document))


def leaks(repo: Repo, *values: str) -> list[str]:
    """Files below the test's folder that hold a value, as it is or in base64."""
    forms = [
        form for value in values for form in (value.encode(), json.dumps(value)[1:-1].encode())
    ]
    forms += [base64.b64encode(value.encode())[:20] for value in values]
    found = []
    for path in repo.base.rglob("*"):
        with contextlib.suppress(OSError):
            data = path.read_bytes() if path.is_file() and not path.is_socket() else b""
            if any(form in data for form in forms):
                found.append(str(path))
    return found


def command_lines() -> bytes:
    seen = b""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                seen += (entry / "cmdline").read_bytes()
    return seen


def step(repo: Repo, name: str) -> dict[str, Any]:
    steps = repo.records("steps").values()
    return next(one for one in steps if one["spec"]["workflow"] == name)


def wait_for(go: Path) -> str:
    return f"until [ -e {go} ]; do sleep 0.02; done"


LEAK = (
    'printf %s "$K"; echo; printf %s "$K" | base64; printf hunt; sleep 0.1; printf %s "${K#hunt}"'
)


def test_a_secret_reaches_the_step_and_shows_nowhere(repo: Repo) -> None:
    vault(repo)
    go = repo.base / "go"
    check = f'[ "$K" = "$(cat {repo.base}/../expected)" ] && [ "{ASK}" = "$K" ] && echo same'
    (repo.base.parent / "expected").write_text(SECRET)
    run = f'{check}; {LEAK}; echo "x{ASK}" >&2; {wait_for(go)}; exit 3'
    workflow(repo, "leaky", {"run": run, "env": {"K": ASK}})
    workflow(repo, "own", {"run": f"{check}; {LEAK}", "env": {"K": ASK}}, placed=False)
    repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    running = repo.start("workflow", "run", "leaky", "--server", repo.url)
    repo.until(lambda: bool(list(repo.path.glob("datastore/observed/leases/*"))), "a lease")
    for _ in range(20):
        assert SECRET.encode() not in command_lines()
    go.touch()
    said, _ = running.communicate(timeout=30)
    assert running.returncode == 1
    repo.swamp("workflow", "run", "own", "--server", repo.url)
    for name in ("leaky", "own"):
        outcome = step(repo, name)["status"]["outcome"]
        assert outcome["stdout"].startswith("same\n***\n"), outcome
        assert outcome["stdout"].count("***") == 3
        assert step(repo, name)["spec"]["call"]["arguments"]["env"] == {"K": ASK}
    assert SECRET not in said
    assert next(iter(repo.records("pending").values()))["spec"]["call"]["arguments"]["run"] == run
    for proc in reversed(repo.procs):
        proc.terminate()
    assert leaks(repo, SECRET, OTHER) == []


def test_masking_goes_on_after_a_restart_of_the_server(repo: Repo) -> None:
    vault(repo)
    go = repo.base / "go"
    workflow(repo, "long", {"run": f"echo up; {wait_for(go)}; {LEAK}", "env": {"K": ASK}})
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    running = repo.start("workflow", "run", "long", "--server", repo.url)
    repo.until(
        lambda: any(b'"up' in path.read_bytes() for path in repo.path.glob(".swamp/events/*")),
        "the step's first words",
    )
    server.process.kill()
    server.wait()
    repo.serve()
    go.touch()
    assert running.wait(30) == 0
    assert step(repo, "long")["status"]["outcome"]["stdout"].count("***") == 3
    assert leaks(repo, SECRET) == []


def test_no_output_takes_a_secret_also_after_a_restart(repo: Repo) -> None:
    vault(repo)
    go = repo.base / "go"
    put_it = f'printf "x$K" | {sys.executable} -m swamp data put result -'
    inputs = {"run": f"echo up; {wait_for(go)}; {put_it}", "env": {"K": ASK}, "outputs": ["result"]}
    workflow(repo, "long", inputs)
    server = repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    running = repo.start("workflow", "run", "long", "--server", repo.url)
    repo.until(
        lambda: any(b'"up' in path.read_bytes() for path in repo.path.glob(".swamp/events/*")),
        "the step's first words",
    )
    server.process.kill()
    server.wait()
    repo.serve()
    go.touch()
    assert running.wait(30) == 1
    outcome = step(repo, "long")["status"]["outcome"]
    assert outcome["exitCode"] == 1
    assert outcome["stderr"] == (
        "Error: output 'result' holds the secret 'KEY' of vault 'main'; outputs are not for"
        " secrets\n"
    )
    assert leaks(repo, SECRET) == []


def test_what_is_not_there_fails_the_step_before_it_is_dispatched(repo: Repo) -> None:
    vault(repo)
    asked = {
        "nokey": ("${{ vault.get('main', 'NOKEY') }}", "vault 'main' has no secret 'NOKEY'"),
        "novault": ("${{ vault.get('nope', 'KEY') }}", "no vault 'nope' (vaults: main)"),
        "quoted": (f"echo '{ASK}'", "stands in single quotes"),
    }
    repo.serve()
    for name, (run, words) in asked.items():
        workflow(repo, name, {"run": run})
        repo.swamp("workflow", "run", name, "--server", repo.url, code=1)
        assert words in step(repo, name)["status"]["error"]
    assert repo.records("pending") == {}


def test_a_secret_that_goes_while_its_step_waits_fails_the_step(repo: Repo) -> None:
    vault(repo)
    workflow(repo, "late", {"run": 'echo "$K"', "env": {"K": ASK}})
    repo.serve()
    running = repo.start("workflow", "run", "late", "--server", repo.url)
    repo.until(lambda: bool(repo.records("pending")), "a waiting step")
    repo.swamp("vault", "rm", "main", "KEY")
    worker = repo.worker("w1", "--label", "pool=worker")
    assert running.wait(30) == 1
    assert "vault 'main' has no secret 'KEY'" in step(repo, "late")["status"]["error"]
    assert "dispatch_started" not in worker.lines.kinds()


def test_inputs_and_outputs_cannot_ask_for_a_secret(repo: Repo) -> None:
    vault(repo)
    document = {
        "name": "asked",
        "inputs": {"properties": {"x": {"type": "string"}}},
        "jobs": [
            {
                "name": "job",
                "steps": [
                    {
                        "name": "step",
                        "task": {
                            "type": "model_method",
                            "modelType": "command/shell",
                            "modelName": "m",
                            "methodName": "execute",
                            "inputs": {"run": "env", "env": {"X": "${{ inputs.x }}"}},
                        },
                    }
                ],
            }
        ],
    }
    repo.write("workflows/asked.yaml", json.dumps(document))
    repo.swamp("workflow", "run", "asked", "--input", f"x={ASK}", code=1)
    assert "asks for a secret" in step(repo, "asked")["status"]["error"]


def test_the_server_masks_what_a_worker_lets_through(repo: Repo) -> None:
    """A worker that masks nothing, spoken by hand; it is told the step's own secrets alone."""
    vault(repo)
    workflow(repo, "raw", {"run": 'echo "$K"', "env": {"K": ASK}})
    repo.serve()
    token = repo.token("w1")
    running = repo.start("workflow", "run", "raw", "--server", repo.url)
    frame = asyncio.run(leaky_worker(f"ws://127.0.0.1:{repo.port}", token))
    assert running.wait(30) == 1
    assert frame["secrets"] == [SECRET]
    assert frame["call"]["arguments"]["env"] == {"K": SECRET}
    assert frame["credential"].startswith(frame["dispatch"])
    status = step(repo, "raw")["status"]
    assert status["outcome"]["stdout"] == "got ***"
    assert status["error"] == "died of ***"
    assert leaks(repo, SECRET, frame["credential"]) == []
    text = urllib.request.urlopen(f"{repo.url}/api/v1/runs/{frame['run']}/events").read().decode()
    assert '"text":"got ***"' in text
    assert yaml.safe_load((next(repo.path.glob("datastore/history/raw/*.yaml"))).read_text())


async def leaky_worker(url: str, token: str) -> dict[str, Any]:
    """Take one dispatch and tell all; the dispatch's frame."""
    async with aiohttp.ClientSession() as http, http.ws_connect(url) as ws:
        hello = {
            "type": "enroll", "protocol": PROTOCOL_VERSION, "version": "0", "token": token,
            "instance": "i", "machine": "m", "platform": "linux", "arch": "x86_64",
            "labels": {"pool": "worker"}, "capacity": 1,
        }  # fmt: skip
        await ws.send_json(hello)
        frame = await heard(ws, "dispatch")
        of = {"dispatch": frame["dispatch"]}
        got = f"got {frame['secrets'][0]}"
        await ws.send_json({"type": "accepted", **of})
        await ws.send_json({"type": "output", **of, "seq": 1, "stream": "stdout", "text": got})
        data = base64.b64encode(b"\xff" + frame["credential"].encode()).decode()
        await ws.send_json({"type": "output", **of, "seq": 2, "stream": "stdout", "data": data})
        outcome = {
            "ok": False, "reason": "failed", "exitCode": 1, "stdout": got,
            "error": f"died of {frame['secrets'][0]}",
        }  # fmt: skip
        await ws.send_json({"type": "result", **of, "outcome": outcome})
        await heard(ws, "ack")
        return frame


async def heard(ws: aiohttp.ClientWebSocketResponse, kind: str) -> dict[str, Any]:
    """The next frame of that kind."""
    while True:
        for text in frames_in(await ws.receive_str(timeout=20)):
            frame: dict[str, Any] = json.loads(text)
            if frame["type"] == kind:
                return frame
