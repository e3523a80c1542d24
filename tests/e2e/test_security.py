"""Who is let in over the network, to do what; and no secret or token is anywhere to be found."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from harness import SWAMP, Repo


def ask(repo: Repo, method: str, path: str, token: str = "", body: Any = None) -> tuple[int, Any]:
    """The status and the answer of one request."""
    request = urllib.request.Request(repo.url + path, method=method)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, data, timeout=20) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def access(repo: Repo, name: str, role: str, duration: str = "1h") -> str:
    made = repo.json("access", "token", "create", name, "--role", role, "--duration", duration)
    return str(made["token"])


def test_each_role_may_do_what_it_says(repo: Repo) -> None:
    repo.shell_workflow("slow", {"s": "sleep 30"})
    early = access(repo, "early", "read")
    repo.serve("--auth", "token")
    tokens = {"none": "", "wrong": "early." + "0" * 64, "read": early}
    tokens |= {role: access(repo, role, role) for role in ("run", "admin")}
    wanted = {
        ("GET", "/health"): "none",
        ("GET", "/"): "none",
        ("GET", "/api/v1/runs"): "read",
        ("GET", "/api/v1/workers"): "read",
        ("GET", "/api/v1/queue"): "read",
        ("POST", "/api/v1/runs"): "run",
        ("GET", "/api/v1/tokens"): "admin",
        ("GET", "/api/v1/access"): "admin",
        ("POST", "/api/v1/workers/nobody/forget"): "admin",
        ("POST", "/api/v1/workers/nobody/verify"): "admin",
        ("POST", "/api/v1/runs/prune"): "admin",
        ("POST", "/api/v1/desired/workers/w1/look"): "admin",
        ("GET", "/nowhere"): "read",
    }
    bodies = {"/api/v1/runs": {"workflow": "slow"}, "/api/v1/runs/prune": {"keepRuns": 1000}}
    ranks = ["none", "wrong", "read", "run", "admin"]
    for (method, path), least in wanted.items():
        for role in ranks:
            body = bodies.get(path, {}) if method == "POST" else None
            status, answer = ask(repo, method, path, tokens[role], body)
            if least == "none" or ranks.index(role) >= ranks.index(least):
                assert status not in (401, 403), (path, role, answer)
            else:
                expected = 401 if role in ("none", "wrong") else 403
                assert status == expected, (path, role, answer)
                assert "\n" not in answer["error"]
    run = ask(repo, "GET", "/api/v1/runs", early)[1]["runs"][0]["runId"]
    assert ask(repo, "POST", f"/api/v1/runs/{run}/cancel", early, {})[0] == 403
    assert ask(repo, "POST", f"/api/v1/runs/{run}/cancel", tokens["run"], {})[0] == 200

    # Workers bring their own token, the repository's socket asks for none.
    repo.worker("w1", "--label", "pool=other")
    assert repo.json("worker", "list")["count"] == 1


def test_commands_bring_their_token_and_ends_are_final(repo: Repo) -> None:
    repo.serve("--auth", "token")
    remote = ["--server", repo.url]
    assert "access token" in repo.swamp("worker", "list", *remote, code=1).stderr
    token = access(repo, "ci", "read")
    assert repo.json("worker", "list", *remote, "--token", token)["count"] == 0
    repo.env["SWAMP_SERVER_TOKEN"] = token
    assert repo.json("worker", "list", *remote)["count"] == 0
    denied = repo.swamp("access", "token", "list", *remote, code=1).stderr
    assert "admin" in denied and len(denied.splitlines()) == 1

    file = repo.path / "datastore/desired/access/ci.yaml"
    before = file.read_text()
    file.write_text(before + "  revoked: true\n")
    repo.until(lambda: ask(repo, "GET", "/api/v1/runs", token)[0] == 401, "the revocation")
    assert "has been revoked" in repo.swamp("worker", "list", *remote, code=1).stderr
    file.write_text(before)
    repo.until(lambda: repo.records("access")["ci"]["status"]["state"] == "revoked", "the record")
    assert ask(repo, "GET", "/api/v1/runs", token)[0] == 401

    short = access(repo, "short", "admin", "2s")
    assert ask(repo, "GET", "/api/v1/access", short)[0] == 200
    repo.until(lambda: ask(repo, "GET", "/api/v1/access", short)[0] == 401, "the expiry")
    gone = access(repo, "gone", "admin")
    revoked = repo.json("access", "token", "revoke", "gone", *remote, "--token", gone)
    assert (revoked["state"], revoked["alreadyRevoked"]) == ("revoked", False)
    assert "revoked: true" in (repo.path / "datastore/desired/access/gone.yaml").read_text()
    states = {one["name"]: one["state"] for one in repo.json("access", "token", "list")}
    assert states == {"ci": "revoked", "gone": "revoked", "short": "expired"}


def test_who_follows_a_run_is_cut_off_when_the_token_ends(repo: Repo) -> None:
    repo.serve("--auth", "token")
    repo.shell_workflow("slow", {"s": "sleep 60"})
    starter = access(repo, "starter", "run")
    run = ask(repo, "POST", "/api/v1/runs", starter, {"workflow": "slow"})[1]["id"]
    revoked, short = access(repo, "ci", "read"), access(repo, "short", "read", "6s")
    streams = []
    for token in (revoked, short):
        url = f"{repo.url}/api/v1/runs/{run}/events?follow=1"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        stream = urllib.request.urlopen(request, timeout=30)
        assert json.loads(stream.readline())["kind"] == "run_started"
        streams.append(stream)
    repo.swamp("access", "token", "revoke", "ci")
    for stream in streams:
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            while True:
                stream.read(1)
    watching = ["run", "watch", run, "--server", repo.url, "--token", revoked]
    assert "has been revoked" in repo.swamp(*watching, code=1).stderr


def test_an_open_address_needs_tls_and_tokens(repo: Repo) -> None:
    # Refused before the files of --tls-cert could matter: the address is never listened on.
    for given, lack in (([], "--tls-cert and --tls-key and --auth token"),
                        (["--auth", "token"], "--tls-cert and --tls-key")):  # fmt: skip
        error = repo.swamp("serve", "--host", "0.0.0.0", *given, code=2).stderr
        assert f"add {lack}, keep 127.0.0.1, or say --insecure" in error
        assert len(error.splitlines()) == 1
    repo.serve("--host", "0.0.0.0", "--insecure")
    assert ask(repo, "POST", "/api/v1/runs", body={"workflow": "none"})[0] == 404
    status, answer = ask(repo, "GET", "/api/v1/access")
    assert (status, answer["code"]) == (403, "forbidden")


def for_host(repo: Repo, host: str, method: str, path: str, **headers: str) -> tuple[int, Any]:
    """The status and the answer of a request for that host."""
    asking = http.client.HTTPConnection("127.0.0.1", repo.port, timeout=20)
    with contextlib.closing(asking):
        body = json.dumps({"workflow": "none"}) if method == "POST" else None
        asking.request(method, path, body, {"Host": host, **headers})
        answer = asking.getresponse()
        said = answer.read()
        is_json = answer.headers["Content-Type"].startswith("application/json")
        return answer.status, json.loads(said) if is_json else said


def test_a_page_whose_name_leads_here_is_refused_without_access_tokens(repo: Repo) -> None:
    """Regression: by DNS rebinding any web page could read all, and start runs."""
    server = repo.serve()
    evil = f"evil.example:{repo.port}"
    for method, path in (
        ("GET", "/api/v1/runs"), ("GET", "/metrics"), ("POST", "/api/v1/runs"), ("GET", "/nowhere"),
    ):  # fmt: skip
        status, answer = for_host(repo, evil, method, path, Origin=f"http://{evil}")
        assert (status, answer["code"]) == (403, "unknown_host"), path
        for part in (f"'{evil}'", "127.0.0.1 or localhost", "--auth token", "--insecure"):
            assert part in answer["error"]
    # What is for everybody, or asks for a credential of its own, is as before.
    assert for_host(repo, evil, "GET", "/health")[0] == 200
    assert for_host(repo, evil, "PUT", "/api/v1/data/x")[0] == 401
    for host in (f"127.0.0.1:{repo.port}", f"localhost:{repo.port}", f"[::1]:{repo.port}"):
        assert for_host(repo, host, "POST", "/api/v1/runs", Origin=f"http://{host}")[0] == 404
        assert for_host(repo, host, "GET", "/metrics")[0] == 200
    server.terminate()

    # A proxy in front may keep the name that it is asked by.
    token = access(repo, "ci", "read")
    server = repo.serve("--auth", "token")
    assert for_host(repo, evil, "GET", "/api/v1/runs")[0] == 401
    assert for_host(repo, evil, "GET", "/api/v1/runs", Authorization=f"Bearer {token}")[0] == 200
    server.terminate()
    repo.serve("--insecure")
    assert for_host(repo, evil, "GET", "/api/v1/runs")[0] == 200


# -- promise 10 ----------------------------------------------------------------------------------


class Watch:
    """Reads the command lines of all processes, again and again."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.005):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    self.seen.add(path.read_bytes())


