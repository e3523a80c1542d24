"""`swamp demo` as people start it: its lines, what it leaves behind, and what it must not."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

WITHIN_S = 60.0


@contextmanager
def demo(scratch: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The demo under way, its folder below `scratch`; what it leaves running is a failure."""
    process = subprocess.Popen(
        [sys.executable, "-m", "swamp", "demo", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
        start_new_session=True,
    )
    try:
        yield process
        assert wait_for(lambda: not alive(scratch)), alive(scratch)
    finally:
        for pid in (process.pid, *alive(scratch)):
            kill(pid)
        process.communicate()


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def alive(scratch: Path) -> list[int]:
    """Processes whose command line names the scratch folder, or whose environment does."""
    mark, found = str(scratch).encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            seen = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark in seen and state != "Z" and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def wait_for(holds: Callable[[], bool]) -> bool:
    give_up_at = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.05)
    return True


def test_the_demo_shows_a_fan_out_and_says_where_to_look(tmp_path: Path) -> None:
    started = time.monotonic()
    with demo(tmp_path) as process:
        out, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, err
    assert time.monotonic() - started < 15
    assert out.count(" nothing amiss") == 8
    assert "Completed workflow demo succeeded" in out
    assert "Workers worker-1 and worker-2" in err
    # Each line of the last block is a command; all of them but the server's are run here.
    commands = [line.split("  ")[-1] for line in out.rpartition("in files:\n")[2].splitlines()]
    assert len(commands) == 5
    shown = [
        subprocess.run(command, shell=True, capture_output=True, text=True, timeout=WITHIN_S)
        for command in commands[:-1]
    ]
    assert [one.returncode for one in shown] == [0, 0, 0, 0], shown
    story, _, run, workers = (one.stdout for one in shown)
    steps = [step for job in yaml.safe_load(story)["jobs"] for step in job["steps"]]
    assert {step.get("worker") for step in steps} == {"worker-1", "worker-2", None}
    assert run.count("succeeded") == 10
    assert workers.count("disconnected") == 2


def test_the_demo_for_machines_is_one_document_also_in_a_deep_folder(tmp_path: Path) -> None:
    """The kernel allows 107 bytes for the path of a socket; people's folders may be deeper."""
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    with demo(deep, "--json") as process:
        out, err = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, err) == (0, "")
    document = json.loads(out)
    assert document["run"]["status"] == "succeeded"
    assert document["workers"] == ["worker-1", "worker-2"]
    assert (Path(document["path"]) / ".swamp.yaml").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_demo_with_all_its_processes(
    tmp_path: Path, number: signal.Signals
) -> None:
    with demo(tmp_path) as process:
        assert process.stdout is not None
        while "nothing amiss" not in (line := process.stdout.readline()):
            assert line, "the demo ended before it was interrupted"
        process.send_signal(number)
        out, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    assert "cancelled" in out


def test_an_interrupt_while_the_fleet_starts_leaves_nothing_either(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        assert wait_for(lambda: any(tmp_path.glob("swamp-demo-*/logs/serve.log")))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130
