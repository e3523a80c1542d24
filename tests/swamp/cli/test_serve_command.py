"""`serve`: flags over environment over `.swamp.yaml` over defaults, reports to lines."""

import logging
import re
from typing import Any

import pytest

from datastore.layout import Layout
from swamp.cli.serve import serve_line

MARKER = """\
version: 1
serve: {port: 8000, host: '::1', queueTimeout: 5m, grace: 30, outputLimit: 5MiB}
retention: {keepRuns: 20, keepFor: 1h30m}
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of each server that would have been started."""
    found: list[Any] = []

    def run_serve(options: Any, report: Any) -> int:
        found.append(options)
        report({"status": "listening", "host": "h", "port": 1, "url": "http://h:1"})
        report({"status": "stopped"})
        return 0

    monkeypatch.setattr("swamp.serve.app.run_serve", run_serve)
    return found


def test_defaults_are_those_of_the_marker_as_written_by_init(
    repo: Layout, swamp: Any, started: list[Any]
) -> None:
    assert swamp("serve").code == 0
    repo.marker.write_text(
        repo.marker.read_text()
        .replace("# serve:", "serve:")
        .replace("# retention:", "retention:")
        .replace("#  ", " ")
    )
    assert swamp("serve").code == 0
    for options in started:
        assert (options.root, options.host, options.port) == (repo.root, "127.0.0.1", 9090)
        assert (options.grace_s, options.recover_leases_s) == (60, None)
        assert (options.schedule, options.insecure) == (True, False)
        assert options.keep.runs == 500
        assert options.output_max_bytes == 1 << 30
    # A limit that is written is told as the server's own; without one it is the default's.
    assert [options.queue_timeout_s for options in started] == [None, 600]
    assert [options.keep.for_s for options in started] == [None, 30 * 86400]


def test_options_win_over_environment_and_marker(
    repo: Layout, swamp: Any, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.marker.write_text(MARKER)
    swamp("serve")
    monkeypatch.setenv("SWAMP_QUEUE_TIMEOUT", "0")
    swamp("serve")
    swamp(
        "serve", "--port", "0", "--host", "127.0.0.1", "--queue-timeout", "5s", "--grace", "1m",
        "--recover-leases", "0", "--no-schedule", "--insecure", "--keep-runs", "7",
    )  # fmt: skip
    file, environment, options = started
    assert (file.port, file.host, file.queue_timeout_s, file.grace_s) == (8000, "::1", 300, 30)
    assert environment.queue_timeout_s == 0
    assert (options.port, options.host, options.queue_timeout_s) == (0, "127.0.0.1", 5)
    assert (options.grace_s, options.recover_leases_s) == (60, 0)
    assert (options.schedule, options.insecure) == (False, True)
    assert [one.keep.runs for one in started] == [20, 20, 7]
    assert file.output_max_bytes == 5 << 20
    assert [one.keep.for_s for one in started] == [5400, 5400, 5400]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("serve: 5\n", ".swamp.yaml:1:1: 'serve' must be a mapping"),
        ("serve:\n  prt: 1\n", ".swamp.yaml:2:3: unknown key 'prt' in 'serve'; keys: host, port"),
        ("serve:\n  port: true\n", ".swamp.yaml:2:3: 'port' must be a number"),
        ("serve:\n  port: 70000\n", ".swamp.yaml:2:3: 'port' must be a number"),
        ("serve:\n  host: 1\n", ".swamp.yaml:2:3: 'host' must be an address"),
        ("serve:\n  grace: soon\n", ".swamp.yaml:2:3: 'grace' 'soon': expected a duration"),
        ("retention:\n  keepRuns: 0\n", ".swamp.yaml:2:3: 'keepRuns' must be a number from 1"),
        (
            "retention:\n  keepRuns: 10000000000\n",
            ".swamp.yaml:2:3: 'keepRuns' must be a number from 1 to 1000000000",
        ),
        ("retention: []\n", ".swamp.yaml:1:1: 'retention' must be a mapping"),
        (
            "retention:\n  keep: 1\n",
            ".swamp.yaml:2:3: unknown key 'keep' in 'retention'; keys: keep",
        ),
        ("serve:\n  outputLimit: 5\n", ".swamp.yaml:2:3: 'outputLimit' must be a size such as"),
        ("serve:\n  grace: 0\n", ".swamp.yaml:2:3: 'grace' '0': must be more than 0"),
    ],
)
def test_a_wrong_setting_is_told_with_its_position(
    repo: Layout, swamp: Any, started: list[Any], text: str, said: str
) -> None:
    repo.marker.write_text(text)
    result = swamp("serve")
    assert result.code == 1
    assert result.err.startswith(f"Error: {said}")
    assert started == []


def test_reports_for_machines_are_compact_lines(
    repo: Layout, swamp: Any, started: list[Any]
) -> None:
    assert swamp("serve", "--json").out == (
        '{"status":"listening","host":"h","port":1,"url":"http://h:1"}\n{"status":"stopped"}\n'
    )


def test_lines_for_people_begin_with_the_time_of_day(
    repo: Layout, swamp: Any, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    result = swamp("serve")
    said = re.sub(r"^\d\d:\d\d:\d\d ", "<time> ", result.out, flags=re.MULTILINE)
    assert said == "<time> Listening on http://h:1 (stop with Ctrl-C)\n<time> Stopped\n"
    (handler,) = logging.getLogger().handlers
    warning = logging.makeLogRecord({"msg": "disk full", "levelno": logging.WARNING})
    assert re.fullmatch(r"\d\d:\d\d:\d\d disk full", handler.format(warning))


@pytest.mark.parametrize(
    ("report", "line"),
    [
        ({"status": "stopping"}, "Stopping; runs stay alive for the next start"),
        ({"kind": "boot_sweep", "summary": "2 expired"}, "Found at the start: 2 expired"),
        ({"kind": "warning", "message": "slow disk"}, "Warning: slow disk"),
        ({"kind": "other"}, None),
        ({"kind": "other", "message": "said"}, "said"),
    ],
)
def test_reports_for_people(report: dict[str, Any], line: str | None) -> None:
    assert serve_line(report) == line
