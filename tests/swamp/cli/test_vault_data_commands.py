"""`vault put | list | rm` and `data …`: what they store, print, and never print."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from datastore.layout import Layout
from datastore.outputs import Origin, OutputFiles
from datastore.vaults import Vaults


@pytest.fixture
def vault(repo: Layout, swamp: Any) -> Layout:
    assert swamp("vault", "create", "local_encryption", "main").code == 0
    return repo


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_secret_comes_from_stdin(
    vault: Layout, swamp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin(monkeypatch, b"two\nlines\n")
    put = swamp("vault", "put", "main", "KEY", "--json")
    assert put.json | {"timestamp": ""} == {
        "vaultName": "main",
        "secretKey": "KEY",
        "vaultType": "local_encryption",
        "overwritten": False,
        "timestamp": "",
    }
    assert Vaults(vault).get("main", "KEY") == "two\nlines"
    listed = swamp("vault", "list", "main")
    assert listed.out == "KEY\n"
    held = [path.read_bytes() for path in vault.root.rglob("*") if path.is_file()]
    assert all(b"lines" not in data for data in held)
    assert swamp("vault", "rm", "main", "KEY").code == 0
    assert swamp("vault", "list", "main", "--json").json["secretKeys"] == []
    assert "has no secret 'KEY'" in swamp("vault", "rm", "main", "KEY").err


def test_a_value_as_an_argument_is_taken_with_a_warning(vault: Layout, swamp: Any) -> None:
    put = swamp("vault", "put", "main", "KEY=a=bcd")
    assert "stays in the shell's history" in put.err
    assert Vaults(vault).get("main", "KEY") == "a=bcd"
    assert swamp("vault", "put", "main", "KEY=new-value").out == "Replaced KEY in vault main\n"


def test_a_value_too_short_to_mask_is_told(
    vault: Layout, swamp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin(monkeypatch, b"abc")
    assert (
        "KEY has fewer than 4 characters: it cannot be masked"
        in swamp("vault", "put", "main", "KEY").err
    )


def test_a_vault_must_be_there(vault: Layout, swamp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"value")
    for command in (("put", "no", "KEY"), ("list", "no"), ("rm", "no", "KEY"), ("list", "../x")):
        failed = swamp("vault", *command)
        assert failed.code == 1
        assert "(vaults: main): create it with `swamp vault create local_encryption" in failed.err
    (vault.vaults / "local_encryption" / "main.yaml").unlink()
    assert "there is none yet" in swamp("vault", "list", "main").err


@pytest.fixture
def outputs(repo: Layout) -> OutputFiles:
    files = OutputFiles(repo)
    origin = Origin("probe", "run-1", "job", "step", "run-1.job.step.1")
    for data in (b'{"a": 1}', b"\xff\x00raw"):
        upload = files.begin()
        upload.write(data)
        files.keep(upload, origin, "x", "application/octet-stream", "2026-11-29T16:41:31.123Z")
    return files


def test_outputs_are_listed(outputs: OutputFiles, swamp: Any) -> None:
    listed = swamp("data", "list", "probe")
    assert listed.out.splitlines() == [
        "NAME  VERSION  BYTES  TYPE                      CREATED",
        "x     2        5      application/octet-stream  2026-11-29T16:41:31.123Z",
    ]
    assert swamp("data", "list", "probe", "--json").json["total"] == 1
    versions = swamp("data", "versions", "probe", "x", "--json").json
    assert [(v["version"], v["size"], v["isLatest"]) for v in versions["versions"]] == [
        (2, 5, True),
        (1, 8, False),
    ]
    assert "run-1" in swamp("data", "versions", "probe", "x").out


def test_outputs_of_a_model_that_is_not_there_are_an_error(
    outputs: OutputFiles, repo: Layout, swamp: Any
) -> None:
    (repo.models / "command").mkdir(parents=True, exist_ok=True)
    (repo.models / "command" / "m.yaml").write_text(
        "id: 5a7e8d3c-2f4b-4c1d-9e0f-1a2b3c4d5e6f\nname: builder\ntype: command/shell\n"
    )
    inline = {"type": "model_method", "modelType": "command/shell", "modelName": "inline",
              "methodName": "execute", "inputs": {"run": "true"}}  # fmt: skip
    jobs = [{"name": "j", "steps": [{"name": "s", "task": inline}]}]
    (repo.workflows / "w.yaml").write_text(json.dumps({"name": "w", "jobs": jobs}))
    for there in ("builder", "inline"):
        assert swamp("data", "list", there).out == f"Model {there} has no outputs\n"
    for verb in (["list", "bulider"], ["get", "bulider", "x"], ["versions", "bulider", "x"]):
        failed = swamp("data", *verb)
        assert failed.code == 1
        assert failed.err == (
            "Error: no model 'bulider' and no outputs of one; did you mean 'builder'?\n"
        )
    # Outputs outlive the definition of their model.
    assert swamp("data", "list", "probe").code == 0


def test_an_output_is_got(outputs: OutputFiles, swamp: Any, tmp_path: Path) -> None:
    assert swamp("data", "get", "probe", "x", "--version", "1").out == '{"a": 1}'
    shown = swamp("data", "get", "probe", "x", "--version", "1", "--json").json
    assert shown["content"] == {"a": 1}
    assert shown["ownerDefinition"]["workflowRunId"] == "run-1"
    assert swamp("data", "get", "probe", "x", "--json").json["content"] is None
    target = tmp_path / "out"
    assert swamp("data", "get", "probe", "x", "--output", str(target)).out == ""
    assert target.read_bytes() == b"\xff\x00raw"
    assert swamp("data", "get", "probe", "x", "--version", "9").code == 1
    missing = swamp("data", "get", "probe", "y", "--json")
    assert json.loads(missing.err) == {
        "error": "model 'probe' has no output 'y'; it has: x",
        "code": "not_found",
    }


def test_put_outside_of_a_step_says_so(repo: Layout, swamp: Any) -> None:
    failed = swamp("data", "put", "x", str(repo.marker))
    assert (failed.code, "outputs are put by steps" in failed.err) == (1, True)
    assert swamp("data", "put", "x", "nosuch").err == "Error: nosuch: No such file or directory\n"
