"""`worker connect`: flags and environment to options, events to calm lines."""

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


def test_slots_are_a_number_or_as_many_as_there_are_cpus() -> None:
    assert slots("3") == 3
    assert slots("auto") >= 1
    for text in ("0", "-1", "many", "1.5"):
        with pytest.raises(typer.BadParameter, match="expected a number from 1, or auto"):
            slots(text)


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
        ({"kind": "drain_complete"}, "all work is done"),
        ({"kind": "stopped", "reason": "signal"}, "stopped: signal"),
        ({"kind": "dispatch_started", "workflowName": "w", "stepName": "s"}, "started w/s"),
        (
            {"kind": "dispatch_started", "modelType": "command/shell", "methodName": "execute"},
            "started command/shell.execute",
        ),
        (
            {"kind": "dispatch_finished", "stepName": "s", "status": "success", "durationMs": 1200},
            "done s in 1.2s",
        ),
        (
            {
                "kind": "dispatch_finished", "stepName": "s", "status": "error", "durationMs": 0,
                "error": "exited with code 7",
            },
            "failed s in 0.0s: exited with code 7",
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
