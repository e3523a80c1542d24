"""Outputs of steps: put with curl from real steps, read by later ones, safe against kills."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
import signal
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Repo

CURL = 'curl -fsS -H "Authorization: Bearer $SWAMP_DATA_TOKEN"'
HERE = ("--label", "pool=worker")


def workflow(repo: Repo, name: str, steps: list[dict[str, Any]], placed: bool = True) -> None:
    """A workflow whose steps run one after the other: name, run, outputs, inputs."""
    listed = []
    for number, step in enumerate(steps):
        task = {
            "type": "model_method",
            "modelType": "command/shell",
            "modelName": step.get("model", f"{name}-{step['name']}"),
            "methodName": "execute",
            "inputs": {
                key: step[key] for key in ("run", "outputs", "env", "ignoreExitCode") if key in step
            },
        }
        one: dict[str, Any] = {"name": step["name"], "task": task}
        if number and not step.get("free"):
            before = steps[number - 1]["name"]
            one["dependsOn"] = [{"step": before, "condition": {"type": "succeeded"}}]
        listed.append(one)
    document: dict[str, Any] = {"name": name, "jobs": [{"name": "job", "steps": listed}]}
    if placed:
        document["labels"] = {"pool": "worker"}
    repo.write(f"workflows/{name}.yaml", json.dumps(document))


def steps_of(repo: Repo, name: str) -> dict[str, dict[str, Any]]:
    records = repo.records("steps").values()
    return {
        one["spec"]["step"]: one["status"] for one in records if one["spec"]["workflow"] == name
    }


def stored(repo: Repo) -> list[Path]:
    """Every file with bytes of an output, whole or not."""
    # Folders of the server's come and go meanwhile, which `rglob` does not bear.
    walk = os.walk(repo.path / ".swamp" / "data")
    return [Path(folder, "raw") for folder, _, files in walk if "raw" in files]


def whole_of(repo: Repo) -> list[Path]:
    """Those whose upload has ended."""
    return [path for path in stored(repo) if ".incoming" not in path.parts]


def test_a_step_puts_and_a_later_one_reads(repo: Repo) -> None:
    workflow(
        repo,
        "chain",
        [
            {
                "name": "first",
                "outputs": ["hosts", "log"],
                "run": f"""printf '{{"list": ["b", "a"]}}' | {CURL} -T - $SWAMP_DATA_URL/hosts
                    echo one line > log; {CURL} -T log $SWAMP_DATA_URL/log
                    echo more | {CURL} -T - $SWAMP_DATA_URL/log""",
            },
            {
                "name": "second",
                "run": 'echo "$HOST and $LOG and $OLD"',
                "env": {
                    "HOST": "${{ data.latest('chain-first', 'hosts').list[0] }}",
                    "LOG": "${{ data.latest('chain-first', 'log') }}",
                    "OLD": "${{ data.version('chain-first', 'log', 1) }}",
                },
            },
        ],
    )
    repo.serve()
    repo.worker("w1", *HERE)
    repo.swamp("workflow", "run", "chain", "--server", repo.url)
    steps = steps_of(repo, "chain")
    assert steps["second"]["outcome"]["stdout"] == "b and more\n and one line\n\n"
    assert steps["first"]["outputs"] == [
        {"name": "hosts", "version": 1, "size": 20},
        {"name": "log", "version": 1, "size": 9},
        {"name": "log", "version": 2, "size": 5},
    ]
    leases = {one["spec"]["step"]: one["status"] for one in repo.records("leases").values()}
    assert "wroteAt" in leases["first"]
    assert "wroteAt" not in leases["second"], "output on stdout is no write"
    for proc in reversed(repo.procs):
        proc.terminate()
    story = next((repo.path / "datastore/history/chain").glob("*.yaml")).read_text()
    assert '"hosts"' in story or "hosts" in story
    # Without a server, people read the files.
    assert repo.swamp("data", "get", "chain-first", "log", "--version", "1").stdout == "one line\n"
    shown = repo.json("data", "get", "chain-first", "hosts")
    assert shown["content"] == {"list": ["b", "a"]}
    assert shown["checksum"] == hashlib.sha256(b'{"list": ["b", "a"]}').hexdigest()
    listed = repo.json("data", "list", "chain-first")
    assert [(item["name"], item["version"]) for item in listed["groups"][0]["items"]] == [
        ("hosts", 1),
        ("log", 2),
    ]
    versions = repo.json("data", "versions", "chain-first", "log")["versions"]
    assert [(one["version"], one["isLatest"]) for one in versions] == [(2, True), (1, False)]


def test_a_step_on_the_server_itself_puts_too(repo: Repo) -> None:
    put = f"{CURL} -T -"
    workflow(
        repo,
        "own",
        [{"name": "one", "outputs": ["x"], "run": f"echo hi | {put} $SWAMP_DATA_URL/x"}],
        placed=False,
    )
    repo.swamp("workflow", "run", "own")
    assert repo.swamp("data", "get", "own-one", "x").stdout == "hi\n"
    python = shlex.quote(sys.executable)
    command = f"echo '{{}}' > f.json; {python} -m swamp data put report f.json --json"
    refused = f"head -c 5000000 /dev/zero | {python} -m swamp data put nosuch -"
    workflow(
        repo,
        "command",
        [{"name": "one", "outputs": ["report"], "run": f"{command}; {refused}"}],
        placed=False,
    )
    repo.swamp("workflow", "run", "command", code=1)
    outcome = steps_of(repo, "command")["one"]["outcome"]
    assert json.loads(outcome["stdout"])["version"] == 1
    assert "declares no output 'nosuch'" in outcome["stderr"]
    assert repo.json("data", "get", "command-one", "report")["contentType"] == "application/json"
    repo.serve()
    repo.swamp("workflow", "run", "own", "--server", repo.url)
    assert repo.json("data", "versions", "own-one", "x")["total"] == 2
    assert steps_of(repo, "own")["one"]["outputs"][0]["name"] == "x"


def test_steps_that_put_find_swamp_though_it_is_in_no_path(repo: Repo) -> None:
    """Regression: `swamp: not found`, where worker or server were started by an absolute path."""
    nowhere = repo.base / "nowhere"
    nowhere.mkdir()
    repo.env["PATH"] = str(nowhere)
    step = {"name": "one", "outputs": ["x"], "run": "echo hi | swamp data put x -; echo $PATH"}
    workflow(repo, "own", [step], placed=False)
    workflow(repo, "far", [step])
    plain = {"name": "one", "run": "echo $PATH"}
    workflow(repo, "plain", [plain])
    repo.serve()
    repo.worker("w1", *HERE)
    for name in ("own", "far"):
        repo.swamp("workflow", "run", name, "--server", repo.url)
        assert repo.swamp("data", "get", f"{name}-one", "x").stdout == "hi\n"
        path = steps_of(repo, name)["one"]["outcome"]["stdout"].strip().splitlines()[-1]
        assert path == f"{nowhere}:{Path(sys.executable).parent}"
    repo.swamp("workflow", "run", "plain", "--server", repo.url)
    # What puts nothing has the worker's own, as it is.
    assert steps_of(repo, "plain")["one"]["outcome"]["stdout"].strip() == str(nowhere)


def test_what_was_not_declared_is_refused_and_the_credential_ends_with_the_step(
    repo: Repo,
) -> None:
    kept = repo.base / "kept"
    workflow(
        repo,
        "odd",
        [
            {
                "name": "one",
                "outputs": ["a", "b"],
                "run": f"""echo "$SWAMP_DATA_TOKEN" > {kept}; echo "$SWAMP_DATA_TOKEN"
                    echo x > f; true
                    curl -sS -T f -H "Authorization: Bearer $SWAMP_DATA_TOKEN" $SWAMP_DATA_URL/c""",
            }
        ],
    )
    repo.serve()
    repo.worker("w1", *HERE)
    repo.swamp("workflow", "run", "odd", "--server", repo.url)
    said = steps_of(repo, "odd")["one"]["outcome"]["stdout"]
    assert "step 'one' declares no output 'c'; it declares: a, b" in said
    token = kept.read_text().strip()
    assert token.startswith(next(iter(repo.records("leases"))))
    assert token not in said
    assert said.startswith("***\n"), "the credential is a secret in output"
    assert put(repo, token, "a") == (409, "dispatch_over")
    wrong = "1" if token.endswith("0") else "0"
    assert put(repo, token[:-1] + wrong, "a")[0] == 401
    other = token.rpartition(".")[2]
    assert put(repo, f"other.job.step.1.{other}", "a")[0] == 401
    assert stored(repo) == []


def put(repo: Repo, token: str, name: str) -> tuple[int, str]:
    """Status and code of an upload."""
    request = urllib.request.Request(
        f"{repo.url}/api/v1/data/{name}",
        b"x",
        {"Authorization": f"Bearer {token}"},
        method="PUT",
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["code"]


def test_the_credential_outlives_a_restart_of_the_server(repo: Repo) -> None:
    go = repo.base / "go"
    workflow(
        repo,
        "long",
        [
            {
                "name": "one",
                "outputs": ["x"],
                "run": f"""echo a | {CURL} -T - $SWAMP_DATA_URL/x
                    until [ -e {go} ]; do sleep 0.02; done
                    echo b | {CURL} --retry 20 --retry-connrefused --retry-delay 1 \
                        -T - $SWAMP_DATA_URL/x""",
            }
        ],
    )
    server = repo.serve()
    repo.worker("w1", *HERE)
    run = repo.start("workflow", "run", "long", "--server", repo.url)
    repo.until((repo.path / ".swamp/data/long-one/x/1").exists, "the first output")
    server.process.kill()
    server.wait()
    repo.serve()
    go.touch()
    assert run.wait(30) == 0
    assert steps_of(repo, "long")["one"]["outputs"] == [
        {"name": "x", "version": 1, "size": 2},
        {"name": "x", "version": 2, "size": 2},
    ]


def test_a_restart_of_the_server_fails_no_put(repo: Repo) -> None:
    """Regression: `no answer from` at once. One is broken in the middle, one begins meanwhile."""
    base, put = repo.base, f"{sys.executable} -m swamp data put"
    slow = f"(head -c 200000000 /dev/zero; echo end) | {put} x - 2> {base}/said"
    later = f"""until [ -e {base}/away ]; do sleep 0.02; done; echo whole > f; {put} x f"""
    workflow(
        repo,
        "away",
        [
            {"name": "slow", "outputs": ["x"], "run": slow},
            {"name": "later", "free": True, "outputs": ["x"], "run": later},
        ],
    )
    server = repo.serve()
    repo.worker("w1", *HERE, "--concurrency", "2")
    run = repo.start("workflow", "run", "away", "--server", repo.url)
    incoming = repo.path / ".swamp" / "data" / ".incoming"
    repo.until(
        lambda: sum(one.stat().st_size for one in incoming.rglob("*") if one.is_file()) > 2_000_000,
        "some of it with the server",
    )
    server.terminate(signal.SIGKILL)
    (base / "away").touch()
    repo.until(lambda: "trying again for 60 s" in (base / "said").read_text(), "its word")
    repo.serve()
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 0, out
    steps = steps_of(repo, "away")
    assert steps["slow"]["outputs"] == [{"name": "x", "version": 1, "size": 200_000_004}]
    assert steps["later"]["outputs"] == [{"name": "x", "version": 1, "size": 6}]
    (raw,) = [path for path in stored(repo) if "away-slow" in path.parts]
    assert raw.read_bytes() == bytes(200_000_000) + b"end\n"
    assert (base / "said").read_text().count("trying again") == 1


def start_run(repo: Repo, workflow: str) -> None:
    """Start a run that nobody follows."""
    body = json.dumps({"workflow": workflow}).encode()
    request = urllib.request.Request(f"{repo.url}/api/v1/runs", body, method="POST")
    urllib.request.urlopen(request).close()


def test_parallel_puts_are_versions_of_their_own(repo: Repo) -> None:
    many = f"""for i in 1 2 3 4 5 6 7 8; do
        head -c 300000 /dev/zero | {CURL} -T - $SWAMP_DATA_URL/x & done; wait"""
    workflow(repo, "many", [{"name": "one", "outputs": ["x"], "run": many}])
    repo.serve()
    repo.worker("w1", *HERE)
    repo.swamp("workflow", "run", "many", "--server", repo.url)
    written = steps_of(repo, "many")["one"]["outputs"]
    assert sorted(one["version"] for one in written) == list(range(1, 9))
    assert {one["size"] for one in written} == {300_000}
    assert all(len(path.read_bytes()) == 300_000 for path in stored(repo))


def test_no_byte_is_stored_without_its_mark_whenever_the_server_is_killed(repo: Repo) -> None:
    """Promise 2. Every byte below `.swamp/data` after a kill belongs to a lease that says so."""
    slow = f"""head -c 3000000 /dev/zero | {CURL} --limit-rate 20M -T - $SWAMP_DATA_URL/x"""
    workflow(
        repo,
        "kill",
        [{"name": f"s{n}", "free": True, "outputs": ["x"], "run": slow} for n in range(80)],
    )
    randomness = random.Random(7)

    def one_more(look: Callable[[Repo], list[Path]]) -> None:
        seen = set(look(repo))
        repo.until(lambda: bool(set(look(repo)) - seen), "one more upload")

    server = repo.serve()
    repo.worker("w1", *HERE, "--concurrency", "4")
    start_run(repo, "kill")
    broken = finished = 0
    for turn in range(10):
        # By turns while one is under way, and once one more has ended, however slow all is.
        one_more(stored if turn % 2 else whole_of)
        threading.Event().wait(randomness.uniform(0.0, 0.15))
        server.process.send_signal(signal.SIGKILL)
        server.wait()
        left = [path for path in stored(repo) if path.stat().st_size]
        whole = whole_of(repo)
        server = repo.serve()
        assert [path for path in left if path.exists()] == whole, "a start clears up"
        leases = repo.records("leases")
        for path in whole:
            meta = json.loads((path.parent / "meta.json").read_text())
            assert path.stat().st_size == meta["size"] == 3_000_000
            assert "wroteAt" in leases[meta["dispatch"]]["status"], meta
        unfinished = len(left) - len(whole)
        broken, finished = broken + unfinished, len(whole)
        marked = [one for one in leases.values() if "wroteAt" in one["status"]]
        assert len(marked) >= unfinished + len({path.parent.parent for path in whole})
    assert broken, "no upload was ever under way"
    assert finished, "no upload ever ended"


def test_json_that_holds_no_unicode_fails_the_step_that_reads_it(repo: Repo) -> None:
    """Regression: its dispatch could not be sent, and was tried for ever."""
    put = f"""printf '{{"a": "%sd800"}}' '\\u' | {CURL} -T - $SWAMP_DATA_URL/o"""
    read = "echo ${{ data.latest('bad-put', 'o').a }}"
    workflow(
        repo,
        "bad",
        [{"name": "put", "outputs": ["o"], "run": put}, {"name": "read", "run": read}],
    )
    repo.serve()
    repo.worker("w1", *HERE)
    repo.swamp("workflow", "run", "bad", code=1)
    steps = steps_of(repo, "bad")
    assert steps["put"]["state"] == "succeeded"
    assert steps["read"]["state"] == "failed"
    assert "output 'o' of model 'bad-put': a holds a character that is no" in str(steps["read"])
