"""`worker connect`: flags and environment to options, events to calm lines."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from swamp.cli.options import labels
from swamp.cli.worker_connect import slots, worker_line


def test_labels_of_options_win_over_the_environment() -> None:
    assert labels("pool=a, zone=x,", ["pool=b", "url=http://h?a=b"]) == {
        "pool": "b", "zone": "x", "url": "http://h?a=b"
    }  # fmt: skip


@pytest.mark.parametrize("text", ["pool", "=x", "pool=", " = "])
def test_an_empty_part_of_a_label_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected KEY=VALUE"):
        labels("", [text])


@pytest.mark.parametrize("text", ["pool=a\nb", "pool=\x1b[2J", "po\x07ol=a", "pool=\u202eb"])
def test_what_a_terminal_obeys_is_no_label(text: str) -> None:
    for given in (("", [text]), (text, [])):
        with pytest.raises(typer.BadParameter, match="expected printable") as refused:
            labels(*given)
        assert str(refused.value).isprintable()


def test_a_label_has_one_value() -> None:
    for given in (("", ["a=b", "a=c"]), ("a=b,a=c", [])):
        with pytest.raises(typer.BadParameter, match="'a' is given twice, as 'b' and 'c'"):
            labels(*given)
    assert labels("a=b,a=b", []) == {"a": "b"}


def test_slots_are_a_number_or_as_many_as_there_are_cpus() -> None:
    assert slots("3") == 3
    assert slots("auto") >= 1
    for text in ("0", "-1", "many", "1.5", "4097", "9" * 5000):
        with pytest.raises(typer.BadParameter, match="expected a number from 1 to 4096, or auto"):
            slots(text)


STEP = {
    "workflowName": "build", "stepName": "compile",
    "modelType": "command/shell", "methodName": "execute",
}  # fmt: skip


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"kind": "connecting", "url": "ws://h", "attempt": 1}, "connecting to ws://h"),
        ({"kind": "connecting", "url": "ws://h", "attempt": 2}, "connecting to ws://h (attempt 2)"),
        ({"kind": "enrolled", "workerId": "t1", "reconnect": False}, "enrolled as t1"),
        ({"kind": "enrolled", "workerId": "t1", "reconnect": True}, "enrolled again as t1"),
        ({"kind": "disconnected", "reason": "closed"}, "disconnected: closed"),
        ({"kind": "retrying", "delayMs": 1500}, "trying again in 1.5s"),
        ({"kind": "draining", "reason": "signal"}, "draining: signal"),
        (
            {"kind": "draining", "reason": "shutdown", "detail": "by an operator:\n\x1b[2Jdisk"},
            "draining: by an operator: disk",
        ),
        ({"kind": "drain_complete"}, "all work is done"),
        ({"kind": "stopped", "reason": "signal"}, "stopped: signal"),
        ({"kind": "dispatch_started", **STEP}, "started build/compile (command/shell.execute)"),
        (
            {"kind": "dispatch_finished", **STEP, "status": "success", "durationMs": 1200},
            "done build/compile in 1.2s (command/shell.execute)",
        ),
        (
            {
                "kind": "dispatch_finished", **STEP, "status": "error", "durationMs": 0,
                "error": "exited with code 7",
            },
            "failed build/compile in 0.0s (command/shell.execute): exited with code 7",
        ),
        ({"kind": "heartbeat"}, None),
    ],
)  # fmt: skip
def test_events_for_people(event: dict[str, Any], line: str | None) -> None:
    assert worker_line(event) == line


def test_options_reach_the_worker_and_the_token_is_never_printed(
    monkeypatch: pytest.MonkeyPatch, swamp: Any
) -> None:
    given: list[Any] = []

    async def run_worker(options: Any, report: Any) -> int:
        given.append(options)
        report({"kind": "connecting", "url": options.url, "attempt": 1})
        report({"kind": "stopped", "reason": "signal"})
        return 0

    monkeypatch.setattr("swamp.worker.connect.run_worker", run_worker)
    monkeypatch.setenv("SWAMP_WORKER_TOKEN", "t1.s3cret")
    monkeypatch.setenv("SWAMP_WORKER_LABELS", "zone=x")
    arguments = (
        "worker", "connect", "http://h:1", "--label", "pool=a", "--concurrency", "2",
        "--idle-timeout", "5m", "--max-dispatches", "7", "--no-reconnect", "--drain-timeout", "9",
    )  # fmt: skip
    people = swamp(*arguments)
    assert people.code == 0
    assert [line.split(" UTC │ ")[1] for line in people.out.splitlines()] == [
        "connecting to ws://h:1", "stopped: signal"
    ]  # fmt: skip
    machines = swamp(*arguments, "--json")
    assert machines.out == (
        '{"kind":"connecting","url":"ws://h:1","attempt":1}\n{"kind":"stopped","reason":"signal"}\n'
    )
    assert "s3cret" not in people.out + people.err + machines.out + machines.err
    options = given[0]
    assert (options.url, options.token) == ("ws://h:1", "t1.s3cret")
    assert options.labels == {"zone": "x", "pool": "a"}
    assert (options.concurrency, options.max_dispatches, options.reconnect) == (2, 7, False)
    assert (options.idle_timeout_s, options.drain_timeout_s) == (300, 9)
    assert options.cache_dir is None


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_authorities_that_do_not_do_are_one_line(
    tmp_path: Path, swamp: Any, content: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    trust = ("--token", "t1.x", "--ca-cert", str(file))
    result = swamp("worker", "connect", "ws://127.0.0.1:9", *trust)
    missing, useless = ": No such file or directory", " is no PEM file with a CERTIFICATE"
    problem = missing if content is None else useless
    assert (result.code, result.err) == (1, f"Error: --ca-cert {file}{problem}\n")
    assert "connecting" not in result.out


def test_a_refused_worker_is_exit_code_3_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, swamp: Any
) -> None:
    async def run_worker(options: Any, report: Any) -> int:
        report({"kind": "stopped", "reason": "token 't1' does not match"})
        return 3

    monkeypatch.setattr("swamp.worker.connect.run_worker", run_worker)
    result = swamp("worker", "connect", "ws://h:1", "--token", "t1.x", "--json")
    assert result.code == 3
    assert result.err == '{"error": "token \'t1\' does not match", "code": "worker_stopped"}\n'


def test_more_slots_than_open_files_allow_are_refused_with_what_fits() -> None:
    connect = f"{sys.executable} -m swamp worker connect ws://127.0.0.1:1 --token t.s"
    found = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -n 64; exec {connect} --concurrency 64"],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert "may have 64" in found.stderr and "--concurrency 4" in found.stderr
