"""TLS for workers, steps and commands; certificates are made here, at run time."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
from pathlib import Path

import pytest
from aiohttp import web
from harness import Proc, Repo

from certificates import certificate
from swamp.client import ServerError
from swamp.protocol import CA_VARIABLE, DATA_TOKEN_VARIABLE, DATA_URL_VARIABLE
from swamp.tls import TlsError, client_context, server_context
from swamp.upload import Patience, put_output


def worker(repo: Repo, *arguments: str, wait: bool = True) -> Proc:
    token = repo.token(f"w{len(repo.procs)}")
    repo.env["SWAMP_WORKER_TOKEN"] = token
    url = f"wss://127.0.0.1:{repo.port}"
    started = repo._proc("worker", "connect", url, "--json", "--label", "pool=worker", *arguments)
    if wait:
        started.lines.kind("enrolled")
    return started


def test_workers_steps_and_commands_speak_tls(repo: Repo) -> None:
    crt, key = certificate(repo.base)
    server = repo.serve("--tls-cert", crt, "--tls-key", key)
    url = server.lines.events[0]["url"]
    assert url == f"https://127.0.0.1:{repo.port}"
    strange = worker(repo, wait=False)
    lost = strange.lines.kind("disconnected")
    assert "is not trusted" in lost["reason"] and "--ca-cert" in lost["reason"]
    strange.stop()

    trusting = worker(repo, "--ca-cert", crt)
    put = 'curl -fsS --cacert "$SWAMP_CA_CERT" -H "Authorization: Bearer $SWAMP_DATA_TOKEN"'
    swamp_put = f"{sys.executable} -m swamp data put"
    run = f"echo one | {put} -T - $SWAMP_DATA_URL/a; echo two | {swamp_put} b -"
    model = {
        "type": "model_method",
        "modelType": "command/shell",
        "modelName": "m",
        "methodName": "execute",
        "inputs": {"run": run, "outputs": ["a", "b"]},
    }
    steps = [{"name": "s", "task": model}]
    document = {
        "name": "w",
        "labels": {"pool": "worker"},
        "jobs": [{"name": "j", "steps": steps}],
    }
    repo.write("workflows/w.yaml", json.dumps(document))
    done = repo.swamp("workflow", "run", "w", "--server", url, "--ca-cert", crt, code=None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert repo.swamp("data", "get", "m", "b").stdout.strip() == "two"

    refused = repo.swamp("worker", "list", "--server", url, code=1).stderr
    assert "is not trusted" in refused and len(refused.splitlines()) == 1
    plain = repo.swamp("worker", "list", "--server", url.replace("https", "http"), code=1).stderr
    assert len(plain.splitlines()) == 1
    repo.env["SWAMP_CA_CERT"] = crt
    listed = repo.json("worker", "list", "--server", url.replace("https", "wss"))
    assert [one["status"] for one in listed["workers"]] == ["idle"]

    # The guard of a killed worker trusts the same authorities: its report ends the lease at once.
    repo.shell_workflow("slow", {"s": "sleep 60"})
    run = repo.start("workflow", "run", "slow")
    trusting.lines.kind("dispatch_started", 2)
    trusting.terminate(signal.SIGKILL)
    repo.until(
        lambda: "expired" in [one["status"]["state"] for one in repo.records("leases").values()],
        "the report of the guard",
    )
    run.kill()
    run.communicate()


def test_files_that_do_not_do_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    certificate(tmp_path, "a")
    certificate(tmp_path, "b")
    Path("bad.crt").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n")
    for crt, key, said in (
        ("none.crt", "a.key", "--tls-cert none.crt: No such file"),
        ("a.crt", ".", "--tls-key .: Is a directory"),
        ("a.crt", "b.key", "--tls-key b.key is not the key of --tls-cert a.crt"),
        ("a.key", "a.key", "--tls-cert a.key is no PEM file with a CERTIFICATE"),
        ("bad.crt", "a.key", "cannot be used"),
    ):
        with pytest.raises(TlsError) as found:
            server_context(Path(crt), Path(key))
        assert said in str(found.value)
        assert len(str(found.value).splitlines()) == 1
    with pytest.raises(TlsError, match=r"--ca-cert bad.crt holds no usable certificate"):
        client_context(Path("bad.crt"))


def test_certificate_and_key_go_together(repo: Repo) -> None:
    error = repo.swamp("serve", "--tls-cert", "a.crt", code=2).stderr
    assert "--tls-cert and --tls-key go together" in error
    assert "No such file" in repo.swamp(
        "serve", "--tls-cert", "a.crt", "--tls-key", "a.key", code=1
    ).stderr  # fmt: skip


async def test_a_refusal_in_the_middle_of_an_upload_is_read(tmp_path: Path) -> None:
    """Regression: `no answer`, and all was sent again for a minute, to be refused each time."""
    crt, key = certificate(tmp_path)

    async def refuse(request: web.Request) -> web.Response:
        await request.content.readany()
        return web.json_response({"error": "it is over", "code": "dispatch_over"}, status=409)

    app = web.Application()
    app.router.add_put("/data/x", refuse)
    trusted = server_context(Path(crt), Path(key))
    runner = web.AppRunner(app, lingering_time=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trusted).start()
    environment = {
        DATA_URL_VARIABLE: f"https://127.0.0.1:{runner.addresses[0][1]}/data",
        DATA_TOKEN_VARIABLE: "d.s",
        CA_VARIABLE: crt,
    }
    patience = Patience(most_s=0.0)
    with pytest.raises(ServerError, match="it is over"):
        await asyncio.to_thread(put_output, environment, "x", Endless(), "text/plain", patience)
    await runner.cleanup()


class Endless(io.BytesIO):
    """Content that goes on until nobody takes it."""

    def read(self, size: int | None = -1) -> bytes:
        return bytes(65_536)