def test_a_token_on_the_command_line_is_wiped_from_the_process_list(repo: Repo) -> None:
    repo.serve("--auth", "token")
    token = access(repo, "ci", "read")
    watching = repo.start(
        "worker", "queue", "--watch", "--json", "--server", repo.url, "--token", token
    )
    assert watching.stdout is not None
    assert watching.stdout.readline()
    shown = Path(f"/proc/{watching.pid}/cmdline").read_bytes()
    assert b"--token" in shown
    assert token.encode() not in shown
    watching.kill()
    watching.communicate()


def test_an_expression_cannot_read_a_token_of_the_server(repo: Repo) -> None:
    repo.env |= {"SWAMP_SERVER_TOKEN": "me.very-secret-indeed", "GREETING": "hello"}
    repo.shell_workflow("env", {"s": "echo ${{ env.GREETING }} ${{ env.SWAMP_SERVER_TOKEN }}"})
    repo.shell_workflow("fine", {"s": "echo ${{ env.GREETING }}"})
    repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    assert "hello" in repo.swamp("workflow", "run", "fine").stdout
    done = repo.swamp("workflow", "run", "env", code=1)
    assert "very-secret" not in done.stdout + done.stderr


def test_no_secret_or_token_is_anywhere(repo: Repo) -> None:
    secret = "hunter2-Sw0rdf1sh-and-more"
    repo.swamp("vault", "create", "local_encryption", "main")
    subprocess.run(
        [*SWAMP, "vault", "put", "main", "KEY"],
        cwd=repo.path, env=repo.env, input=secret, text=True, check=True,
    )  # fmt: skip
    key = "${{ vault.get('main', 'KEY') }}"
    text = {
        "tell": f'echo \\"it is {key}\\"; echo {key} >&2; sleep 0.3',
        "keep": "set; echo $SWAMP_DATA_TOKEN; exit 0",
    }
    listed = "\n".join(
        f"      - name: {name}\n        task: {{type: model_method, modelType: command/shell,"
        f' modelName: {name}, methodName: execute, inputs: {{run: "{run}", env: {{K: "{key}"}},'
        f" outputs: [out]}}}}"
        for name, run in text.items()
    )
    repo.write(
        "workflows/w.yaml",
        f"name: w\nlabels: {{pool: worker}}\njobs:\n  - name: job\n    steps:\n{listed}\n",
    )
    server = repo.serve("--auth", "token")
    with Watch() as processes:
        client = access(repo, "ci", "run")
        worker = repo.worker("w1", "--label", "pool=worker")
        # A token on the command line is wiped as soon as the command can; what it prints, and what
        # others see from then on, never has it.
        processes.seen.clear()
        repo.env["SWAMP_SERVER_TOKEN"] = client
        done = repo.swamp("workflow", "run", "w", "--server", repo.url, "--verbose")
        worker.terminate()
    server.terminate()
    enroll = (repo.base / "w1.token").read_text()
    hidden = {
        "the vault's secret": secret,
        "the access token": client.partition(".")[2],
        "the worker's token": enroll.partition(".")[2],
    }
    assert "it is ***" in done.stdout
    printed = [done.stdout, done.stderr, json.dumps(worker.lines.events)]
    printed += [json.dumps(server.lines.events), *worker.lines.other, *server.lines.other]
    haystack = {f"output {number}": one.encode() for number, one in enumerate(printed)}
    haystack |= {f"process {number}": one for number, one in enumerate(processes.seen)}
    files = [path for path in repo.base.rglob("*") if path.is_file() and path.suffix != ".token"]
    haystack |= {str(path): path.read_bytes() for path in files}
    assert any(name.endswith("journal.db") for name in haystack)
    assert any(b"serve" in one for one in processes.seen)
    for what, value in hidden.items():
        found = [name for name, data in haystack.items() if value.encode() in data]
        assert found == [], what
    credential = re.compile(rb"\.job\.(tell|keep)\.\d+\.[0-9a-f]{64}")
    assert [name for name, data in haystack.items() if credential.search(data)] == []
